"""Clipper: finds the batch size by trial instead of planning it (Crankshaw et al., *Clipper*, section 4.3.1)."""

from dataclasses import dataclass
from typing import Self

from pydantic import Field

from tidegate.api import (
    AnyCommand,
    BatchFailed,
    Commands,
    Drop,
    PolicyOptions,
    Setup,
    StageFinished,
    Worker,
    WorkerLost,
)
from tidegate.toolkit import QueueingPolicy, RequestQueue

SizeKey = tuple[int, str, str]
"""Key of a batch size: (worker, model, shape)."""


class ClipperOptions(PolicyOptions):
    """Options of the policy `clipper`."""

    increase_rows: float = Field(
        default=1.0, gt=0, description="Rows by which the batch size grows after a full batch within the SLO"
    )
    backoff_factor: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="Fraction by which the batch size shrinks after a batch that exceeded the SLO",
    )


@dataclass(frozen=True, slots=True)
class _Running:
    """A batch on its worker."""

    key: SizeKey
    was_full: bool


class Clipper(QueueingPolicy):
    """Clipper: an idle worker takes the oldest requests, up to the batch size that it has found so far.

    The size rises additively while full batches take no longer than the SLO, and is multiplied by `1 - backoff_factor`
    when one takes longer; each worker has its own size for each model. Requests past their deadline are dropped when a
    worker examines the queue.
    """

    Options = ClipperOptions
    options: ClipperOptions
    best_effort = True

    def __init__(self, setup: Setup, options: ClipperOptions) -> None:
        super().__init__(setup, options)
        self._sizes: dict[SizeKey, float] = {}
        self._running: dict[int, _Running] = {}
        """Running batches by id."""

    def migrate(self, setup: Setup) -> Self:
        """Return the next policy, with the batch sizes found for remaining workers and models."""
        follower = super().migrate(setup)
        workers = {worker.id for worker in setup.workers}
        follower._sizes = {
            key: rows for key, rows in self._sizes.items() if key[0] in workers and key[1] in follower.models
        }
        return follower

    def batch_rows(self, queue: RequestQueue, worker: Worker) -> int:
        """Return the rows of the batch that a worker would take now."""
        return int(self._sizes.get((worker.id, queue.model.name, queue.shape), 1.0))

    def queue_changed(self, now_ns: int, queue: RequestQueue) -> Commands:
        """Dispatch the queue if workers are idle."""
        commands: list[AnyCommand] = []
        while queue and (worker := self.idle.peek(queue.model.name)):
            self._run(now_ns, queue, worker, commands)
        return commands

    def worker_freed(self, now_ns: int, worker: Worker) -> Commands:
        """Dispatch the queue whose oldest request waits longest."""
        commands: list[AnyCommand] = []
        while self.idle.is_idle(worker.id):
            waiting = [queue for queue in self.queues.values() if queue.model.name in worker.hosts]
            if not waiting:
                break
            oldest = min(waiting, key=lambda queue: (queue.head.arrival_ns, queue.head.id))
            self._run(now_ns, oldest, worker, commands)
        return commands

    def on_stage_finished(self, event: StageFinished) -> Commands:
        """Adapt the batch size to the duration of the batch."""
        ran = self._running.pop(event.batch_id, None)
        slo_ns = self.models[ran.key[1]].slo_ns if ran else None
        if ran and slo_ns is not None and event.ended_ns - event.started_ns > slo_ns:
            self._sizes[ran.key] = max(1.0, (1 - self.options.backoff_factor) * self._sizes.get(ran.key, 1.0))
        elif ran and ran.was_full:
            most_rows = float(self.models[ran.key[1]].merged_rows)
            self._sizes[ran.key] = min(most_rows, self._sizes.get(ran.key, 1.0) + self.options.increase_rows)
        return ()

    def on_batch_failed(self, event: BatchFailed) -> Commands:
        """Forget the batch; the duration of a failed batch does not change the batch size."""
        self._running.pop(event.batch_id, None)
        return ()

    def on_worker_lost(self, event: WorkerLost) -> Commands:
        """Forget the batch sizes of a lost worker."""
        self._sizes = {key: rows for key, rows in self._sizes.items() if key[0] != event.worker_id}
        return super().on_worker_lost(event)

    def _run(self, now_ns: int, queue: RequestQueue, worker: Worker, commands: list[AnyCommand]) -> None:
        late = [request for request in queue if request.deadline_ns < now_ns]
        if late:
            for request in late:
                queue.remove(request.id)
                del self._queue_of[request.id]
            commands.extend(Drop(request.id, "deadline_unreachable") for request in late)
            self._forget_if_empty(queue)
        if not queue:
            return
        size = self.batch_rows(queue, worker)
        count, rows = queue.prefix_within(min(size, queue.model.merged_rows))
        # Full is also what leaves less room than the next request needs.
        was_full = rows >= size or count < len(queue)
        dispatch = self.dispatch(now_ns, queue, count, worker)
        self._running[dispatch.batch.id] = _Running((worker.id, queue.model.name, queue.shape), was_full)
        commands.append(dispatch)
