"""Rates have drifted where they are off by more than was agreed, and by more than chance."""

from random import Random

import pytest

from tests.core.control.layouts import layout
from tidegate.control.rates import SteadyRates, check_models, have_drifted


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


def test_what_chance_does_to_short_periods_is_averaged_out() -> None:
    """Thirty requests are expected in a period, whose count is off by five; the mean of fifteen by one or two."""
    rng, rates = Random(0), SteadyRates(remembered_s=30)
    came = [sum(rng.random() < 0.01 for _ in range(3000)) / 2 for _ in range(40)]
    believed = [rates.observe({"m": rate}, 2)["m"] for rate in came]
    assert max(abs(rate - 15) for rate in came) > 4
    assert max(abs(rate - 15) for rate in believed[15:]) < 2.5


def test_a_jump_is_believed_at_once() -> None:
    rates = SteadyRates()
    for _ in range(10):
        assert rates.observe({"m": 100, "other": 50}, 2) == {"m": 100, "other": 50}
    assert rates.observe({"m": 200, "other": 50}, 2) == {"m": 200, "other": 50}
    assert rates.observe({"m": 0, "other": 50}, 2) == {"m": 0, "other": 50}


def test_rates_that_creep_are_followed() -> None:
    rates = SteadyRates(remembered_s=10)
    for step in range(100):
        believed = rates.observe({"m": 10 + 0.1 * step}, 2)["m"]
    assert believed == pytest.approx(19.9, abs=0.6)
