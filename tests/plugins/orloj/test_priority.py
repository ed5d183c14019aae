"""The priority of a request: Equation 2 as the paper writes it, bin by bin, and what follows from it."""

from itertools import pairwise
from math import exp, expm1

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_orloj.batch_latency import BatchLatency, BatchLaw
from tidegate_orloj.priority import PriorityCurve

EDGES = st.lists(st.floats(1, 300), min_size=2, max_size=8, unique=True).map(sorted)
RATES = st.sampled_from([1e-6, 1e-4, 1e-2, 1e-1])


def latency_of(edges_ms: list[float]) -> BatchLatency:
    """Of two applications: one whose bins are equally probable, one with all of its mass in the last bin."""
    shares = np.linspace(0, 1, len(edges_ms))
    last = np.array([0.0] * (len(edges_ms) - 1) + [1.0])
    knots = [(np.array(edges_ms), shares), (np.array(edges_ms), last)]
    return BatchLatency([BatchLaw(lambda rows, each=each: each) for each in knots], np.full(2, 0.5), 1, 0)  # type: ignore[misc]


def equation_2(
    latency: BatchLatency, app: int | tuple[int, int], due_ms: float, now_ms: float, b: float, cost: float = 1.0
) -> float:
    """As it is printed, with h a density, exp(-b*D) * exp(b*t) taken together, as they overflow apart,
    and the difference of two nearly equal powers by `expm1`."""
    total = 0.0
    factor = cost / (latency.mean_ms[app] * b)
    for (low_ms, high_ms), density in zip(pairwise(latency.edges_ms), latency.density[app], strict=True):
        if now_ms < due_ms - high_ms:
            total += density * factor * exp(b * (low_ms - due_ms + now_ms)) * expm1(b * (high_ms - low_ms))
        elif now_ms < due_ms - low_ms:
            total -= density * factor * expm1(b * (low_ms - due_ms + now_ms))
    return total


@given(EDGES, RATES, st.floats(0, 500), st.floats(0, 700), st.integers(0, 1))
def test_it_is_equation_2(edges_ms: list[float], b: float, now_ms: float, due_ms: float, app: int) -> None:
    latency = latency_of(edges_ms)
    alpha, beta, _ = PriorityCurve(latency, b).lines(np.array([app]), np.array([due_ms]), now_ms)
    expected = equation_2(latency, app, due_ms, now_ms, b)
    assert alpha[0] * exp(b * now_ms) + beta[0] == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(EDGES, RATES, st.floats(0, 500), st.floats(0, 700), st.floats(0, 1))
def test_until_its_milestone_it_is_one_line(
    edges_ms: list[float], b: float, now_ms: float, due_ms: float, share: float
) -> None:
    latency = latency_of(edges_ms)
    alpha, beta, milestone_ms = PriorityCurve(latency, b).lines(np.array([0]), np.array([due_ms]), now_ms)
    later_ms = now_ms + share * (min(float(milestone_ms[0]), now_ms + 1000) - now_ms) * 0.999
    expected = equation_2(latency, 0, due_ms, later_ms, b)
    assert alpha[0] * exp(b * later_ms) + beta[0] == pytest.approx(expected, rel=1e-5, abs=1e-8)


@given(EDGES, RATES, st.floats(0, 400), st.tuples(st.floats(1, 400), st.floats(1, 400)), st.floats(0.1, 5))
def test_steps_of_cost_are_summed(
    edges_ms: list[float], b: float, now_ms: float, dues_ms: tuple[float, float], more: float
) -> None:
    """Appendix B: the cost of the first deadline, and what the second one adds to it."""
    latency = latency_of(edges_ms)
    first_ms, second_ms = sorted(dues_ms)
    steps = [(np.array([first_ms]), 1.0), (np.array([second_ms]), more)]
    alpha, beta, milestone_ms = PriorityCurve(latency, b).lines_of_steps(np.array([1]), steps, now_ms)
    expected = equation_2(latency, 1, first_ms, now_ms, b) + equation_2(latency, 1, second_ms, now_ms, b, more)
    assert alpha[0] * exp(b * now_ms) + beta[0] == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert milestone_ms[0] >= now_ms - 1e-9


def test_with_a_small_b_it_is_the_chance_to_be_on_time_per_expected_time() -> None:
    latency = latency_of([10, 20, 30])
    alpha, beta, _ = PriorityCurve(latency, 1e-9).lines(np.zeros(4, int), np.array([5.0, 15.0, 25.0, 100.0]), 0.0)
    np.testing.assert_allclose((alpha + beta) * latency.mean_ms[0], [0, 0.25, 0.75, 1], atol=1e-6)


def test_large_instants_do_not_overflow() -> None:
    latency = latency_of([1000, 10_000])
    alpha, beta, _ = PriorityCurve(latency, 0.1).lines(np.zeros(2, int), np.array([9_000.0, 9e12]), 8_000.0)
    assert np.isfinite(alpha).all()
    assert np.isfinite(beta).all()
