"""Batches that scatter as a whole: learned, Orloj finishes about what it does where it is told requests' own times."""

from typing import Any

import pytest

from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario

SCALE = 0.18
"""The part of a request's time that is its own, and not its batch's."""


def scenario(*, told: bool, cv: float, rows: int = 1) -> Scenario:
    """Two kinds of requests at twice the load that lone ones would bear; a batch is padded to its longest."""
    mean_ms = 105.0 * rows
    fixed_ms = (1 - SCALE) * mean_ms
    apps: list[dict[str, Any]] = [
        {
            "name": name,
            "known_to_policy": told,
            "time_ms": {"distribution": "normal", "mean": SCALE * each, "std": SCALE * 10},
        }
        for name, each in (("short", 40.0), ("long", 170.0))
    ]
    profile = {"alpha_ms": SCALE * 105, "beta_ms": fixed_ms, "max_batch": 16 * rows}
    return Scenario.model_validate(
        {
            "warmup_s": 20,
            "duration_s": 60,
            "workers": [{"count": 1}],
            "models": [
                {
                    "name": "m",
                    "slo_ms": 580 * rows,
                    "profile": profile,
                    "apps": apps,
                    "rows": {"distribution": "constant", "value": rows},
                }
            ],
            "arrivals": {"process": "poisson", "rate_rps": 2000 / mean_ms},
            "simulation": {
                "learn": not told,
                "service": {"m": {"profile": {"alpha_ms": 0, "beta_ms": fixed_ms}, "combine": "padded"}},
                "jitter": {"cv": cv},
            },
        }
    )


@pytest.mark.parametrize(
    ("cv", "rows"),
    [(0.15, 1), pytest.param(0.3, 1, marks=pytest.mark.slow), pytest.param(0.3, 2, marks=pytest.mark.slow)],
)
def test_noise_of_batches_is_not_multiplied_by_their_size(cv: float, rows: int) -> None:
    told, learned = (
        simulate(RunSpec(scenario(told=each, cv=cv, rows=rows), PolicyChoice(name="orloj"), seed=4)).total.attainment
        for each in (True, False)
    )
    assert learned > told - 0.06
