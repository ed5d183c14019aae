"""Advice is followed: workers join where requests are lost, and go where they idle."""

import io
from pathlib import Path
from typing import Any

import pytest

from tests.controllers import step
from tests.core.control.layouts import layout, workers_of
from tidegate.api import Advise
from tidegate.control import ControllerSpec, ModelLoad, Observation
from tidegate.host import PluginError, Plugins, make_controller
from tidegate.observation import Recorder, TopologyChanged, read_log
from tidegate.schemas import Layout, write_document
from tidegate.sim.run import RunSpec, simulate
from tidegate.testing import ControllerConformance
from tidegate.workload import PolicyChoice, Scenario
from tidegate_symphony.advised_workers import AdvisedWorkers

SPEC = Plugins.installed().controller("advised-workers")
S = 1_000_000_000


class TestAdvisedWorkers(ControllerConformance):
    """The kit."""

    spec = ControllerSpec("advised-workers", "Adds and releases workers as the policy recommends", AdvisedWorkers)


def observed(
    present: Layout, advice: int | None, *, load: float = 0.0, attainment: dict[str, float] | None = None
) -> Observation:
    loads = {model.name: ModelLoad(1, 1, 1, 10, (attainment or {}).get(model.name, 1.0)) for model in present.models}
    busy = dict.fromkeys([worker.name for worker in present.workers], load)
    return Observation(S, S, present, loads, busy, None if advice is None else Advise(advice))


def names(answer: Layout | None) -> list[str]:
    return [worker.name for worker in answer.workers] if answer else []


def test_as_many_join_as_are_advised_and_as_there_are() -> None:
    every, first = layout(workers_of(5)), layout(workers_of(2))
    controller = make_controller(SPEC, first, {"layout": every.model_dump(mode="json")})
    assert names(step(controller, observed(first, 2))) == ["w0", "w1", "w2", "w3"]
    assert names(step(controller, observed(first, 9))) == ["w0", "w1", "w2", "w3", "w4"]
    assert step(controller, observed(every, 1)) is None
    assert step(controller, observed(first, None)) is None


def test_those_join_first_that_host_the_model_that_does_worst() -> None:
    every = layout({"w0": ["m", "n"], "w1": ["m"], "w2": ["n"]})
    first = every.model_copy(update={"workers": every.workers[:1]})
    controller = make_controller(SPEC, first, {"layout": every.model_dump(mode="json")})
    assert names(step(controller, observed(first, 1, attainment={"m": 0.9, "n": 0.5}))) == ["w0", "w2"]
    assert names(step(controller, observed(first, 1, attainment={"m": 0.4, "n": 0.5}))) == ["w0", "w1"]


@pytest.mark.parametrize(
    ("advice", "load", "left"),
    [(-1, 0.0, 3), (-3, 0.0, 2), (-3, 0.5, 3), (-3, 0.74, 4), (-1, 0.1, 3)],
    ids=["as advised", "not below the least", "with a reserve", "not without one", "not more than advised"],
)
def test_the_last_ones_are_released(advice: int, load: float, left: int) -> None:
    every = layout(workers_of(4))
    controller = make_controller(SPEC, every, {"least_workers": 2})
    answer = step(controller, observed(every, advice, load=load))
    assert names(answer or every) == [f"w{number}" for number in range(left)]


def test_a_partition_keeps_a_worker() -> None:
    every = layout({"w0": ["m"], "w1": ["m"], "w2": ["n"]})
    controller = make_controller(SPEC, every, {})
    assert names(step(controller, observed(every, -2))) == ["w0", "w2"]


def test_what_serves_must_be_among_what_there_may_be(tmp_path: Path) -> None:
    write_document(tmp_path / "few.json", layout(workers_of(1)))
    with pytest.raises(PluginError, match="controller 'advised-workers': layout: it lacks worker 'w1'"):
        make_controller(SPEC, layout(workers_of(2)), {"layout": str(tmp_path / "few.json")})
    with pytest.raises(PluginError, match=r"gone\.json"):
        make_controller(SPEC, layout(workers_of(2)), {"layout": str(tmp_path / "gone.json")})


CHANGING: dict[str, Any] = {
    "warmup_s": 0,
    "duration_s": 120,
    "workers": [{"count": 6, "gpu": "A100"}],
    "models": [{"name": "m", "slo_ms": 100, "profile": {"alpha_ms": 5, "beta_ms": 5, "max_batch": 16}}],
    "arrivals": {"rate_rps": [{"from_s": 0, "rate_rps": 150}, {"from_s": 60, "rate_rps": 600}]},
    "controller": {"name": "advised-workers", "interval_s": 5, "cooldown_s": 5},
}


@pytest.mark.slow
def test_symphony_gives_workers_back_and_gets_them_again() -> None:
    """Six workers bear about 1,100 requests/s: a sixth of them is enough for the first minute."""
    log = io.BytesIO()
    symphony = PolicyChoice(name="symphony", options={"advice_every_s": 4})
    result = simulate(RunSpec(Scenario.model_validate(CHANGING), symphony, 1), observers=[Recorder(log)])
    counts = [
        (entry.event.now_ns / S, len(entry.event.workers))
        for entry in read_log(log.getvalue().splitlines())[1]
        if isinstance(entry.event, TopologyChanged)
    ]
    least = min(count for at_s, count in counts if at_s < 60)
    assert least <= 3, counts
    assert max(count for at_s, count in counts if at_s > 60) > least, counts
    assert result.total.stranded == result.total.failed == 0
    assert result.total.mean_workers is not None
    assert result.total.mean_workers < 5
    assert result.total.attainment > 0.95
