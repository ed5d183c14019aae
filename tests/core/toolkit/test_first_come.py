"""First come, first served, where workers are lost and come back while a batch is on its way."""

from tidegate.api import (
    LegFinished,
    Model,
    Pipeline,
    PolicyOptions,
    Profile,
    Request,
    RequestArrived,
    Setup,
    Worker,
    WorkerJoined,
    WorkerLost,
)
from tidegate.engine import Engine, Fail, StartLeg
from tidegate.toolkit import FirstComeFirstServed

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
    (failed,) = engine.handle(LegFinished(10, 0, 0, 0, 0, 10))
    assert isinstance(failed, Fail), "the tail of the first has lost its worker"
    assert engine.handle(RequestArrived(11, Request(2, "whole", 1, 11))) == [], "which is busy"
    (started,) = engine.handle(LegFinished(13, 1, 0, 1, 3, 13))
    assert isinstance(started, StartLeg)
    assert started.batch.request_ids == (2,)
