"""Rates have drifted where they are off by more than was agreed, and by more than chance."""

import pytest

from tests.core.control.layouts import layout
from tidegate.control.rates import check_models, have_drifted


@pytest.mark.parametrize(
    ("rate_rps", "period_s", "drifted"),
    [
        (100, 10, False),
        (119, 10, False),  # within the fifth that was agreed
        (121, 1000, True),
        (121, 1, False),  # 21 more than 100 happen by chance, three deviations of which are 33
        (140, 1, True),
        (79, 1000, True),
    ],
)
def test_a_drift_is_more_than_was_agreed_and_more_than_chance(rate_rps: float, period_s: float, drifted: bool) -> None:
    assert have_drifted({"m": rate_rps}, {"m": 100.0}, period_s, drift=0.2) is drifted


def test_one_model_is_enough() -> None:
    assert have_drifted({"m": 100, "other": 900}, {"m": 100, "other": 500}, 10, drift=0.2)


def test_the_models_of_a_problem_are_those_that_are_served() -> None:
    check_models(["other", "m"], layout({"a": ["m"], "b": ["other"]}))
    with pytest.raises(ValueError, match="'gone' is in one of the two only: give the problem"):
        check_models(["m", "gone"], layout({"a": ["m"]}))
