"""Delays that no policy is told (Symphony, figure 18): the engine learns them, and little is lost for not knowing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidegate.sim.goodput import GoodputQuery, search_goodput
from tidegate.sim.result import ResultRow
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, read_scenario

RESNET50 = Path(__file__).parents[3] / "scenarios/resnet50.yaml"
HIDDEN = {"workers.0.network": {"control_ms": 1, "data_ms_per_row": 0.05}}
KNOWN = {"models.0.profile": {"alpha_ms": 1.103, "beta_ms": 6.072, "max_batch": 64}}
"""The profile with the delays in it."""
UNTAUGHT = {"simulation.learn": False}


def run_of(changes: dict[str, Any], rate_rps: float, seed: int = 1) -> RunSpec:
    window = {"warmup_s": 0.5, "duration_s": 2, "arrivals.rate_rps": rate_rps}
    return RunSpec(read_scenario(RESNET50, {**window, **changes}), PolicyChoice(name="symphony"), seed)


def total(changes: dict[str, Any], rate_rps: float, **options: str) -> ResultRow:
    run = run_of(changes, rate_rps)
    return simulate(replace(run, policy=PolicyChoice(name="symphony", options=options))).total


def goodput_rps(changes: dict[str, Any], seed: int) -> float:
    return search_goodput(GoodputQuery(run_of(changes, 4700, seed), tolerance=0.02)).rate_rps


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_learning_the_delays_is_nearly_as_good_as_being_told(seed: int) -> None:
    known = goodput_rps({**KNOWN, **UNTAUGHT}, seed)
    assert known > 4500
    assert goodput_rps(HIDDEN, seed) >= 0.96 * known


def test_who_does_not_learn_them_is_late() -> None:
    """Each batch was deferred to the last moment that the profile allows, and the delays come on top."""
    assert total({**HIDDEN, **UNTAUGHT}, 2000, deferral="frontrun").bad_rate > 0.15
    assert total(HIDDEN, 2000, deferral="frontrun").bad_rate == 0
    assert total({**HIDDEN, **UNTAUGHT}, 2000).bad_rate < 0.01, "who does not wait without need is hardly ever late"


@pytest.mark.parametrize(
    ("jitter", "rate_rps"),
    [
        ({"workers.0.network": {**HIDDEN["workers.0.network"], "jitter_ms": 0.5}}, 4200),
        ({**HIDDEN, "simulation.jitter": {"cv": 0.1}}, 3900),
    ],
    ids=["of the network", "of the workers"],
)
def test_jitter_is_planned_for(jitter: dict[str, Any], rate_rps: float) -> None:
    """At a rate that is nine tenths and more of what the best fixed margin carries; a mean would lose half of it."""
    assert total(jitter, rate_rps).bad_rate < 0.01
