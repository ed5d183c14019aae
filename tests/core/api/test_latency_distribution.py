"""Distributions of execution times: against drawing from them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api import LatencyDistribution

times = st.lists(st.integers(1, 10**9), min_size=1, max_size=64).map(sorted).map(tuple)


def distribution(times_ns: tuple[int, ...], *, fixed_ns: float = 0.0, scale: float = 1.0) -> LatencyDistribution:
    return LatencyDistribution("m", "chat", "default", times_ns, fixed_ns, scale)


@given(times, st.integers(1, 64))
def test_a_batch_takes_at_least_its_mean_and_at_most_its_longest(times_ns: tuple[int, ...], requests: int) -> None:
    alone = distribution(times_ns)
    assert alone.expected_batch_ns(1) == pytest.approx(alone.mean_ns)
    expected_ns = alone.expected_batch_ns(requests)
    assert requests * alone.mean_ns * 0.999 <= expected_ns <= requests * times_ns[-1] * 1.001


def test_a_batch_is_padded_to_its_longest() -> None:
    rng = random.Random(1)
    alone = distribution(tuple(sorted(rng.randint(1, 1000) for _ in range(64))), fixed_ns=500, scale=0.5)
    drawn = [500 + 0.5 * 4 * max(rng.choices(alone.times_ns, k=4)) for _ in range(20_000)]
    assert alone.expected_batch_ns(4) == pytest.approx(sum(drawn) / len(drawn), rel=0.02)
