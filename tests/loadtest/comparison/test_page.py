"""What people and machines are shown of a comparison."""

import json
import re
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console

from tidegate_loadtest.comparison.document import comparison_document
from tidegate_loadtest.comparison.page import comparison_page
from tidegate_loadtest.comparison.table import print_comparison

if TYPE_CHECKING:
    from tests.loadtest.comparison.conftest import MakeComparison
    from tidegate_loadtest.comparison.runs import Comparison

ODD = "<b>odd</b> [red]"


def printed(compared: "Comparison") -> str:
    console = Console(file=StringIO(), width=200)
    print_comparison(console, compared, "title")
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_page_needs_no_network_and_is_safe_with_names(make_comparison: "MakeComparison") -> None:
    page = comparison_page("a & b", make_comparison({ODD: [100, 101], "b": [50, 51], "c": [0, 60]}))
    assert page.startswith("<!doctype html>")
    assert page.count("plotly.js v") == 1
    assert page.count("Plotly.newPlot(") >= 5
    assert not re.search(r"<(script|link)[^>]+(src|href)=", page)
    assert "<title>a &amp; b</title>" in page
    head = page.partition("<script")[0]
    assert "<b>odd" not in head
    assert "b: -49.8 % (" in head


def test_the_table_shows_figures_differences_and_verdict(make_comparison: "MakeComparison") -> None:
    text = printed(make_comparison({ODD: [100, 101, 102], "b": [50, 51, 50]}, lateness_ms={"b": 7}))
    assert "101.0 ± 2.5" in text
    assert "Against <b>odd</b> [red], in the same rounds" in text
    assert "Means of 3 rounds" in text
    assert "do not measure the server: b 3 of 3" in text
    assert "b: -50.2 % (-52" in text


def test_one_round_is_shown_without_intervals(make_comparison: "MakeComparison") -> None:
    text = printed(make_comparison({"a": [100], "b": [50]}))
    assert "±" not in text
    assert "-50.0 %" in text


def test_where_nothing_is_complete_the_reason_is_shown(make_comparison: "MakeComparison") -> None:
    compared = make_comparison({"a": [100], "b": []}, rounds=2, stopped="round 1 of 2, b: gone")
    assert "ended early: round 1 of 2, b: gone" in printed(compared)
    assert "ended early: round 1 of 2, b: gone" in comparison_page("t", compared)
    assert comparison_document(compared)["complete_rounds"] == []


def test_the_document_says_all(make_comparison: "MakeComparison") -> None:
    compared = make_comparison({"a": [100, 102], "b": [50, 51]}, status={"b": ["OK", "UNAVAILABLE"]})
    document = json.loads(json.dumps(comparison_document(compared), allow_nan=False))
    assert document["command"] == "compare"
    assert document["targets"] == [
        {"name": "a", "address": "localhost:8001"},
        {"name": "b", "address": "localhost:8002"},
    ]
    assert [(row["round"], row["target"], row["model"]) for row in document["rows"][:4]] == [
        (1, "a", "*"),
        (1, "a", "m"),
        (1, "b", "*"),
        (1, "b", "m"),
    ]
    found = {(entry["target"], entry["figure"]): entry for entry in document["figures"]}
    assert found["a", "goodput_rps"]["mean"] == 101
    (contrast,) = (entry for entry in document["contrasts"] if entry["figure"] == "goodput_rps")
    assert contrast["difference"]["mean"] == -50.5
    assert abs(contrast["ratio"]["mean"] - 0.5) < 1e-12
    assert document["failures"][0] == {"target": "b", "round": 1, "first": {"UNAVAILABLE": "said of UNAVAILABLE"}}
    assert document["verdicts"] == ["b: -50.0 % (-50.0 .. -50.0) goodput against a"]
