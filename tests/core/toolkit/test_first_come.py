"""First come, first served: what runs where, stage by stage, and where workers are lost and come back meanwhile."""

from typing import Any

import pytest

from tests.examples import few
from tidegate.api import (
    Batch,
    BatchFailed,
    Dispatch,
    Drop,
    Model,
    Pipeline,
    PolicyOptions,
    Profile,
    Request,
    RequestArrived,
    Setup,
    Stage,
    StageFinished,
    Worker,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
)
from tidegate.engine import Engine, Fail, StartStage
from tidegate.sim.run import RunSpec, simulate
from tidegate.testing import Playbook
from tidegate.toolkit import FirstComeFirstServed
from tidegate.workload import PolicyChoice, Scenario

MODELS = (Model("split", 4, pipelines=(Pipeline(("head", "tail"), 4),)), Model("whole", 4))
WORKERS = (Worker(0, "w0", ("head",)), Worker(1, "w1", ("tail", "whole")))
PROFILES = tuple(Profile(partition, "default", (10, 20, 30, 40)) for partition in ("head", "tail", "whole"))


def test_a_worker_that_was_away_is_not_freed_by_the_batch_that_it_was_kept_for() -> None:
    setup = Setup(MODELS, WORKERS, PROFILES)
    engine = Engine(FirstComeFirstServed(setup, PolicyOptions()), name="fcfs", strict=True, max_tries=1)
    engine.handle(RequestArrived(0, Request(0, "split", 1, 0)))
    engine.handle(WorkerLost(1, 1))
    engine.handle(WorkerJoined(2, WORKERS[1]))
    assert len(engine.handle(RequestArrived(3, Request(1, "whole", 1, 3)))) == 1, "it runs what comes now"
    (failed,) = engine.handle(StageFinished(10, 0, 0, 0, 0, 10))
    assert isinstance(failed, Fail), "the tail of the first has lost its worker"
    assert engine.handle(RequestArrived(11, Request(2, "whole", 1, 11))) == [], "which is busy"
    (started,) = engine.handle(StageFinished(13, 1, 0, 1, 3, 13))
    assert isinstance(started, StartStage)
    assert started.batch.request_ids == (2,)


def playbook(*hosts: str) -> Playbook:
    """Workers by what each hosts."""
    workers = tuple(Worker(number, f"w{number}", (partition,)) for number, partition in enumerate(hosts))
    return Playbook(FirstComeFirstServed(Setup(MODELS, workers, PROFILES), PolicyOptions()))


def arrived(request_id: int, now_ns: int = 0, *, due_ns: int = 1000, rows: int = 1) -> RequestArrived:
    return RequestArrived(now_ns, Request(request_id, "split", rows, now_ns, due_ns))


def split(
    *request_ids: int, batch: int = 0, head: int = 0, at_ns: int = 0, tail: int = 0, tail_ns: int = 0
) -> Dispatch:
    """Each stage is booked for the least time that it may take."""
    least_ns = 5 * len(request_ids)
    stages = Stage(head, "head", at_ns, least_ns), Stage(tail, "tail", tail_ns or at_ns + least_ns, least_ns)
    return Dispatch(Batch(batch, "split", request_ids, stages))


def test_a_split_model_keeps_no_worker_before_its_stage_begins() -> None:
    """The second head runs beside the first one, and its tail is booked behind the tail of the first."""
    play = playbook("head", "head", "tail") >> arrived(0) << split(0, tail=2)
    assert play >> arrived(1) << split(1, batch=1, head=1, tail=2, tail_ns=10)


def test_each_stage_is_booked_where_it_is_done_first() -> None:
    play = playbook("head", "head", "tail", "tail") >> arrived(0) << split(0, tail=2)
    assert play >> arrived(1) << split(1, batch=1, head=1, tail=3)


def test_what_is_over_or_failed_keeps_nothing_busy() -> None:
    play = playbook("head", "tail", "tail") >> arrived(0) << split(0, tail=1)
    play = play >> BatchFailed(4, 0, 0, 0, "broken") >> WorkerReady(4, 0, 4) >> WorkerReady(4, 1, 4)
    play = play >> arrived(1, 5) << split(1, batch=1, at_ns=5, tail=1)
    play = play >> StageFinished(15, 1, 0, 0, 5, 15) >> WorkerReady(15, 0, 15) >> arrived(2, 15)
    assert play << split(2, batch=2, at_ns=15, tail=2)


def test_requests_of_a_split_model_that_no_path_answers_on_time_are_dropped() -> None:
    play = playbook("head", "head", "tail") >> arrived(0) << split(0, tail=2)
    play = (
        play >> arrived(1, due_ns=29) << Drop(1, "deadline_unreachable")
    )  # 10 until its tail could begin, which is busy until 20
    assert play >> arrived(2, due_ns=30) << split(2, batch=1, head=1, tail=2, tail_ns=10)


def test_no_more_join_a_batch_than_leave_the_oldest_on_time() -> None:
    play = (
        playbook("head", "tail") >> arrived(0) << split(0, tail=1) >> arrived(1, due_ns=70) >> arrived(2) >> arrived(3)
    )
    play = play >> arrived(4) >> StageFinished(10, 0, 0, 0, 0, 10) >> WorkerReady(10, 0, 10)
    assert play << split(1, 2, batch=1, at_ns=10, tail=1, tail_ns=20)


def test_what_an_idle_worker_answers_too_late_waits_for_a_busy_one_that_is_quicker() -> None:
    kinds = (
        Worker(0, "fast", ("head",), "fast"),
        Worker(1, "slow", ("head",), "slow"),
        Worker(2, "t", ("tail",), "fast"),
    )
    profiles = (Profile("head", "fast", (10,)), Profile("head", "slow", (90,)), Profile("tail", "fast", (10,)))
    model = Model("split", 1, pipelines=(Pipeline(("head", "tail"), 1),))
    play = Playbook(FirstComeFirstServed(Setup((model,), kinds, profiles), PolicyOptions()))
    play = play >> arrived(0) << split(0, tail=2) >> arrived(1, due_ns=50)
    play = play >> StageFinished(10, 0, 0, 0, 0, 10) >> WorkerReady(10, 0, 10)
    assert play << split(1, batch=1, at_ns=10, tail=2, tail_ns=15)


CLUSTER: dict[str, Any] = {
    "warmup_s": 0.5,
    "duration_s": 3,
    "workers": [{"count": 6, "gpu": "g", "hosts": [name]} for name in ("m.a", "m.b", "m.c")],
    "models": [
        {
            "name": "m",
            "slo_ms": 100,
            "pipelines": [
                {
                    "batch": 4,
                    "partitions": [
                        {"name": name, "profile": {"alpha_ms": 5, "beta_ms": 5}} for name in ("m.a", "m.b", "m.c")
                    ],
                }
            ],
        }
    ],
    "arrivals": {"process": "poisson", "rate_rps": 480},
}
"""Each pool bears 600/s with batches of one, and 960/s with batches of four."""


@pytest.mark.parametrize(
    "simulation",
    few(
        [{}, {"jitter": {"cv": 0.35}}, {"stalls": {"probability": 0.002}}, {"failures": {"probability": 0.005}}],
        2,
        ids=["exact", "jitter", "stalls", "failures"],
    ),
)
def test_pools_are_used_as_far_as_they_reach(simulation: dict[str, Any]) -> None:
    """Where whole paths were kept for a batch, three pools bore a third: 200/s."""
    scenario = Scenario.model_validate(CLUSTER | {"simulation": simulation})
    total = simulate(RunSpec(scenario, PolicyChoice(name="fifs"), seed=0)).total
    assert total.attainment > 0.96
    assert total.stranded == 0


def test_under_overload_answers_still_come_on_time() -> None:
    scenario = Scenario.model_validate(CLUSTER | {"arrivals": {"process": "poisson", "rate_rps": 1900}})
    assert simulate(RunSpec(scenario, PolicyChoice(name="fifs"), seed=0)).total.goodput_rps > 600
