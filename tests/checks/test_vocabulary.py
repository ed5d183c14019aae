"""The check of words: what it finds where, and what it leaves out."""

from pathlib import Path

import pytest
import yaml

from checks.vocabulary import VOCABULARY, check

BANNED = [
    {"word": "had better", "use": "write `should`"},
    {"word": "as it is", "use": "write `unmodified`", "not_after": "long, soon"},
    {"word": "leg", "use": "write `stage`"},
    {"word": "foretell*", "use": "write `predict`"},
    {"word": "-color", "use": "write `color`"},
]


def _check(folder: Path, name: str, text: str) -> list[str]:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return check(folder, {"banned": BANNED}).get(name, [])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A legacy of the college, as long as it is.", []),
        ("One\nleg.", ["README.md:2: 'leg'; write `stage`"]),
        ("It\nhad\nbetter wait.", ["README.md:2: 'had\\nbetter'; write `should`"]),
        ("Sent as it is.", ["README.md:1: 'as it is'; write `unmodified`"]),
        ("It foretells.", ["README.md:1: 'foretell'; write `predict`"]),
        ("`leg: 1` and `start_leg`", ["README.md:1: 'leg'; write `stage`"]),
        ("[x](../leg.md) https://example.org/leg", []),
        ("Stages.\n\n## Former names\n\n| leg | stage |", []),
        ("`emulated_colors`", ["README.md:1: 'color'; write `color`"]),
    ],
)
def test_pages(tmp_path: Path, text: str, found: list[str]) -> None:
    assert _check(tmp_path, "README.md", text) == found


SOURCE = '''"""A module.

With a leg.
"""

colors = 1
x = Option(
    help=f"Seconds that a leg takes.",
)
"""An attribute with a leg."""

def _private():
    """A private leg."""
    y = "a leg"  # leg
    return Option(help="A leg.")
'''


def test_sources(tmp_path: Path) -> None:
    found = _check(tmp_path, "core/src/tidegate/a.py", SOURCE)
    assert [line.split(":")[1] for line in found] == ["3", "6", "8", "10", "13", "14", "15"]
    assert "'color'" in found[1]


MESSAGES = """
def run(name):
    text = "a leg"
    log.warning("lost a leg")
    if name:
        raise ValueError(f"models.{name}.late: set `record`, or --record {name!r}: had " "better")
    raise SystemExit(text) from error(404, "it is at /live, not at /v2/health/live")
    typer.echo("a record of the event_log in dashboard.enabled")
    print("page.enabled")
"""


def test_errors_logs_and_output(tmp_path: Path) -> None:
    found = _check(tmp_path, "core/src/tidegate/a.py", MESSAGES)
    assert [line.removeprefix("core/src/tidegate/a.py:").partition(";")[0] for line in found] == [
        "3: 'leg'",
        "4: 'leg'",
        "6: '--record'",
        "6: 'had better'",
        "6: 'models.{}.late'",
        "6: 'record'",
        "7: '/live'",
        "9: 'page'",
    ]


def test_other_files_are_read_as_a_whole(tmp_path: Path) -> None:
    for name in ("scenarios/a.yaml", "proxy/src/tidegate_proxy/page.js", "deploy/helm/tidegate/templates/_pod.tpl"):
        assert _check(tmp_path, name, "one: 1\nbar_color: a leg\n") == [
            f"{name}:2: 'color'; write `color`",
            f"{name}:2: 'leg'; write `stage`",
        ]


def test_the_glossary_is_the_terms_of_the_vocabulary() -> None:
    page = (VOCABULARY.parent / "glossary.md").read_text(encoding="utf-8").partition("## Triton's terms")[0]
    header, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if "|" in line]
    assert header == ["term", "meaning", "synonyms"]
    terms = yaml.safe_load(VOCABULARY.read_text(encoding="utf-8"))["terms"]
    expected = [[each["term"], each["meaning"], ", ".join(each.get("synonyms", []))] for each in terms]
    assert rows[1:] == expected
    assert expected == sorted(expected, key=lambda row: row[0].lower())


def test_the_vocabulary_reads_as_the_check_does() -> None:
    vocabulary = yaml.safe_load(VOCABULARY.read_text(encoding="utf-8"))
    words = [each["word"] for each in vocabulary["banned"]]
    assert len(words) == len(set(words))
    assert all(set(each) <= {"word", "use", "not_after"} and each["use"] for each in vocabulary["banned"])
