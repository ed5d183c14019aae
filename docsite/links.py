"""Links between files of the repository, as GitHub follows them, become links between pages of the site."""

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Final

from docsite.places import ROOT, page_of

FENCE: Final = re.compile(r"^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)\s*$", re.MULTILINE | re.DOTALL)
CODE_OR_LINK: Final = re.compile(
    r"(?P<code>(?P<ticks>`+)[^`].*?(?P=ticks))|(?P<before>\]\()(?P<target>[^()\s]+)(?P<after>\))"
)
ELSEWHERE: Final = re.compile(r"^[a-z][a-z0-9+.-]*:|^#")


def outside_of_code(text: str, change: Callable[[str], str]) -> str:
    """The text, changed wherever it is in no fenced block."""
    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def linked_files(text: str, path: str) -> Iterator[str]:
    """The files and folders of the repository that the file `path`, of this text, links to."""
    for target in _targets(text):
        if not ELSEWHERE.match(target):
            yield _resolved(target.partition("#")[0], path)


def for_the_site(text: str, path: str) -> str:
    """The text of the file `path`, with links to the pages of the site.

    A link that leads nowhere stays unchanged: Zensical reports it.
    """
    page = PurePosixPath(page_of(path))

    def changed(match: re.Match[str]) -> str:
        target = match["target"]
        if match["code"] or ELSEWHERE.match(target):
            return match[0]
        name, _, anchor = target.partition("#")
        file = _resolved(name, path)
        if not (ROOT / file).exists() or _is_picture(file):
            return match[0]  # pictures of docs/ are where they were
        there = posixpath.relpath(page_of(file), page.parent)
        return f"{match['before']}{there}{'#' if anchor else ''}{anchor}{match['after']}"

    return outside_of_code(text, lambda part: CODE_OR_LINK.sub(changed, part))


def _is_picture(file: str) -> bool:
    return file.startswith("docs/") and file.endswith((".svg", ".png"))


def _targets(text: str) -> Iterator[str]:
    found: list[str] = []

    def note(part: str) -> str:
        found.extend(match["target"] for match in CODE_OR_LINK.finditer(part) if match["target"])
        return part

    outside_of_code(text, note)
    return iter(found)


def _resolved(name: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
