"""A tiny policy that answers what a test tells it to, and the words to tell it with."""

from collections import deque

from tests.arrivals import Arrivals
from tidegate.api import (
    AnyEvent,
    Batch,
    BatchFailed,
    Commands,
    Dispatch,
    Model,
    Pipeline,
    Policy,
    PolicyOptions,
    Profile,
    Setup,
    Stage,
    StageFinished,
    Worker,
    WorkerDelayed,
    WorkerReady,
)
from tidegate.engine import Engine, StartStage

M_PIPELINES = (Pipeline(("m",), max_rows=4), Pipeline(("m", "tail"), max_rows=4))
MODELS = (Model("m", max_rows=4, pipelines=M_PIPELINES), Model("n", max_rows=4))
WORKERS = (Worker(0, "w0", ("m", "n")), Worker(1, "w1", ("m", "tail")), Worker(2, "w2", ("m",)))
PROFILES = tuple(Profile(partition, "default", (10, 20, 30, 40)) for partition in ("m", "n", "tail"))
SETUP = Setup(MODELS, WORKERS, PROFILES)


class Script(Policy):
    """Answers the n-th event it is told with the n-th answer, and remembers what it was told.

    Which workers are ready it is told besides: it has its own mind about that.
    """

    def __init__(self, *answers: Commands, setup: Setup = SETUP) -> None:
        super().__init__(setup, PolicyOptions())
        self.received: list[AnyEvent] = []
        self.told_ready: list[WorkerReady | WorkerDelayed] = []
        self.answers = deque(answers)

    def handle(self, event: AnyEvent) -> Commands:
        if isinstance(event, WorkerReady | WorkerDelayed):
            self.told_ready.append(event)
            return ()
        self.received.append(event)
        return self.answers.popleft() if self.answers else ()

    on_request_arrived = on_request_cancelled = on_stage_finished = on_batch_failed = handle
    on_worker_joined = on_worker_lost = on_worker_ready = on_profile_updated = handle


class BestEffort(Script):
    best_effort = True


def engine_of(policy: Policy, *, strict: bool = True, learn: bool = False) -> Engine:
    return Engine(policy, name="script", strict=strict, learn=learn)


arrived = Arrivals()


def run(
    *request_ids: int, batch: int = 0, worker: int = 0, at_ns: int = 0, last_ns: int | None = None, model: str = "m"
) -> Dispatch:
    """A batch of one stage."""
    last_ns = 10 * len(request_ids) if last_ns is None else last_ns
    return Dispatch(Batch(batch, model, request_ids, (Stage(worker, model, at_ns, last_ns),)))


def two_stages(*request_ids: int, batch: int = 0, at_ns: int = 0) -> Dispatch:
    """A batch along `m` on worker 0 and `tail` on worker 1."""
    last_ns = 10 * len(request_ids)
    stages = (Stage(0, "m", at_ns, last_ns), Stage(1, "tail", at_ns + last_ns, last_ns))
    return Dispatch(Batch(batch, "m", request_ids, stages))


def finished(now_ns: int, batch: int = 0, *, stage: int = 0, worker: int = 0, started_ns: int = 0) -> StageFinished:
    return StageFinished(now_ns, batch, stage, worker, started_ns, now_ns)


def failed(now_ns: int, batch: int = 0, *, stage: int = 0, worker: int = 0, retry: bool = False) -> BatchFailed:
    return BatchFailed(now_ns, batch, stage, worker, "out of memory", retry)


def start(dispatch: Dispatch, stage: int = 0, *, rows: int = 1) -> StartStage:
    return StartStage(dispatch.batch, stage, rows)
