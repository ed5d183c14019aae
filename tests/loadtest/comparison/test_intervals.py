"""Student's t by known values, and what must hold whatever was measured."""

import math
from statistics import stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_loadtest.comparison.intervals import ConfidenceInterval, difference_of, mean_of, ratio_of

numbers = st.floats(min_value=-1e6, max_value=1e6)
positive = st.floats(min_value=1e-3, max_value=1e6)
pairs_of_positive = st.lists(st.tuples(positive, positive), min_size=3, max_size=8)


def ends(interval: ConfidenceInterval | None) -> tuple[float, float, float]:
    assert interval is not None
    assert interval.low is not None
    assert interval.high is not None
    return interval.mean, interval.low, interval.high


@pytest.mark.parametrize(
    ("values", "mean", "half"),
    [
        # quantiles of the tables: t(0.975, 4) = 2.7764, t(0.975, 2) = 4.3027, t(0.975, 9) = 2.2622
        ([1, 2, 3, 4, 5], 3, 2.7764451 * math.sqrt(2.5 / 5)),
        ([10, 12, 11], 11, 4.3026527 * math.sqrt(1 / 3)),
        (list(range(10)), 4.5, 2.2621572 * math.sqrt((82.5 / 9) / 10)),
        ([7, 7, 7], 7, 0),
    ],
)
def test_the_interval_is_that_of_student(values: list[float], mean: float, half: float) -> None:
    found = ends(mean_of(values))
    assert found == pytest.approx((mean, mean - half, mean + half), rel=1e-6)


def test_two_values_have_no_interval_and_none_has_no_mean() -> None:
    assert mean_of([3.0]) == ConfidenceInterval(3.0, None, None, 1)
    assert mean_of([3.0, 5.0]) == ConfidenceInterval(4.0, None, None, 2)
    assert mean_of([]) is None
    assert difference_of([]) is None
    assert ratio_of([]) is None
    assert not ConfidenceInterval(3.0, None, None, 1).excludes(0)


def test_pairs_take_out_what_the_rounds_have_in_common() -> None:
    rounds = [100.0, 300.0, 200.0, 50.0]  # that differ much more than the two do
    found = difference_of([(load + 10 + drift, load) for load, drift in zip(rounds, (0, 1, -1, 0.5), strict=True)])
    assert found is not None
    assert found.excludes(0)
    assert found.mean == pytest.approx(10.125)


def test_a_ratio_is_the_geometric_mean_and_its_interval() -> None:
    mean, low, high = ends(ratio_of([(110, 100), (121, 100), (110, 100)]))
    assert mean == pytest.approx((1.1 * 1.21 * 1.1) ** (1 / 3))
    half = 4.3026527 * stdev(map(math.log, (1.1, 1.21, 1.1))) / math.sqrt(3)
    assert (low, high) == pytest.approx((mean * math.exp(-half), mean * math.exp(half)), rel=1e-6)


@pytest.mark.parametrize("pairs", [[(1.0, 0.0), (1.0, 1.0)], [(0.0, 1.0), (1.0, 1.0)]])
def test_there_is_no_ratio_where_one_is_zero(pairs: list[tuple[float, float]]) -> None:
    assert ratio_of(pairs) is None
    assert difference_of(pairs) is not None


@given(st.lists(numbers, min_size=3, max_size=8), numbers)
def test_a_shift_shifts_the_interval(values: list[float], shift: float) -> None:
    shifted = ends(mean_of([value + shift for value in values]))
    scale = max(map(abs, (*values, shift)), default=1)
    assert shifted == pytest.approx([end + shift for end in ends(mean_of(values))], rel=1e-6, abs=1e-6 * scale + 1e-9)


@given(pairs_of_positive)
def test_who_is_the_base_decides_the_direction_only(pairs: list[tuple[float, float]]) -> None:
    mean, low, high = ends(ratio_of(pairs))
    assert low <= mean <= high
    back = ends(ratio_of([(base, value) for value, base in pairs]))
    assert back == pytest.approx((1 / mean, 1 / high, 1 / low), rel=1e-6)


@given(st.lists(positive, min_size=3, max_size=8))
def test_equals_are_never_told_apart(values: list[float]) -> None:
    pairs = [(value, value) for value in values]
    for interval, same in ((difference_of(pairs), 0.0), (ratio_of(pairs), 1.0)):
        assert interval is not None
        assert not interval.excludes(same)


def test_to_cut_off_what_cannot_be_takes_no_confidence() -> None:
    """Shares near all of it, five at a time: cut at 1, the interval holds the true mean as often as it did."""
    rng = np.random.default_rng(0)
    samples = rng.beta(30, 2, (4000, 5)).tolist()
    found = [mean_of(sample) for sample in samples]
    cut = [each.within(0.0, 1.0) for each in found if each]
    held = [[not each.excludes(30 / 32) for each in some if each] for some in (found, cut)]
    assert held[0] == held[1]
    assert any(each.high == 1 for each in cut)
    assert all(each.low is not None and each.low <= each.mean for each in cut)


def test_it_holds_the_true_mean_in_95_of_100_cases() -> None:
    rng = np.random.default_rng(0)
    samples = rng.normal(5.0, 2.0, (4000, 4)).tolist()
    held = sum(not found.excludes(5.0) for sample in samples if (found := mean_of(sample)))
    assert 0.94 < held / len(samples) < 0.96
