"""Scenarios whose applications have times of their own: what batches take, and what policies are told of them."""

from typing import Any

import pytest

from tidegate.api import ms_to_ns
from tidegate.sim.build import setup_of
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario

FIXED_MS = 20.0
QUICK = {"name": "quick", "weight": 3, "time_ms": {"distribution": "table", "values": [5, 15]}, "known_to_policy": True}
SLOW = {
    "name": "slow",
    "weight": 1,
    "time_ms": {"distribution": "normal", "mean": 50, "std": 5},
    "known_to_policy": True,
}


def scenario(*apps: dict[str, Any], rows: int = 4) -> Scenario:
    """Batches take 20 ms, and for each row the longest of what their requests carry."""
    return Scenario.model_validate(
        {
            "warmup_s": 0,
            "duration_s": 20,
            "workers": [{"count": 1}],
            "models": [
                {
                    "name": "m",
                    "profile": {"alpha_ms": 20, "beta_ms": 20, "max_batch": rows},
                    "apps": list(apps),
                }
            ],
            "arrivals": {"process": "uniform", "rate_rps": 10},
            "simulation": {
                "learn": False,
                "service": {"m": {"profile": {"alpha_ms": 0, "beta_ms": FIXED_MS}, "combine": "padded"}},
            },
        }
    )


def test_policies_are_told_the_distributions_of_those_that_they_are_to_be_told_of() -> None:
    hidden = {**SLOW, "known_to_policy": False}
    (told,) = setup_of(scenario(QUICK, hidden), 0).latency_distributions
    assert (told.model, told.app, told.device_class) == ("m", "quick", "default")
    assert setup_of(scenario(hidden), 0).latency_distributions == ()


def test_what_is_told_has_the_mean_of_the_stand_alone_times_and_the_true_law_of_batches() -> None:
    quick, slow = setup_of(scenario(QUICK, SLOW), 0).latency_distributions
    mean_ns = (3 * quick.mean_ns + slow.mean_ns) / 4
    assert mean_ns == pytest.approx(ms_to_ns(FIXED_MS + (3 * 10 + 50) / 4), rel=1e-3)
    for rows in (1, 2, 4):
        longest_ms = 5 * 0.5**rows + 15 * (1 - 0.5**rows)
        assert quick.expected_batch_ns(rows) == pytest.approx(ms_to_ns(FIXED_MS + rows * longest_ms), rel=1e-3)
        assert slow.fixed_ns + slow.scale * rows * slow.mean_ns == pytest.approx(
            ms_to_ns(FIXED_MS + rows * 50), rel=1e-3
        )


def test_batches_are_padded_to_the_longest_of_their_requests() -> None:
    alone = {"name": "a", "time_ms": 30}
    result = simulate(RunSpec(scenario(alone, rows=1), PolicyChoice(name="fifs"), 1))
    assert result.total.p50_ms == pytest.approx(50)
    assert result.total.p99_ms == pytest.approx(50)
