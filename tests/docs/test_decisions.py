"""Decisions: each has its parts, the index lists all, and every reference to a decision or page leads somewhere."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/decisions"
MAX_WORDS = 300
DECISIONS = {int(path.name[:4]): path for path in sorted(FOLDER.glob("0*.md"))}
PARTS = re.compile(
    r"# (?P<number>\d+)\. (?P<title>.+)\n\n"
    r"- Status: (?P<status>accepted|proposed)\n- Date: (?P<date>2\d{3}-\d\d-\d\d)\n"
    r"(- Supersedes: (?P<supersedes>\d+(, \d+)*)\n)?\n"
    r"## Context\n\n.+?\n\n## Decision\n\n.+?\n\n## Consequences\n\n.+",
    re.DOTALL,
)
ROW = re.compile(r"^\| (\d+) \| \[(.+?)\]\((.+?)\) \| (\w+) \| ([\d-]+) \| .+ \|$", re.MULTILINE)
NUMBERS = re.compile(r"\b[Dd]ecisions? (\d+)(?:(?:, | and )(\d+))*\b(?!\.\d)")
PAGE = re.compile(r"(?<![\w/.-])docs/[\w/.-]+\.md\b")


def _parts(path: Path) -> re.Match[str]:
    found = PARTS.fullmatch(path.read_text(encoding="utf-8"))
    assert found, f"{path.name}: title, status, date, context, decision or consequences are missing or out of order"
    return found


def test_a_decision_has_its_parts() -> None:
    for number, path in DECISIONS.items():
        parts = _parts(path)
        assert int(parts["number"]) == number
        assert len(path.read_text(encoding="utf-8").split()) <= MAX_WORDS, path.name
        assert not {int(each) for each in (parts["supersedes"] or "").split(", ") if each} & DECISIONS.keys(), path.name


def test_the_index_lists_every_decision_as_it_is() -> None:
    listed = ROW.findall((FOLDER / "README.md").read_text(encoding="utf-8"))
    parts = {path.name: _parts(path) for path in DECISIONS.values()}
    expected = [(each["number"], each["title"], name, each["status"], each["date"]) for name, each in parts.items()]
    assert sorted(listed, key=lambda row: int(row[0])) == expected


def _texts() -> dict[str, str]:
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not files:
        pytest.skip("not a git checkout")
    kept = [name for name in files if name.endswith((".py", ".md", ".toml", ".yaml", ".yml", "Makefile"))]
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in kept if (ROOT / name).is_file()}


def test_references_to_decisions_and_pages_lead_somewhere() -> None:
    broken = []
    for name, text in _texts().items():
        numbers = {int(number) for match in NUMBERS.finditer(text) for number in re.findall(r"\d+", match[0])}
        broken += [f"{name}: decision {number}" for number in sorted(numbers - set(DECISIONS))]
        broken += [f"{name}: {page}" for page in PAGE.findall(text) if not (ROOT / page).exists()]
    assert broken == []
