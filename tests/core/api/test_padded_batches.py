"""What padded batches take: the expectation and the quantile of the longest of their requests."""

import itertools
from math import log, sqrt
from random import Random
from statistics import NormalDist

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api import LatencyDistribution, Profile

times_ns = st.lists(st.integers(1_000, 10**8), min_size=1, max_size=4).map(sorted).map(tuple)


def times_of(app: str, *points: int, fixed_ns: float = 0.0, scale: float = 1.0) -> LatencyDistribution:
    return LatencyDistribution("m", app, "default", points, fixed_ns, scale)


def like(max_rows: int) -> Profile:
    return Profile.linear("m", alpha_ms=1, beta_ms=1, max_rows=max_rows, shape="of a class")


@given(one=times_ns, other=times_ns, share=st.integers(1, 9), quantile=st.sampled_from((0.5, 0.9, 0.99)))
def test_it_is_what_all_the_ways_to_draw_a_batch_say(
    one: tuple[int, ...], other: tuple[int, ...], share: int, quantile: float
) -> None:
    """Batches of up to three, enumerated: the mean of the longest, and the least time that covers the quantile."""
    among = [times_of("one", *one, fixed_ns=500, scale=0.5), times_of("other", *other, fixed_ns=500, scale=0.5)]
    profile = LatencyDistribution.profile_of_batches(among, {"one": share, "other": 1}, like(3), quantile)
    drawn = [(time_ns, share / len(one)) for time_ns in one] + [(time_ns, 1 / len(other)) for time_ns in other]
    for rows in (1, 2, 3):
        mean_ns, chances = 0.0, dict.fromkeys((time_ns for time_ns, _ in drawn), 0.0)
        for batch in itertools.product(drawn, repeat=rows):
            chance = 1.0
            for _, each in batch:
                chance *= each / (share + 1)
            longest_ns = max(time_ns for time_ns, _ in batch)
            chances[longest_ns] += chance
            mean_ns += chance * longest_ns
        assert profile.expected_ns(rows) == pytest.approx(500 + 0.5 * rows * mean_ns, rel=1e-6, abs=2)
        within = sum(
            chance for time_ns, chance in chances.items() if 499 + 0.5 * rows * time_ns <= profile.upper_ns(rows)
        )
        assert within >= quantile - 1e-6
        assert profile.upper_ns(rows) >= profile.expected_ns(rows)


@given(times=times_ns, max_rows=st.integers(1, 700))
def test_it_is_a_profile_of_what_was_asked_for(times: tuple[int, ...], max_rows: int) -> None:
    profile = LatencyDistribution.profile_of_batches([times_of("one", *times)], {"one": 0.1}, like(max_rows), 0.99)
    assert profile.key == ("m", "default", "of a class")
    assert profile.max_rows == max_rows


@pytest.mark.parametrize("noise_cv", [0.1, 0.3, 0.6])
@pytest.mark.parametrize("own_cv", [0.0, 0.2])
def test_noise_widens_the_margin_of_every_size_by_the_same_share_and_is_no_longer_with_more_requests(
    noise_cv: float, own_cv: float
) -> None:
    own = NormalDist(1e6, own_cv * 1e6) if own_cv else None
    points = tuple(round(own.inv_cdf((at + 0.5) / 128)) if own else 10**6 for at in range(128))
    quiet, noisy = (
        LatencyDistribution.profile_of_batches(
            [msgspec.structs.replace(times_of("one", *points), noise_cv=each)], {"one": 1.0}, like(8), 0.99
        )
        for each in (0.0, noise_cv)
    )
    rng = Random(11)
    sigma = sqrt(log(1 + noise_cv**2))
    for rows in (1, 4, 8):
        assert noisy.expected_ns(rows) == quiet.expected_ns(rows)
        drawn = sorted(
            rows * max(rng.choice(points) for _ in range(rows)) * rng.lognormvariate(-(sigma**2) / 2, sigma)
            for _ in range(4000)
        )
        assert noisy.upper_ns(rows) == pytest.approx(drawn[int(0.99 * len(drawn))], rel=0.12)


def test_of_no_application_there_is_none() -> None:
    with pytest.raises(ValueError, match="no applications"):
        LatencyDistribution.profile_of_batches([], {}, like(4), 0.99)
