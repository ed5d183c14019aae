"""Requests of several rows: simulated, eight workers, batches of up to 32 rows, an SLO of 20 ms."""

from typing import Any

import pytest

from tests.examples import few
from tidegate.sim.result import RunResult
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario

LOG_NORMAL = {"distribution": "lognormal", "mean": 6, "cv": 1.0}
TINY_OR_HALF = {"distribution": "table", "values": [1, 16]}
TINY_OR_FULL = {"distribution": "table", "values": [1, 32]}
OVER_HALF = {"distribution": "table", "values": [17, 24]}


def scenario(rows: Any, rate_rps: float) -> Scenario:
    return Scenario.model_validate(
        {
            "warmup_s": 0.5,
            "duration_s": 1.2,
            "workers": [{"count": 8}],
            "models": [
                {
                    "name": "m",
                    "slo_ms": 20,
                    "rows": rows,
                    "profile": {"points_ms": {1: 5, 8: 6.5, 16: 9, 32: 13.5}, "max_batch": 32},
                }
            ],
            "arrivals": {"process": "poisson", "rate_rps": rate_rps},
        }
    )


def run(of: Scenario, policy: str, **options: str) -> RunResult:
    return simulate(RunSpec(of, PolicyChoice(name=policy, options=options), seed=5))


@pytest.mark.parametrize(
    "load",
    few(
        [
            (LOG_NORMAL, 2300),
            (TINY_OR_HALF, 1700),
            (TINY_OR_FULL, 800),
            (OVER_HALF, 600),
            (16, 950),
            (20, 650),
            (32, 420),
        ],
        2,
        ids=["log-normal", "1 or 16", "1 or 32", "17 or 24", "16", "20", "32"],
    ),
)
def test_the_default_and_the_paper_lose_no_more_than_simple_policies(load: tuple[Any, float]) -> None:
    of = scenario(*load)
    best = max(run(of, simple).total.attainment for simple in ("eager", "triton", "fifs"))
    assert run(of, "symphony").total.attainment >= best - 0.01
    assert run(of, "symphony", deferral="frontrun").total.attainment >= best - 0.01


@pytest.mark.parametrize("rows", [LOG_NORMAL, TINY_OR_HALF, 16], ids=["log-normal", "1 or 16", "16"])
def test_at_a_light_load_nothing_waits(rows: Any) -> None:
    of = scenario(rows, 300)
    ours, tritons = run(of, "symphony").total.p50_ms, run(of, "triton").total.p50_ms
    assert ours is not None
    assert tritons is not None
    assert ours <= 1.02 * tritons
