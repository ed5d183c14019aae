"""Nobody is worse off behind the default policy than behind Triton's batcher: simulated, with times that scatter."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.examples import few
from tidegate.sim.result import RunResult
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario
from tidegate_symphony.policy import SymphonyOptions

DEFAULT = PolicyChoice(name="symphony")
TRITON = PolicyChoice(name="triton")
CONSOLIDATED = PolicyChoice(name="symphony", label="consolidated", options={"pack_workers": True})

SEEDS = few(range(2))
TRUE = {"alpha_ms": 2.0, "beta_ms": 8.0, "max_batch": 32}
PEAK_RPS = 400.0
"""Of one worker: batches of sixteen, 40 ms each, half of the SLO."""


def scenario(
    load: float, *, models: int = 4, workers: int = 4, told: dict[str, float] = TRUE, shape: float = 0
) -> Scenario:
    rate_rps = load * workers * PEAK_RPS
    arrivals = {"process": "gamma", "shape": shape} if shape else {"process": "poisson"}
    names = [f"m{number}" for number in range(models)]
    return Scenario.model_validate(
        {
            "warmup_s": 1,
            "duration_s": max(4.0, 1500 / rate_rps),
            "workers": [{"count": workers}],
            "models": [{"name": name, "slo_ms": 80, "profile": told} for name in names],
            "arrivals": {**arrivals, "rate_rps": rate_rps},
            "simulation": {"service": {name: {"profile": TRUE} for name in names}, "jitter": {"cv": 0.2}},
        }
    )


def runs(of: Scenario, seed: int, *choices: PolicyChoice) -> list[RunResult]:
    return [simulate(RunSpec(of, choice, seed)) for choice in choices]


def median_ms(result: RunResult) -> float:
    assert result.total.p50_ms is not None, "somebody was answered"
    return result.total.p50_ms


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", few([(1, 1), (12, 4), (1, 4), (4, 4)], 2))
def test_at_a_fifth_of_the_load_answers_come_as_soon_as_tritons(size: tuple[int, int], seed: int) -> None:
    models, workers = size
    ours, tritons = runs(scenario(0.2, models=models, workers=workers), seed, DEFAULT, TRITON)
    assert median_ms(ours) <= 1.05 * median_ms(tritons)
    assert ours.total.attainment >= tritons.total.attainment - 0.005


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("load", few([1.5, 1.1]))
def test_under_too_much_load_far_more_are_on_time(load: float, seed: int) -> None:
    ours, tritons = runs(scenario(load), seed, DEFAULT, TRITON)
    assert ours.total.attainment > tritons.total.attainment + 0.1


def test_to_consolidate_costs_what_the_readme_says() -> None:
    """Fewer workers are busy, and answers take most of the SLO."""
    ours, consolidated = runs(scenario(0.2, workers=16), 1, DEFAULT, CONSOLIDATED)
    assert consolidated.total.busy_share < 0.8 * ours.total.busy_share
    assert median_ms(consolidated) > 3 * median_ms(ours)
    assert consolidated.total.attainment >= 0.99


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "told",
    [
        {"alpha_ms": 0.05, "beta_ms": 0.5, "max_batch": 32},  # what the proxy begins with
        {"alpha_ms": 4.0, "beta_ms": 60.0, "max_batch": 32},  # much too long, and yet less than the SLO
    ],
    ids=["nothing", "too much"],
)
def test_nothing_is_dropped_on_a_guess(told: dict[str, float], seed: int) -> None:
    """Nobody measured the models; what is expected at first is wrong, and the load is light."""
    (ours,) = runs(scenario(0.1, told=told), seed, DEFAULT)
    assert sum(ours.total.dropped.values()) == 0
    assert ours.total.attainment >= 0.995


@pytest.fixture(scope="module")
def overload() -> Scenario:
    """Quick and slow requests, more than two workers can serve."""
    told = {"quick": (2.0, 0.5), "slow": (30.0, 15.0)}
    return Scenario.model_validate(
        {
            "warmup_s": 1,
            "duration_s": 6,
            "workers": [{"count": 2}],
            "models": [
                {"name": name, "slo_ms": 150, "profile": {"alpha_ms": alpha_ms, "beta_ms": beta_ms, "max_batch": 8}}
                for name, (beta_ms, alpha_ms) in told.items()
            ],
            "arrivals": {"process": "poisson", "rate_rps": 300},
            "simulation": {"jitter": {"cv": 0.2}},
        }
    )


def test_in_overload_quick_models_are_served_more_than_slow_ones_unless_fair_is_chosen(overload: Scenario) -> None:
    """By `requests` more are on time in all; by `fair` the worst model keeps more."""
    fair = PolicyChoice(name="symphony", label="fair", options={"objective": "fair"})
    by_requests, by_urgency = runs(overload, 1, DEFAULT, fair)
    assert by_requests.total.attainment > by_urgency.total.attainment + 0.05
    assert by_requests.total.worst_bad_rate > by_urgency.total.worst_bad_rate


def test_in_overload_models_are_served_by_their_weights(overload: Scenario) -> None:
    """Weights of 1 change nothing; a slow model of a large weight is served before quick ones."""
    options = [{"objective": "weighted", "weights": {"slow": weight}} for weight in (1, 100)]
    choices = [PolicyChoice(name="symphony", label=str(number), options=each) for number, each in enumerate(options)]
    unweighted, alike, weighted = runs(overload, 1, DEFAULT, *choices)
    assert alike.total.attainment == unweighted.total.attainment
    before, after = ({row.model: row.attainment for row in run.rows}["slow"] for run in (unweighted, weighted))
    assert after > before + 0.04


@pytest.mark.parametrize("options", [{"objective": "weighted"}, {"weights": {"slow": 2}}])
def test_weights_belong_to_their_objective(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="`objective: weighted` needs them"):
        SymphonyOptions.model_validate(options)


def test_weights_need_adaptive_deferral() -> None:
    with pytest.raises(ValidationError, match="objective: weighted needs `deferral: adaptive`"):
        SymphonyOptions(deferral="frontrun", objective="weighted", weights={"slow": 2})
