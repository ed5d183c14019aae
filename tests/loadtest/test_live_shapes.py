"""Shapes live, on the emulated GPU of a real tritonserver: what is learned of them is what they take."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tidegate.api import RequestArrived, StageFinished
from tidegate.engine import Engine
from tidegate.host import Plugins
from tidegate.observation import read_log
from tidegate.workload import Scenario
from tidegate_loadtest.live import SendingOptions
from tidegate_loadtest.scenario_run import plan_runs, run_live

pytestmark = pytest.mark.usefixtures("start_triton")  # skips where there is no tritonserver

TIMES = {"INPUT0:320": 1.0, "INPUT0:480": 1.5, "INPUT0:640": 2.0, "INPUT0:800": 2.5, "INPUT0:960": 3.0}
DOCUMENT: dict[str, Any] = {
    "warmup_s": 0,
    "duration_s": 12,
    "workers": [{"count": 2}],
    "models": [
        {
            "name": "m",
            "profile": {"alpha_ms": 20, "beta_ms": 2, "max_batch": 4},
            "shapes": [
                {"shape": shape, "latency_factor": times, "known_to_policy": False} for shape, times in TIMES.items()
            ],
        }
    ],
    "arrivals": {"rate_rps": 30},
    "policies": [{"name": "fifs"}],
}


@dataclass(frozen=True)
class Stage:
    shape: str
    rows: int
    after: int
    """How many requests had arrived when it ended."""
    upper_ns: int
    took_ns: int


def stages_of(event_log: Path) -> Iterator[tuple[Engine, Stage]]:
    """Each stage of a recorded run, and the engine as it was when the stage ended."""
    with event_log.open("rb") as log:
        header, entries = read_log(log)
        policy = Plugins.installed().make_policy(header.policy, header.setup, header.options)
        engine = Engine(policy, name=header.policy, first_lead_ns=header.settings.first_lead_ns)
        arrived = 0
        for entry in entries:
            event = entry.event
            arrived += isinstance(event, RequestArrived)
            flight = engine.flight(event.batch_id) if isinstance(event, StageFinished) else None
            engine.handle(event)
            if flight and isinstance(event, StageFinished):
                upper_ns = flight.batch.stages[event.stage].duration_ns
                yield engine, Stage(flight.shape, flight.rows, arrived, upper_ns, event.ended_ns - event.started_ns)


@pytest.mark.slow
@pytest.mark.parametrize("stalls", [0, 0.01])
def test_each_shape_is_learned_within_two_hundred_requests(tmp_path: Path, stalls: float) -> None:
    """Its expectation is near what its stages take, whatever the machine does besides."""
    simulation = {"jitter": {"cv": 0.05}, "stalls": {"probability": stalls}}
    scenario = Scenario.model_validate(DOCUMENT | {"simulation": simulation})
    (run,) = plan_runs(scenario, ["fifs"], [7], SendingOptions({}))
    assert run_live(run, work=tmp_path).result.total.failed == 0
    took_ns: dict[str, list[int]] = defaultdict(list)
    expected_ns: dict[str, int] = {}
    planned: list[bool] = []
    for engine, stage in stages_of(tmp_path / "events.jsonl"):
        if stage.after <= 200:
            took_ns[stage.shape] += [stage.took_ns] if stage.rows == 1 else []
            profiles = engine.expectations.profiles
            expected_ns = {shape: profiles["m", "default", shape].expected_ns(1) for shape in took_ns}
        else:
            planned.append(stage.took_ns <= stage.upper_ns)
    assert sorted(expected_ns) == sorted(TIMES)
    for shape, latency_ns in expected_ns.items():
        assert latency_ns / median(took_ns[shape]) == pytest.approx(1, abs=0.2), "on a quiet machine 0.05"
    assert sum(planned) / len(planned) > 0.7, "0.80 to 0.99 on two busy cores, 0.93 to 0.96 on quiet ones"
