"""What people and machines are shown of a comparison."""

import json
import re
from dataclasses import replace
from html import escape
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from tests.loadtest.comparison.conftest import make_comparison
from tests.pages import chart, check_alone, dots, headings, lines, verdicts
from tidegate.report import PageOrigin
from tidegate_loadtest.comparison import findings
from tidegate_loadtest.comparison.document import comparison_document
from tidegate_loadtest.comparison.page import comparison_page
from tidegate_loadtest.comparison.runs import BatchingSettings
from tidegate_loadtest.comparison.table import print_comparison

if TYPE_CHECKING:
    from tidegate_loadtest.comparison.runs import Comparison

ODD = "<b>odd</b> [red]"
ROUNDS = "What fraction of requests is on time, round by round?"


def printed(compared: "Comparison") -> str:
    console = Console(file=StringIO(), width=200)
    print_comparison(console, compared, "title")
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def page_of(title: str, compared: "Comparison") -> str:
    origin = PageOrigin("1.2.3", "2026-01-31 12:00 UTC", "tidegate compare small.yaml")
    return comparison_page(title, compared, comparison_document(compared), origin)


def test_the_page_stands_alone_and_is_safe_with_names() -> None:
    compared = make_comparison({ODD: [100, 101], "b": [50, 51], "c": [0, 60]})
    settings = {
        target.name: BatchingSettings("triton 2.51.0", {"m": f"as {target.name} does"}) for target in compared.targets
    }
    page = page_of("a & b", replace(compared, settings=settings))
    check_alone(page)
    assert "<title>a &amp; b</title>" in page
    assert "<b>odd" not in page
    assert verdicts(page) == findings.verdicts(compared)
    assert headings(page)[:2] == [ROUNDS, f"Is the difference to {ODD} more than chance?"]
    for target in compared.targets:
        assert f"as {escape(target.name)} does" in page
        assert escape(target.address) in page


def test_rounds_and_differences_are_drawn_where_they_are() -> None:
    compared = make_comparison({"a": [100, 101, 100.5], "b": [50, 52, 51]}, attainment=lambda goodput: goodput / 101)
    page = page_of("t", compared)
    assert [said for _, said in dots(chart(page, ROUNDS))] == [
        "a, round 1: 99.0%",
        "a, round 2: 100.0%",
        "a, round 3: 99.5%",
        "b, round 1: 49.5%",
        "b, round 2: 51.5%",
        "b, round 3: 50.5%",
    ]
    apart = chart(page, "Is the difference to a more than chance?")
    ((mean, said),) = dots(apart)
    assert said.startswith("-49.0 points (")
    (line,) = [points for points in lines(apart).values() if len(points) == 2]
    assert line[0][0] < mean < line[1][0]
    labels = re.findall(r'x="([\d.]+)%" y="\d+" text-anchor="middle">(-?\d+)<', apart)
    at = {int(value): float(place) / 100 for place, value in labels}
    (one, other) = sorted(at)[0], sorted(at)[-1]
    assert one + (mean - at[one]) / (at[other] - at[one]) * (other - one) == pytest.approx(-49.0, abs=0.1)
    assert one >= -100


def test_the_table_shows_figures_differences_and_verdict() -> None:
    text = printed(make_comparison({ODD: [100, 101, 102], "b": [50, 51, 50], "c": [1, 2, 3]}, lateness_ms={"c": 7}))
    assert "98.5 .. 103.5" in text
    assert "Against <b>odd</b> [red], in the same rounds" in text
    assert "Means of 3 rounds" in text
    assert "c against <b>odd</b> [red]: not measured in 3 of 6 runs" in text
    assert "b has 5.0 % on time, a" not in text
    assert "b has 5.0 % on time, <b>odd</b> [red] 10.1 %: -5.1 points (" in text


def test_one_round_is_shown_without_intervals() -> None:
    text = printed(make_comparison({"a": [100], "b": [50]}))
    assert " .. " not in text
    assert "-50.0 %" in text


def test_where_nothing_is_complete_the_reason_is_shown() -> None:
    compared = make_comparison({"a": [100], "b": []}, rounds=2, stopped="round 1 of 2, b: gone")
    assert "ended early: round 1 of 2, b: gone" in printed(compared)
    assert "ended early: round 1 of 2, b: gone" in page_of("t", compared)
    assert comparison_document(compared)["complete_rounds"] == []


def test_the_document_says_all() -> None:
    compared = make_comparison({"a": [100, 102], "b": [50, 51]}, status={"b": ["OK", "UNAVAILABLE"]})
    document = json.loads(json.dumps(comparison_document(compared), allow_nan=False))
    assert document["command"] == "compare"
    assert document["targets"] == [
        {"name": "a", "address": "localhost:8001", "started_with": "", "is_plain": False},
        {"name": "b", "address": "localhost:8002", "started_with": "", "is_plain": False},
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
    assert document["verdicts"] == [
        "b has 5.1 % on time, a 10.1 %: -5.1 points in 2 rounds; chance is not ruled out, take 3 or more."
    ]
