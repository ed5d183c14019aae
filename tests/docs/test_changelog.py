"""The changelog: one short line a change that a user sees, grouped by component."""

import re
from pathlib import Path

CHANGELOG = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
MAX_LINE_CHARACTERS = 120
SECTIONS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_every_line_is_short() -> None:
    assert [line for line in CHANGELOG.splitlines() if len(line) > MAX_LINE_CHARACTERS] == []


def test_every_change_is_one_line_below_a_component() -> None:
    _, *versions = re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)
    assert versions
    for version in versions:
        _, *sections = re.split(r"^### ", version, flags=re.MULTILINE)
        for section in sections:
            name, *components = re.split(r"^#### ", section, flags=re.MULTILINE)
            assert name.strip() in SECTIONS
            assert components
            for component in components:
                title, *changes = [line for line in component.splitlines() if line]
                assert [line for line in changes if not re.match(r"- [A-Z`]", line)] == [], title
                assert changes, title
