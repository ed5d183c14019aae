"""Verdicts and warnings, from rounds with known figures."""

from typing import Any

import pytest

from tests.loadtest.comparison.conftest import make_comparison
from tidegate_loadtest.comparison.findings import (
    ATTAINMENT_FIGURE,
    COMPARED_FIGURES,
    GOODPUT_FIGURE,
    contrast_of,
    interval_of,
    verdicts,
    warnings,
)


def test_a_clear_difference_has_its_interval() -> None:
    compared = make_comparison({"direct": [100, 110, 105], "tidegate": [112, 125, 117]})
    (verdict,) = verdicts(compared)
    assert verdict.startswith("tidegate has 11.8 % on time, direct 10.5 %: +1.3 points (+0.")
    assert verdict.endswith(").")
    contrast = contrast_of(compared, compared.targets[1], compared.targets[0], GOODPUT_FIGURE)
    assert str(contrast).startswith("+12.4 % (+")


def test_a_loss_is_said_as_plainly() -> None:
    (verdict,) = verdicts(make_comparison({"a": [200, 202, 201], "b": [100, 101, 100.5]}))
    assert verdict == "b has 10.0 % on time, a 20.1 %: -10.0 points (-10.2 .. -9.9)."


def test_what_the_rounds_do_not_show_is_no_difference() -> None:
    (verdict,) = verdicts(make_comparison({"a": [100, 110, 105], "b": [104, 103, 111]}))
    assert verdict.startswith("b has 10.6 % on time, a 10.5 %: no difference that 3 rounds show, +")


def test_one_round_rules_out_no_chance() -> None:
    (verdict,) = verdicts(make_comparison({"a": [100], "b": [200]}))
    assert verdict == (
        "b has 20.0 % on time, a 10.0 %: +10.0 points in one round; chance is not ruled out, take 3 or more."
    )


def test_two_rounds_have_no_interval() -> None:
    (verdict,) = verdicts(make_comparison({"a": [100, 101], "b": [200, 201]}))
    assert verdict == (
        "b has 20.1 % on time, a 10.1 %: +10.0 points in 2 rounds; chance is not ruled out, take 3 or more."
    )


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"lateness_ms": {"b": 5.1}}, "b: the load generator fell behind its schedule (p99 5.1 ms late)"),
        ({"status": {"b": ["OK"] * 98 + ["CLIENT_TIMEOUT", "CONNECTION_LOST"]}}, "b: 2 of 100 answers were lost"),
    ],
)
def test_what_does_not_measure_the_server_has_no_other_verdict(fields: dict[str, Any], reason: str) -> None:
    said = verdicts(make_comparison({"a": [100, 101, 102], "b": [200, 201, 202], "c": [100, 101, 102]}, **fields))
    assert said[0] == f"b against a: not measured in 3 of 6 runs, first {reason}."
    assert said[1].startswith("c has 10.1 % on time, a 10.1 %: no difference")


def test_one_lost_answer_of_a_hundred_is_a_miss() -> None:
    status = {"b": ["OK"] * 99 + ["CLIENT_TIMEOUT"]}
    (verdict,) = verdicts(make_comparison({"a": [100, 101, 102], "b": [200, 201, 202]}, status=status))
    assert verdict.startswith("b has ")


def test_every_other_is_compared_with_the_first() -> None:
    said = verdicts(make_comparison({"a": [10, 10.1], "b": [20, 20.2], "c": [5, 5.05]}))
    assert [line.partition(" has ")[0] for line in said] == ["b", "c"]


def test_without_any_goodput_it_is_a_difference() -> None:
    compared = make_comparison({"a": [0, 0, 0], "b": [50, 51, 49]})
    contrast = contrast_of(compared, compared.targets[1], compared.targets[0], GOODPUT_FIGURE)
    assert str(contrast) == "+50.0/s (+47.5 .. +52.5)"


def test_no_interval_says_what_cannot_be() -> None:
    """Rounds that are far apart: Student's t alone would leave 0 to 100 %, and say ratios of thousands."""
    compared = make_comparison({"a": [0.1, 95, 47], "b": [95, 0.1, 48]}, attainment=lambda goodput: goodput / 100)
    for target in compared.targets:
        for figure in COMPARED_FIGURES:
            found = interval_of(compared, target, figure)
            assert found is not None
            assert found.low is not None
            assert found.high is not None
            assert 0 <= found.low <= found.mean <= found.high
            if figure in (ATTAINMENT_FIGURE, GOODPUT_FIGURE):
                assert found.high <= max(figure.most(live.result.total) for live in compared.lives)
    one, other = compared.targets
    difference, ratio = (contrast_of(compared, other, one, figure) for figure in (ATTAINMENT_FIGURE, GOODPUT_FIGURE))
    assert difference is not None
    assert (difference.difference.low, difference.difference.high) == (-1, 1)
    assert ratio is not None
    assert ratio.ratio is not None
    assert ratio.ratio.high is not None
    assert ratio.ratio.high * 47.37 <= max(live.result.total.offered_rps for live in compared.lives) * 1.001


def test_what_is_missing_in_a_round_is_left_out() -> None:
    compared = make_comparison({"a": [1, 1], "b": [1, 1]})
    one, other = compared.targets
    busy = next(figure for figure in COMPARED_FIGURES if figure.name == "busy_share")
    compared.lives[0].result.total.busy_shares.clear()  # the server kept no statistics in that run
    contrast = contrast_of(compared, other, one, busy)
    assert contrast is not None
    assert contrast.difference.count == 1
    assert (found := interval_of(compared, one, busy)) is not None
    assert found.count == 1


def test_figures_are_of_complete_rounds() -> None:
    compared = make_comparison({"a": [100, 100, 900], "b": [100, 100]}, rounds=5, stopped="round 3 of 5, b: gone")
    assert compared.complete == [0, 1]
    found = interval_of(compared, compared.targets[0], GOODPUT_FIGURE)
    assert found is not None
    assert found.mean == 100
    assert warnings(compared) == [
        "ended early: round 3 of 5, b: gone",
        "only 2 of 5 rounds are complete: the figures are of these",
    ]


def test_no_complete_round_no_verdict() -> None:
    compared = make_comparison({"a": [100], "b": []}, rounds=2, stopped="round 1 of 2, b: gone")
    assert verdicts(compared) == []
    assert interval_of(compared, compared.targets[0], GOODPUT_FIGURE) is None


def test_failures_are_counted_with_their_first_message_and_drops_are_none() -> None:
    status = {"b": ["OK", "UNAVAILABLE", "timeout", "UNAVAILABLE"]}
    (warning,) = warnings(make_comparison({"a": [100], "b": [90]}, status=status))
    assert warning.startswith("b: 2 of ")
    assert warning.endswith(" requests failed; first UNAVAILABLE: said of UNAVAILABLE")
