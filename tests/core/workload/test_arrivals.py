"""Arrival processes: what holds for every seed, and the moments that their names promise."""

from itertools import pairwise
from random import Random
from statistics import mean, stdev

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.workload import Arrivals, Gamma, Poisson, Uniform, VaryingRate
from tidegate.workload.arrivals import NS_PER_S

rates = st.floats(0.01, 2000)
processes = st.one_of(
    st.builds(Poisson, rates),
    st.builds(Gamma, rates, st.floats(0.05, 20)),
    st.builds(Uniform, rates),
    st.just(VaryingRate(0.5, Gamma(1, 2), ((0, 100), (0.2, 0), (0.3, 700)))),
)
durations = st.integers(0, NS_PER_S)


@given(processes, durations, st.integers())
def test_arrivals_are_ordered_and_inside_the_window(process: Arrivals, duration_ns: int, seed: int) -> None:
    instants = list(process.instants_ns(duration_ns, Random(seed)))
    assert instants == sorted(instants)
    assert all(0 <= at_ns < duration_ns for at_ns in instants)


@given(processes, durations, st.integers())
def test_equal_seeds_give_equal_arrivals(process: Arrivals, duration_ns: int, seed: int) -> None:
    first, second = (list(process.instants_ns(duration_ns, Random(seed))) for _ in range(2))
    assert first == second


@given(processes, durations, st.integers())
def test_a_longer_window_only_adds_arrivals(process: Arrivals, duration_ns: int, seed: int) -> None:
    short = list(process.instants_ns(duration_ns, Random(seed)))
    longer = list(process.instants_ns(2 * duration_ns, Random(seed)))
    assert longer[: len(short)] == short


@pytest.mark.parametrize(
    ("process", "variation"),
    [(Poisson(500), 1.0), (Gamma(500, 0.25), 2.0), (Gamma(500, 4), 0.5), (Uniform(500), 0.0)],
)
def test_rate_and_burstiness_are_the_promised_ones(process: Arrivals, variation: float) -> None:
    instants = list(process.instants_ns(60 * NS_PER_S, Random(7)))
    gaps = [later - earlier for earlier, later in pairwise(instants)]
    assert len(instants) / 60 == pytest.approx(500, rel=0.05)
    assert stdev(gaps) / mean(gaps) == pytest.approx(variation, abs=0.05, rel=0.05)


@given(st.floats(0.5, 500))
def test_uniform_arrivals_fill_the_window_exactly(rate_rps: float) -> None:
    instants = list(Uniform(rate_rps).instants_ns(NS_PER_S, Random(0)))
    assert instants[0] == 0
    assert len(instants) == pytest.approx(rate_rps, abs=1)


@pytest.mark.parametrize("rate_rps", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_must_be_positive_and_finite(rate_rps: float) -> None:
    with pytest.raises(ValueError, match="rate_rps must be positive"):
        Poisson(rate_rps)


def test_a_shape_must_be_positive() -> None:
    with pytest.raises(ValueError, match="shape must be positive"):
        Gamma(10, 0)


@pytest.mark.parametrize(
    ("unit", "steps", "problem"),
    [
        (Poisson(2), ((0, 100),), "unit: its rate_rps must be 1, not 2"),
        (Poisson(1), (), "must begin at 0 s and rise"),
        (Poisson(1), ((1, 100),), "must begin at 0 s and rise"),
        (Poisson(1), ((0, 100), (2, 50), (2, 70)), "must begin at 0 s and rise"),
        (Poisson(1), ((0, 100), (float("nan"), 50)), "must begin at 0 s and rise"),
        (Poisson(1), ((0, -1),), "must be finite and not negative"),
        (Poisson(1), ((0, float("inf")),), "must be finite and not negative"),
    ],
)
def test_steps_must_rise_and_have_rates(unit: Poisson, steps: tuple[tuple[float, float], ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        VaryingRate(1, unit, steps)


@given(processes)
def test_a_process_survives_json(process: Arrivals) -> None:
    assert msgspec.json.decode(msgspec.json.encode(process), type=Poisson | Gamma | Uniform | VaryingRate) == process


def test_every_step_has_its_own_rate() -> None:
    process = VaryingRate(0.5, Poisson(1), ((0, 1000), (10, 0), (15, 4000)))
    instants = [at_ns / NS_PER_S for at_ns in process.instants_ns(25 * NS_PER_S, Random(3))]
    assert sum(at_s < 10 for at_s in instants) == pytest.approx(5000, rel=0.05)
    assert not [at_s for at_s in instants if 10 <= at_s < 15]
    assert sum(at_s >= 15 for at_s in instants) == pytest.approx(20_000, rel=0.05)


def test_evenly_spaced_arrivals_stay_so_within_a_step() -> None:
    process = VaryingRate(1, Uniform(1), ((0, 2), (2, 4)))
    instants = [at_ns / NS_PER_S for at_ns in process.instants_ns(3 * NS_PER_S, Random(0))]
    assert instants == [0, 0.5, 1, 1.5, 2, 2.25, 2.5, 2.75]


def test_a_load_that_ends_for_good_ends() -> None:
    process = VaryingRate(1, Uniform(1), ((0, 2), (1, 0)))
    assert len(list(process.instants_ns(1000 * NS_PER_S, Random(0)))) == 2
