"""Check the subjects of all commits after `SINCE`: `python -m checks.commits`.

Where that commit or git itself is missing (a shallow clone, an export), it says so and succeeds.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SINCE: Final = "7d1edd7f475714ccb408f5d8d215ee20dac0eb8b"
"""The last commit before the convention. Subjects before it are not checked."""
MAX_CHARACTERS: Final = 72
SUBJECT: Final = re.compile(r"[a-z][\w./-]*(?:, [a-z][\w./-]*)*: (?P<verb>[a-z][\w-]*)\b.+")
NOT_IMPERATIVE: Final = re.compile(r"(?!(?:bring|embed|ping|shed)$)\w+(?:ing|(?<!e)ed|[^s]s)$")


def problems_of(subject: str) -> list[str]:
    """Return what is wrong with a subject, each with its remedy; empty if nothing is."""
    found = []
    match = SUBJECT.fullmatch(subject)
    if match is None:
        found.append("does not read `component: imperative verb ...`; begin both in lower case")
    elif NOT_IMPERATIVE.match(match["verb"]):
        found.append(f"begins with `{match['verb']}`; use the imperative (`add`, not `adds` or `added`)")
    if len(subject) > MAX_CHARACTERS:
        found.append(f"has {len(subject)} characters; use at most {MAX_CHARACTERS} and move the rest into the body")
    if subject.endswith("."):
        found.append("ends with a full stop; remove it")
    return found


def subjects_since(commit: str, root: Path = ROOT) -> list[tuple[str, str]] | None:
    """Return abbreviated hash and subject of each commit after `commit`, or None where git cannot tell."""
    command = ["git", "-C", str(root), "log", "--no-merges", "--format=%h %s", f"{commit}..HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    except FileNotFoundError:
        return None
    if done.returncode != 0:
        return None
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in done.stdout.splitlines()]


def main() -> int:
    """Print what is wrong; return 1 if anything is."""
    subjects = subjects_since(SINCE)
    if subjects is None:
        print(f"commits: not checked, because the history since {SINCE[:8]} is not here")
        return 0
    found = [f"commit {name}: {subject!r} {each}" for name, subject in subjects for each in problems_of(subject)]
    print(*found, sep="\n") if found else print(f"commits: {len(subjects)} subjects checked")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
