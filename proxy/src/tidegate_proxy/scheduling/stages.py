"""Stages of batches: start, sending, end, failure, and pacing of those that a Triton would merge."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import grpc

from tidegate.api import BatchFailed, StageFinished
from tidegate.engine import ResponseMargin, StartStage
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.outcome import Outcome, RequestFailed, own_fault
from tidegate_proxy.base.tasks import cancel
from tidegate_proxy.messages.forwarded_metadata import forwarded_with_all
from tidegate_proxy.messages.merging import ScatterError, has_strings
from tidegate_proxy.messages.model_signature import STRINGS_ASIDE_FROM
from tidegate_proxy.messages.request import InferenceRequest, PendingRequest
from tidegate_proxy.observability.metrics import Observability
from tidegate_proxy.scheduling.clock import LiveEngine
from tidegate_proxy.scheduling.failures import FailureVerdict, Recovery
from tidegate_proxy.scheduling.in_flight import (
    BatchPayload,
    OutputSizes,
    PendingRequests,
    RunningStages,
    StageRun,
    StageTarget,
)
from tidegate_proxy.scheduling.membership import OutlierDetector
from tidegate_proxy.scheduling.slots import OccupiedSlots, SlotWaiter
from tidegate_proxy.tritons.backend import CANCEL_AFTER_S, INFER_METHOD
from tidegate_proxy.tritons.catalog import Catalog, CurrentCatalog
from tidegate_proxy.tritons.shared_memory import SharedRegions

if TYPE_CHECKING:
    from tidegate.api import Worker
    from tidegate_proxy.tritons.backend import Backend


BEGINS_WITHIN_NS: Final = 1_000_000
"""Time in ns in which a stage begins on an idle instance: Triton has merged requests sent 0.2 to 1 ms apart."""
MIN_MERGE_COST_RATIO: Final = 2
"""Ratio of the cost of being merged to the delay, above which a stage is held back."""
MAX_NS: Final = 10_000_000
"""Longest time in ns for which a stage is held back."""

Send = Callable[[], None]


@dataclass(slots=True)
class _Queue:
    """State of the queue of one model at one Triton."""

    latest: StageRun | None = None
    """The stage that was sent last, if it may wait there still."""
    is_behind: bool = False
    """Whether it waits for another one to end."""
    until_ns: int = 0
    """When it has begun, as far as is known."""
    timer: asyncio.TimerHandle | None = None
    held: deque[tuple[StageRun, Send]] = field(default_factory=deque)


class DispatchPacing:
    """Pacing of stages that their Triton would merge: each is sent after the one before has begun.

    A Triton with `dynamic_batching` merges queued requests of a model, even if these are batches already: it may run
    two stages for two instances as one, which misses both deadlines while the other instance idles. A stage sent in
    advance is queued there until its worker has finished the one before, or for some tenths of a millisecond on an idle
    worker. The next one is held back for that time if that costs less than being merged. Use it only in one event loop.
    """

    def __init__(self, engine: LiveEngine, directory: CurrentCatalog, running: RunningStages) -> None:
        self._engine = engine
        self._directory = directory
        self._running = running
        self._loop = asyncio.get_running_loop()
        self._catalog: Catalog | None = None
        self._workers: dict[int, Worker] = {}
        self._largest: dict[tuple[Backend, str], int] = {}
        """The rows of the largest batch that a Triton makes of a model's requests by itself, for several workers."""
        self._queues: dict[Backend, dict[str, _Queue]] = {}

    def send(self, run: StageRun, send: Send) -> None:
        """Send a stage: now, or as soon as it will not be merged."""
        partition = run.effect.batch.stages[run.effect.stage].partition
        if self._directory.catalog is not self._catalog:
            self._look()
        if (run.backend, partition) not in self._largest:
            send()
            return
        queue = self._queues.setdefault(run.backend, {}).setdefault(partition, _Queue())
        if queue.held or self._must_wait(queue, run):
            queue.held.append((run, send))
            self._look_again(queue)
        else:
            self._let_go(queue, run, send)

    def over(self, run: StageRun) -> None:
        """Handle the end of a stage: a stage behind it on its worker has begun, so that held stages may be sent."""
        queues = self._queues.get(run.backend)
        if not queues:
            return
        worker = self._workers.get(run.worker_id)
        for partition, queue in list(queues.items()):  # to send may add to them
            if queue.latest is run or (queue.is_behind and worker is not None and partition in worker.hosts):
                queue.latest, queue.is_behind = None, False
                self._go_on(queue)

    def close(self) -> None:
        """Discard the stages that are held back."""
        for queues in self._queues.values():
            for queue in queues.values():
                queue.held.clear()

    def _go_on(self, queue: _Queue) -> None:
        """Send what need not wait any more."""
        while queue.held:
            run, send = queue.held[0]
            if self._must_wait(queue, run):
                self._look_again(queue)
                return
            queue.held.popleft()
            run.started_ns = time.monotonic_ns()
            self._let_go(queue, run, send)

    def _let_go(self, queue: _Queue, run: StageRun, send: Send) -> None:
        queue.latest, queue.is_behind = run, self._running.is_behind(run)
        queue.until_ns = time.monotonic_ns() + (MAX_NS if queue.is_behind else BEGINS_WITHIN_NS)
        send()

    def _look_again(self, queue: _Queue) -> None:
        """Look when what is in the way has begun; event loops wake up early, too."""
        if queue.timer:
            queue.timer.cancel()
        left_ns = queue.until_ns - time.monotonic_ns()
        queue.timer = self._loop.call_later(max(0, left_ns) / 1e9, self._go_on, queue)

    def _must_wait(self, queue: _Queue, run: StageRun) -> bool:
        latest = queue.latest
        return latest is not None and time.monotonic_ns() < queue.until_ns and self._is_better_apart(latest, run)

    def _is_better_apart(self, latest: StageRun, run: StageRun) -> bool:
        """Whether Triton would merge the two, and it would cost more than to wait."""
        engine, stage = self._engine.engine, run.effect.batch.stages[run.effect.stage]
        flight, worker = engine.flight(run.batch_id), self._workers.get(run.worker_id)
        rows = latest.effect.rows + run.effect.rows
        if not flight or not worker or rows > self._largest.get((run.backend, stage.partition), 0):
            return False
        profile = engine.expectations.profiles.get((stage.partition, worker.device_class, flight.shape))
        if not profile or rows > profile.max_rows:
            return False
        alone_ns = profile.expected_ns(max(latest.effect.rows, run.effect.rows))
        return profile.expected_ns(rows) - alone_ns > MIN_MERGE_COST_RATIO * BEGINS_WITHIN_NS

    def _look(self) -> None:
        """The Tritons have changed."""
        catalog = self._catalog = self._directory.catalog
        self._workers = {worker.id: worker for worker in catalog.workers}
        self._largest = {}
        for backend, models in catalog.loaded.items():
            hosts = [worker.hosts for worker in catalog.workers if catalog.backend_of[worker.id] is backend]
            for config in (model.config for model in models):
                if config.HasField("dynamic_batching") and sum(config.name in each for each in hosts) > 1:
                    self._largest[backend, config.name] = config.max_batch_size
        for backend in self._queues.keys() - catalog.loaded.keys():
            del self._queues[backend]  # what is held back there is sent by its timer


log = logging.getLogger(__name__)

BROKEN_SHARING = "shared memory"
"""Text in all of Triton's errors on shared memory: an unknown region, or a response larger than expected."""
EVERY_CLIENT_LEFT = "every client left"


TakeUpLimits = Callable[[], Awaitable[None]]
"""Function that gives models as many slots as their concurrency limits have become."""


async def keep_slots() -> None:
    """Change nothing, as no concurrency limit changes."""


@dataclass(eq=False, repr=False)
class RunningBatches:
    """All running stages. Use it only in one event loop."""

    _engine: LiveEngine
    _directory: CurrentCatalog
    _clients: PendingRequests
    _running: RunningStages
    _recovery: Recovery
    _outliers: OutlierDetector
    _headroom: ResponseMargin
    _observability: Observability
    _regions: SharedRegions | None
    _hidden: Callable[[], Container[str]]
    _on_batch: Callable[[StageRun, Sequence[Outcome]], None] | None
    _take_up_limits: TakeUpLimits

    def __post_init__(self) -> None:
        self._sizes = OutputSizes()
        self._spacing = DispatchPacing(self._engine, self._directory, self._running)
        self._slots = OccupiedSlots(
            self._engine,
            self._clients,
            self._running,
            self._observability.metrics,
            self._tell_finished,
            self._failed,
            self._abandon,
            self._limit_changed,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """Cancel the running stages; their results are ignored."""
        self._engine.catch_up()
        self._spacing.close()
        self._running.forget_all()
        await cancel(*self._tasks)

    def left(self, client: PendingRequest) -> None:
        """Handle a client that left: cancel its stage if no other client waits for it."""
        if run := self._running.run_of(client):
            run.waiting -= 1
            if run.abandoned and run.cancel:
                self._cancel_later(run.cancel)

    def stop_soon(self, runs: Iterable[StageRun]) -> None:
        """Cancel these stages soon; their results are ignored."""
        for run in runs:
            self._loop.call_soon(run.stop)

    def crash(self, effect: StartStage) -> None:
        """End a stage that met an internal error: fail its clients, free its worker."""
        batch = effect.batch
        worker_id = batch.stages[effect.stage].worker_id
        runs = self._running.forget_batch(batch.id)
        clients = [client for number in batch.request_ids if (client := self._clients.remove(number))]
        failed = BatchFailed(time.monotonic_ns(), batch.id, effect.stage, worker_id, "a fault of Tidegate's own")
        self._engine.handle(failed)
        for client in clients:
            self._clients.tell(client, own_fault())
        self._engine.perform()
        self.stop_soon(runs)

    def start(self, effect: StartStage) -> None:
        """Run a stage on its Triton, unless no client waits for it any more."""
        batch = effect.batch
        worker_id = batch.stages[effect.stage].worker_id
        target = self.target_of(effect)
        before = self._running.take_last(batch.id)
        clients = self._clients.of(batch.request_ids)
        if not target.backend.alive or not clients:
            if before:
                before.stop()
            if target.backend.alive:  # else the engine knows, or is about to
                now_ns = time.monotonic_ns()
                self._engine.take_in(BatchFailed(now_ns, batch.id, effect.stage, worker_id, EVERY_CLIENT_LEFT))
            return
        waiting = len(clients)
        if before:
            clients, payload = before.clients, before.payload
        else:
            payload = self.payload_of([client.envelope for client in clients], self._regions)
        run = StageRun(effect, worker_id, target, payload, clients, time.monotonic_ns(), waiting)
        self._running.begin(run)
        for client in clients:
            client.batch_id = batch.id
        run.execution = self._observability.batch_started(clients, effect, target.backend.address, run.started_ns)
        if isinstance(clients[0], SlotWaiter):
            self._slots.occupy(run, clients[0])
            return
        message = payload.request(target)
        self._spacing.send(run, partial(self._send, run, message))

    def _limit_changed(self, run: StageRun) -> None:
        limit = run.limit.limit if run.limit else 0
        fields = {"model": run.effect.batch.model, "triton": run.backend.address, "limit": limit}
        log.info("concurrency limit changed", extra=fields)
        task = self._loop.create_task(self._take_up())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take_up(self) -> None:
        with faults.contained("a concurrency limit"):
            await self._take_up_limits()

    def _abandon(self, run: StageRun, reason: str) -> None:
        self._fail(run, reason, FailureVerdict())

    def payload_of(self, envelopes: Sequence[InferenceRequest], regions: SharedRegions | None) -> BatchPayload:
        """Create the payload of a batch; `regions`: None if nothing is shared."""
        split = self._directory.catalog.split.get(envelopes[0].model) if envelopes else None
        return BatchPayload(envelopes, self._sizes, regions, split.outputs if split else ())

    def target_of(self, effect: StartStage) -> StageTarget:
        """Return the target of a stage."""
        catalog, stages = self._directory.catalog, effect.batch.stages
        stage = stages[effect.stage]
        return StageTarget(
            stage.partition,
            catalog.partitions.get(stage.partition),
            [catalog.backend_of[stage.worker_id] for stage in stages[effect.stage :]],
            alone=len(stages) == 1 and stage.partition == effect.batch.model,
        )

    def _send(self, run: StageRun, message: bytes) -> None:
        """A stage goes to its Triton, which may have been held back until now."""
        if run not in self._running:
            return  # its worker was given up meanwhile, and its requests with it
        if run.abandoned:
            self._fail(run, EVERY_CLIENT_LEFT, FailureVerdict())
            return
        self._call(run, message)

    def _call(self, run: StageRun, message: bytes) -> None:
        metadata = forwarded_with_all([client.forwarded_metadata for client in run.clients], self._hidden())
        if run.execution and (trace := run.execution.metadata):
            names = {name for name, _ in trace}
            metadata = [*trace, *(pair for pair in metadata if pair[0] not in names)]
        call = run.backend.channel.unary(
            INFER_METHOD,
            message,
            lambda answer, code, details: self._over(run, answer, code, details),
            tuple(run.backend.opened(metadata)),
        )
        run.is_ended_by(call.cancel)
        run.backend.channel.push()  # before the answers of the batch before it are divided
        if run.abandoned:  # and it is sent a second time
            self._cancel_later(call.cancel)

    def _cancel_later(self, cancel: Callable[[], None]) -> None:
        self._loop.call_later(CANCEL_AFTER_S, cancel)

    def _over(self, run: StageRun, answer: bytes | None, code: grpc.StatusCode, details: str) -> None:
        try:
            self._spacing.over(run)
            self._ended(run, answer, code, details)
        except Exception as error:
            faults.report("the end of a stage", error)
            self.crash(run.effect)

    def _ended(self, run: StageRun, answer: bytes | None, code: grpc.StatusCode, details: str) -> None:
        """A stage's call is over."""
        self._engine.catch_up()
        if answer is not None:
            run.backend.heard_ns = time.monotonic_ns()
        if run not in self._running:
            return  # its worker was given up, and its requests with it
        if answer is None:
            if run.payload.is_shared and BROKEN_SHARING in details:
                run.payload.sharing_broke(run.target)
                self._call(run, run.payload.request(run.target, share=False))
            else:
                self._failed(run, code, details)
        elif not run.is_last:
            try:
                run.payload.answered(answer)
            except ScatterError as error:
                self._failed(run, grpc.StatusCode.INTERNAL, str(error))
            else:
                self._finish(run)
        elif len(answer) >= STRINGS_ASIDE_FROM and len(run.clients) > 1 and has_strings(answer):
            self._finish(run)
            dividing = self._loop.create_task(self._divide_aside(run, answer))
            self._tasks.add(dividing)
            dividing.add_done_callback(self._tasks.discard)
        elif self._engine.engine.is_awaited(run.worker_id):
            self._finish(run)  # first: the next batch is on its way before this one's answers are divided
            self._divide(run, answer)
        else:  # nothing could follow at once: the answers are on their way before the engine learns from the stage
            self._engine.put_off(partial(self._tell_finished, run, self._over_at(run)))
            self._divide(run, answer)
            self._loop.call_soon(self._engine.catch_up)

    def _divide(self, run: StageRun, answer: bytes) -> None:
        divided_ns = time.monotonic_ns()
        self._settle(run, _divided(answer, run), divided_ns)

    def _settle(self, run: StageRun, outcomes: Sequence[Outcome], divided_ns: int) -> None:
        """A batch's answer was divided, since that instant: clients are given their parts."""
        run.payload.close(finished=True)
        self._clients.settle(run, outcomes, time.monotonic_ns() - divided_ns)
        if self._on_batch and len(outcomes) > 1:
            self._on_batch(run, outcomes)
        # Behind what the transports do now: when clients take their answers is theirs, and teaches nothing.
        self._loop.call_soon(self._handed_over, run)

    async def _divide_aside(self, run: StageRun, answer: bytes) -> None:
        """Have an answer divided in a thread of its own."""
        try:
            divided_ns = time.monotonic_ns()
            self._settle(run, await asyncio.to_thread(_divided, answer, run), divided_ns)
        except Exception as error:
            faults.report("the end of a stage", error)
            self.crash(run.effect)

    def _handed_over(self, run: StageRun) -> None:
        self._headroom.observe(time.monotonic_ns() - run.clients[0].ended_ns)

    def _finish(self, run: StageRun) -> None:
        """Notify the engine of a stage that has ended."""
        self._tell_finished(run, self._over_at(run))

    def _over_at(self, run: StageRun) -> int:
        """A stage has ended: when that was, which is now."""
        ended_ns = self._running.end(run, well=True)
        if run.is_last:
            for client in run.clients:
                client.ended_ns = ended_ns
        return ended_ns

    def _tell_finished(self, run: StageRun, ended_ns: int) -> None:
        batch_id, stage, worker_id = run.batch_id, run.effect.stage, run.worker_id
        self._engine.handle(StageFinished(ended_ns, batch_id, stage, worker_id, run.started_ns, ended_ns))
        try:
            if self._engine.engine.flight(batch_id) is not None:
                self._running.keep(run)
            elif not run.is_last:  # a worker further on has been lost
                run.payload.close(finished=True)
            if run.is_last and run.clients[0].runs_apart:
                self._recovery.answered(run.clients)
        finally:  # they are of other requests, too
            self._engine.perform()
        self._outliers.did_well(run.backend, run.clients[0].owner)
        if run.execution:
            self._observability.batch_ended(run.execution, ended_ns)

    def _fail_as_planned(self, run: StageRun) -> None:
        """Triton does not say when it stops what was cancelled: its worker counts as busy for as long as planned."""
        left_ns = self._running.since_ns(run) + run.upper_ns - time.monotonic_ns()
        self._loop.call_later(max(0, left_ns) / 1e9, self._fail, run, EVERY_CLIENT_LEFT, FailureVerdict())

    def _failed(self, run: StageRun, code: grpc.StatusCode, details: str) -> None:
        """A stage's call did not end well."""
        if code is grpc.StatusCode.CANCELLED and run.abandoned:
            self._fail_as_planned(run)
            return
        run.recovery = self._loop.create_task(self._recovered(run, code, details))
        self._tasks.add(run.recovery)
        run.recovery.add_done_callback(self._tasks.discard)

    async def _recovered(self, run: StageRun, code: grpc.StatusCode, details: str) -> None:
        try:
            if verdict := await self._recovery.verdict(run, code, details):
                self._fail(run, details, verdict)
                self._recovery.failed(run, code, details)
        except Exception as error:
            faults.report("the recovery of a stage", error)
            self.crash(run.effect)

    def _fail(self, run: StageRun, reason: str, verdict: FailureVerdict) -> None:
        """A stage has failed, and its requests are dealt with as it was decided."""
        batch = run.effect.batch
        if run not in self._running:
            return  # its worker was given up, and its requests with it
        waiting = [client.request_id for client in self._clients.of(batch.request_ids)]
        middle = len(waiting) // 2
        apart = tuple(tuple(half) for half in (waiting[:middle], waiting[middle:]) if half) if verdict.halved else ()
        now_ns = self._running.end(run)
        stage, worker_id = run.effect.stage, run.worker_id
        self._engine.handle(BatchFailed(now_ns, batch.id, stage, worker_id, reason, retry=verdict.retry, apart=apart))
        if verdict.outcome:
            self._clients.settle(run, [verdict.outcome] * len(run.clients))
        self._engine.perform()
        if run.execution:
            self._observability.batch_ended(run.execution, now_ns, reason)
        run.payload.close(finished=True)


def _divided(answer: bytes, run: StageRun) -> Sequence[Outcome]:
    try:
        return run.payload.outcomes(answer)
    except ScatterError as error:
        return [RequestFailed(grpc.StatusCode.INTERNAL, str(error), category="BACKEND")] * len(run.clients)
