"""Requests that run alone so that their application is learned, though all others run in batches of several."""

from typing import Any

import pytest

from tidegate.api import Request
from tidegate.engine.estimates.standalone_latency import (
    FIRST_REPORT_STAGES,
    KNOWN_PROBE_INTERVAL,
    MAX_APPS,
    MODEL_PROBE_INTERVAL,
    UNKNOWN_PROBE_INTERVAL,
    ProbeCounts,
)
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario

SCALE = 0.18
"""The share of a request's time that is its own, and not its batch's."""


def of(app: str) -> Request:
    return Request(0, "m", 1, 0, app=app)


def test_an_application_is_seen_alone_a_few_times_and_seldom_from_then_on() -> None:
    probes = ProbeCounts()
    wanted = 0
    while wanted < FIRST_REPORT_STAGES:
        if probes.wants(of("a")):
            probes.ran_alone(of("a"))
            wanted += 1
    assert not any(probes.wants(of("a")) for _ in range(KNOWN_PROBE_INTERVAL - 1))
    assert probes.wants(of("a")), "what is known is looked at again"


def test_nothing_is_asked_where_an_application_runs_alone_anyway() -> None:
    probes = ProbeCounts()
    for _ in range(10 * MODEL_PROBE_INTERVAL):
        probes.ran_alone(of("a"))
        assert not probes.wants(of("a"))


def test_names_that_clients_make_up_take_a_bounded_share_of_a_model() -> None:
    probes = ProbeCounts()
    sent = [f"made up {number // UNKNOWN_PROBE_INTERVAL}" for number in range(4 * UNKNOWN_PROBE_INTERVAL * MAX_APPS)]
    assert sum(probes.wants(of(app)) for app in sent) <= UNKNOWN_PROBE_INTERVAL * MAX_APPS / MODEL_PROBE_INTERVAL + 1


def scenario(times_ms: dict[str, float], weights: dict[str, int]) -> Scenario:
    """One worker that lone requests would keep busy twice; a batch is padded to its longest."""
    apps: list[dict[str, Any]] = [
        {
            "name": name,
            "weight": weights[name],
            "time_ms": {"distribution": "table", "values": [SCALE * each_ms * share / 10 for share in range(8, 13)]},
        }
        for name, each_ms in times_ms.items()
    ]
    mean_ms = sum(times_ms[name] * weights[name] for name in times_ms) / sum(weights.values())
    fixed_ms = (1 - SCALE) * mean_ms
    profile = {"alpha_ms": SCALE * mean_ms, "beta_ms": fixed_ms, "max_batch": 16}
    service = {"m": {"profile": {"alpha_ms": 0, "beta_ms": fixed_ms}, "combine": "padded"}}
    return Scenario.model_validate(
        {
            "warmup_s": 30,
            "duration_s": 20,
            "workers": [{"count": 1}],
            "models": [{"name": "m", "slo_ms": 3 * max(times_ms.values()), "profile": profile, "apps": apps}],
            "arrivals": {"process": "poisson", "rate_rps": 2000 / mean_ms},
            "simulation": {"service": service},
        }
    )


@pytest.mark.parametrize(
    ("times_ms", "weights"),
    [({"s": 20, "m": 80, "l": 250}, {"s": 80, "m": 15, "l": 5}), ({"s": 20, "l": 150}, {"s": 90, "l": 10})],
    ids=["three", "two"],
)
def test_applications_that_never_run_alone_are_learned(times_ms: dict[str, float], weights: dict[str, int]) -> None:
    result = simulate(RunSpec(scenario(times_ms, weights), PolicyChoice(name="symphony"), seed=3))
    assert result.total.attainment > 0.85, "0.66 where the seldom ones are never learned"
