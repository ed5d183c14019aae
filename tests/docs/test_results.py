"""The results are short, and what the README claims stands on the page that it links to."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_RESULT_WORDS = 8000
CLAIMS = re.findall(
    r"^\| [^|]+ \|([^|]*)\|([^|]*)\|([^|]*\]\((docs/[\w/]+\.md)[^|]*)\|$",
    (ROOT / "README.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


def test_results_are_short() -> None:
    pages = (ROOT / "docs/results").glob("*.md")
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= MAX_RESULT_WORDS


@pytest.mark.parametrize(("baseline", "ours", "conditions", "page"), CLAIMS)
def test_what_the_readme_claims_is_on_the_page_it_links_to(
    baseline: str, ours: str, conditions: str, page: str
) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    claimed = {figure for cell in (baseline, ours) for figure in re.findall(r"\d+\.\d+|\d+ of \d+", cell)}
    assert claimed, conditions
    assert [figure for figure in sorted(claimed) if figure not in text] == []


def test_there_are_claims() -> None:
    assert len(CLAIMS) >= 4
