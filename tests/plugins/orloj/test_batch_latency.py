"""How long batches take: the product of distribution functions is Equation 8, and the means are what draws say."""

from itertools import combinations
from math import factorial
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api import LatencyDistribution, Profile, ms_to_ns
from tidegate_orloj.batch_latency import (
    MAX_BINS,
    BatchLatency,
    BatchLaw,
    Floats,
    expected_ms,
    law_of_profile,
    law_of_several,
)


def times(*times_ms: float, fixed_ms: float = 0.0, scale: float = 1.0) -> LatencyDistribution:
    return LatencyDistribution("m", "a", "default", tuple(map(ms_to_ns, sorted(times_ms))), ms_to_ns(fixed_ms), scale)


def law(*times_ms: float, fixed_ms: float = 0.0, scale: float = 1.0) -> BatchLaw:
    return law_of_several([times(*times_ms, fixed_ms=fixed_ms, scale=scale)], [1.0])


def eight(shares: Floats, densities: Floats) -> Floats:
    """Equation 8 as it stands: the density of the maximum of k independent variables, summed over all subsets.

    `shares[i]`, `densities[i]`: distribution function and density of the i-th at the same points.
    """
    k = len(shares)
    total = np.zeros(shares.shape[1])
    for size in range(1, k + 1):
        for subset in combinations(range(k), size):
            mean_share = shares[list(subset)].mean(axis=0)
            mean_density = densities[list(subset)].mean(axis=0)
            sign = (-1) ** (k - size) * size**k / factorial(k)
            total += sign * k * mean_share ** (k - 1) * mean_density
    return total


def test_the_product_of_distribution_functions_is_equation_8() -> None:
    knots = [
        (np.array([1.0, 2.0, 5.0]), np.array([0.0, 0.7, 1.0])),
        (np.array([0.5, 4.0]), np.array([0.0, 1.0])),
        (np.array([2.0, 3.0, 6.0]), np.array([0.0, 0.2, 1.0])),
        (np.array([1.0, 2.0, 5.0]), np.array([0.0, 0.7, 1.0])),
    ]
    points = np.linspace(0.0, 7.0, 70_001)
    shares = np.array([np.interp(points, *each) for each in knots])
    densities = np.gradient(shares, points, axis=1)
    summed = eight(shares, densities)
    np.testing.assert_allclose(np.cumsum(summed) * (points[1] - points[0]), shares.prod(axis=0), atol=1e-3)
    mean_ms = np.sum(points * summed) * (points[1] - points[0])

    def known(number: int) -> BatchLaw:
        return BatchLaw(lambda rows: knots[number])

    # The histogram has as few bins as the functions have knots: a mean within a few per cent.
    assert expected_ms([known(0), known(1), known(2), known(0)], 4) == pytest.approx(mean_ms, rel=0.05)


@given(
    st.lists(st.lists(st.floats(5, 200), min_size=30, max_size=60), min_size=1, max_size=3),
    st.integers(1, 4),
    st.floats(0, 50),
    st.floats(0.1, 1),
)
def test_a_batch_of_known_requests_takes_what_draws_say(
    apps: list[list[float]], rows: int, fixed_ms: float, scale: float
) -> None:
    members = [number % len(apps) for number in range(rows)]
    laws = [law(*each, fixed_ms=fixed_ms, scale=scale) for each in apps]
    rng = Random(0)
    drawn = [max(rng.choice(apps[member]) for member in members) for _ in range(4000)]
    mean_ms = fixed_ms + scale * rows * sum(drawn) / len(drawn)
    assert expected_ms([laws[member] for member in members], rows) == pytest.approx(mean_ms, rel=0.1)


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_of_one_application_it_is_the_power_of_its_distribution_function(rows: int) -> None:
    points_ms = [10 + 90 * (point + 0.5) / 128 for point in range(128)]
    latency = BatchLatency([law(*points_ms)], np.ones(1), rows, rows - 1)
    mean_ms = rows * (10 + 90 * rows / (rows + 1))  # the mean of the maximum of uniform ones
    assert latency.mean_ms[0] == pytest.approx(mean_ms, rel=0.01)
    assert latency.mean_ms[0] == pytest.approx(times(*points_ms).expected_batch_ns(rows) / 1e6, rel=0.01)
    assert expected_ms([law(*points_ms)] * rows, rows) == pytest.approx(mean_ms, rel=0.01)


def test_what_is_known_of_a_request_counts() -> None:
    """A batch with a slow request takes longer than one of which nothing is known but that a quick one is in it."""
    latency = BatchLatency([law(10, 11, 12), law(100, 110, 120)], np.array([0.5, 0.5]), rows=2, others=1)
    quick_ms, slow_ms = latency.mean_ms
    assert quick_ms == pytest.approx(2 * (11 + 110) / 2, rel=0.05)  # the other one is slow every second time
    assert slow_ms == pytest.approx((2 * 110 + 2 * 113) / 2, rel=0.05)


PROFILE = Profile("m", "default", tuple(map(ms_to_ns, (10, 15, 20))), tuple(map(ms_to_ns, (12, 15, 30))))


def test_without_applications_half_of_what_a_margin_scatters_is_noise_of_whole_batches() -> None:
    """The margin of a profile is that of whole batches, and no request's own, of which the longest would count."""
    own, half = (BatchLatency([law_of_profile(PROFILE, 0.99, each)], np.ones(1), 3, 2) for each in (0.0, None))
    all_noise = BatchLatency([law_of_profile(PROFILE, 0.99, 1.0)], np.ones(1), 3, 2)
    assert all_noise.mean_ms[0] == pytest.approx(PROFILE.expected_ns(3) / 1e6, rel=0.01)
    assert all_noise.mean_ms[0] < half.mean_ms[0] < own.mean_ms[0]


@pytest.mark.parametrize("rows", [1, 3])
def test_a_shape_takes_what_its_profile_expects(rows: int) -> None:
    latency = BatchLatency([law_of_profile(PROFILE, 0.99)], np.ones(1), rows, others=0)
    assert latency.mean_ms[0] == pytest.approx(PROFILE.expected_ns(rows) / 1e6, rel=0.01)


def test_a_shape_is_as_late_as_its_profile_plans_one_time_in_a_hundred() -> None:
    latency = BatchLatency([law_of_profile(PROFILE, 0.99, 1.0)], np.ones(1), rows=3, others=2)
    later = latency.edges_ms[:-1] >= PROFILE.upper_ns(3) / 1e6
    assert (latency.density[0] * np.diff(latency.edges_ms))[later].sum() == pytest.approx(0.01, abs=0.015)


def test_where_applications_show_the_noise_the_rest_of_a_margin_is_what_requests_differ_by() -> None:
    latency = BatchLatency([law_of_profile(PROFILE, 0.99, noise_cv=0.0)], np.ones(1), rows=3, others=0)
    assert latency.edges_ms[-1] == pytest.approx(PROFILE.upper_ns(3) / 1e6, rel=0.01)
    larger = BatchLatency([law_of_profile(PROFILE, 0.99, noise_cv=0.0)], np.ones(1), rows=3, others=2)
    assert larger.mean_ms[0] > latency.mean_ms[0]


@pytest.mark.parametrize("rows", [1, 2, 8])
@pytest.mark.parametrize("noise_cv", [0.05, 0.3, 0.8])
def test_noise_scatters_a_batch_and_does_not_grow_with_it(rows: int, noise_cv: float) -> None:
    points_ms = [40 + 20 * (point + 0.5) / 128 for point in range(128)]
    quiet = BatchLatency([law(*points_ms)], np.ones(1), rows, rows - 1)
    noisy = BatchLatency([law(*points_ms)._replace(noise_cv=noise_cv)], np.ones(1), rows, rows - 1)
    assert noisy.mean_ms[0] == pytest.approx(quiet.mean_ms[0])
    middles = (noisy.edges_ms[:-1] + noisy.edges_ms[1:]) / 2
    mass = noisy.density[0] * np.diff(noisy.edges_ms)
    mean_ms = mass @ middles
    assert mass.sum() == pytest.approx(1.0)
    assert mean_ms == pytest.approx(quiet.mean_ms[0], rel=0.03)
    quiet_mass = quiet.density[0] * np.diff(quiet.edges_ms)
    quiet_middles = (quiet.edges_ms[:-1] + quiet.edges_ms[1:]) / 2
    quiet_cv2 = quiet_mass @ (quiet_middles / quiet.mean_ms[0] - 1) ** 2
    expected_cv = np.sqrt(quiet_cv2 + noise_cv**2 * (1 + quiet_cv2))
    assert np.sqrt(mass @ (middles / mean_ms - 1) ** 2) == pytest.approx(expected_cv, rel=0.12)


@given(st.lists(st.lists(st.floats(0, 1e4), min_size=1, max_size=130), min_size=1, max_size=8), st.integers(1, 64))
def test_histograms_are_distributions(apps: list[list[float]], rows: int) -> None:
    latency = BatchLatency([law(*each) for each in apps], np.full(len(apps), 1 / len(apps)), rows, rows - 1)
    widths = np.diff(latency.edges_ms)
    assert (widths > 0).all()
    assert len(widths) <= MAX_BINS
    assert (latency.density >= -1e-12).all()
    np.testing.assert_allclose(latency.density @ widths, 1.0)
    assert (latency.mean_ms >= latency.edges_ms[0] - 1e-9).all()
    assert (latency.mean_ms <= latency.edges_ms[-1] + 1e-9).all()


@pytest.mark.parametrize("rows", [1, 4])
def test_applications_that_are_taken_for_one_take_what_draws_from_both_say(rows: int) -> None:
    """However their own fixed costs differ, and more often what comes more often."""
    one = times(*range(10, 30), fixed_ms=8, scale=0.3)
    other = times(*range(40, 60), fixed_ms=10, scale=0.5)
    pooled = law_of_several([one, other], [3.0, 1.0])
    rng = Random(0)

    def drawn_ms() -> float:
        of = one if rng.random() < 0.75 else other
        return (of.fixed_ns + of.scale * rng.choice(of.times_ns)) / 1e6

    fixed_ms = 0.75 * 8 + 0.25 * 10
    longest = [fixed_ms + rows * (max(drawn_ms() for _ in range(rows)) - fixed_ms) for _ in range(4000)]
    assert expected_ms([pooled] * rows, rows) == pytest.approx(sum(longest) / len(longest), rel=0.03)
    assert pooled.mean_ms(1) == pytest.approx(0.75 * (8 + 0.3 * 19.5) + 0.25 * (10 + 0.5 * 49.5), rel=0.02)
