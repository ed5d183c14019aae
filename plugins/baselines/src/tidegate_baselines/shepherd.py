"""Shepherd's Flex: the largest batch first; running small batches are preempted for larger ones.

Zhang et al., *SHEPHERD: Serving DNNs in the Wild*, Flex scheduling algorithm; as the baseline of Symphony, sections 2.2
and 5, whose authors asked Shepherd's authors about open points of the pseudo-code.
"""

from collections.abc import Collection
from itertools import chain, islice
from math import ceil

from pydantic import Field

from tidegate.api import (
    NEVER_NS,
    AnyCommand,
    BatchFailed,
    Commands,
    Dispatch,
    PolicyOptions,
    Preempt,
    Profile,
    QueueKey,
    Request,
    SetTimer,
    Setup,
    StageFinished,
    TimerFired,
    Worker,
    WorkerLost,
    WorkerReady,
)
from tidegate.toolkit import FormedBatch, RequestQueue
from tidegate_baselines.early_drop import NEXUS_BATCH_FORMATION, EarlyDrop
from tidegate_baselines.small_batches import RunningBatch, SmallBatches

ROUNDING_FACTOR = 1 + 1e-9
"""Factor on divisions, so that rounding misses no batch that `_is_worth` finds by multiplication."""
MAX_REMEMBERED_REQUESTS = 4096
"""Maximum number of remembered preempted requests: far more than wait for another try."""


class ShepherdOptions(PolicyOptions):
    """Options of the policy `shepherd`."""

    preempt_ratio: float = Field(
        default=3.0, gt=1, description="Rows of a batch relative to a running one from which it preempts that one"
    )
    reproduce_published_bug: bool = Field(
        default=False,
        description="Whether to repeat the bug behind the published figures, for comparison: it looks for hopeless "
        "requests at the wrong end of a queue, which then stalls",
    )


class Shepherd(EarlyDrop):
    """Shepherd: one candidate for each queue, as large as its oldest request allows; a free worker takes the largest.

    If no worker is idle, a candidate that is `preempt_ratio` times as large as a running batch takes its worker; if
    that batch is of the same queue, the candidate includes it. The preempted work is lost, and its requests wait again.
    Departures from the paper, which has one client: a request is preempted at most once, otherwise large batches starve
    small ones; and for other clients only if it is still on time.
    """

    Options = ShepherdOptions
    options: ShepherdOptions
    supports_pipelined_dispatch = False
    """False: a batch that waits behind another one could not be preempted for a third one."""

    def __init__(self, setup: Setup, options: ShepherdOptions) -> None:
        super().__init__(setup, options)
        self._running: dict[int, RunningBatch] = {}
        """The batches that run, by worker id."""
        self._small = SmallBatches()
        """The batches that run and whose place no other batch takes yet."""
        self._preempted: dict[int, QueueKey] = {}
        """The queue a worker was preempted for, by worker id, until it is free and what ran there is queued again."""
        self._served: set[QueueKey] = set()
        """The queues for which a worker was preempted that is not free yet."""
        self._made_way: dict[int, None] = {}
        """The ids of the requests that made way, the latest last: they do so once."""

    def candidate(self, now_ns: int, queue: RequestQueue, profile: Profile) -> FormedBatch | None:
        """Return the most requests that the deadline of the oldest allows at `now_ns`; None if it is late.

        `profile`: latency on the worker.
        """
        return NEXUS_BATCH_FORMATION.keep_head(queue, profile, now_ns)

    def rank(self, candidate: FormedBatch, profile: Profile) -> int:
        """Return the rank: the largest candidate comes first."""
        return -candidate.rows

    def serve(self, now_ns: int, queue: RequestQueue, commands: list[AnyCommand]) -> None:
        """Append commands that dispatch the queue to an idle worker, or preempt a batch that is small enough."""
        super().serve(now_ns, queue, commands)
        if queue and queue.key not in self._served:
            for worker_id in sorted(self._perhaps_worth(now_ns, queue)):
                worker, running = self.idle.get(worker_id), self._running[worker_id]
                if worker and self._is_worth(now_ns, queue, worker, running):
                    self._small.remove(worker_id, running)
                    self._remember(running)
                    self._preempted[worker_id] = queue.key
                    self._served.add(queue.key)
                    commands.append(Preempt(running.batch_id))
                    return

    def dispatch(self, now_ns: int, queue: RequestQueue, count: int, worker: Worker, *, start: int = 0) -> Dispatch:
        """Dispatch `count` requests from position `start` on, and record the batch as preemptible."""
        requests = list(islice(queue, start, start + count))
        dispatch = super().dispatch(now_ns, queue, count, worker, start=start)
        rows = sum(request.rows for request in requests)
        due_ns = min(request.deadline_ns for request in requests)
        is_new = self._made_way.keys().isdisjoint(dispatch.batch.request_ids)
        running = RunningBatch(dispatch.batch.id, queue.key, requests, rows, due_ns, may_make_way=is_new)
        self._running[worker.id] = running
        if is_new:
            self._small.add(worker.id, running)
        return dispatch

    def on_stage_finished(self, event: StageFinished) -> Commands:
        """Forget the batch, which may have ended before its preemption."""
        self._ended(event.worker_id)
        self._taken(event.worker_id)
        return ()

    def on_batch_failed(self, event: BatchFailed) -> Commands:
        """Forget the batch, which may have been preempted."""
        self._ended(event.worker_id)
        return ()

    def on_worker_ready(self, event: WorkerReady) -> Commands:
        """Dispatch to the worker; after a preemption only when the preempted requests are queued again."""
        if event.worker_id in self._preempted:
            return [SetTimer(event.worker_id, event.now_ns)]
        return super().on_worker_ready(event)

    def on_timer_fired(self, event: TimerFired) -> Commands:
        """Dispatch to the worker of a finished preemption; other timers belong to queues."""
        if not isinstance(event.key, int):
            return super().on_timer_fired(event)
        if not self._taken(event.key):
            return ()
        return super().on_worker_ready(WorkerReady(event.now_ns, event.key, event.now_ns))

    def on_worker_lost(self, event: WorkerLost) -> Commands:
        """Forget the batch on the lost worker; BatchFailed for it follows."""
        self._ended(event.worker_id)
        self._taken(event.worker_id)
        return super().on_worker_lost(event)

    def forget_plans(self, partitions: Collection[str], shape: str | None = None) -> None:
        """Examine all running batches again: one that was too late to restart may now be on time."""
        super().forget_plans(partitions, shape)
        self._small.reconsider(
            (worker_id, running)
            for worker_id, running in self._running.items()
            if worker_id not in self._preempted and running.may_make_way
        )

    def drop_hopeless(self, now_ns: int, queue: RequestQueue, fastest: Profile) -> Commands:
        """Drop the oldest request if it is hopeless; with `reproduce_published_bug` only when the youngest is.

        `fastest`: profile of the fastest worker.
        """
        return () if self._stalls(now_ns, queue, fastest) else super().drop_hopeless(now_ns, queue, fastest)

    def wake_ns(self, now_ns: int, queue: RequestQueue, fastest: Profile) -> int:
        """Return the time in ns at which the oldest request becomes hopeless; with `reproduce_published_bug` the
        youngest.

        `fastest`: profile of the fastest worker.
        """
        youngest = self._stalls(now_ns, queue, fastest)
        if youngest is None:
            return super().wake_ns(now_ns, queue, fastest)
        return youngest.deadline_ns - fastest.upper_ns(youngest.rows) + 1

    def _stalls(self, now_ns: int, queue: RequestQueue, fastest: Profile) -> Request | None:
        """The request that the published slip waits on: the youngest with a deadline, as long as it is
        not hopeless."""
        if not self.options.reproduce_published_bug:
            return None
        youngest = next((request for request in reversed(list(queue)) if request.deadline_ns < NEVER_NS), None)
        return None if youngest is None or NEXUS_BATCH_FORMATION.is_hopeless(youngest, fastest, now_ns) else youngest

    def _ended(self, worker_id: int) -> None:
        running = self._running.pop(worker_id, None)
        if running and worker_id not in self._preempted and running.may_make_way:
            self._small.remove(worker_id, running)

    def _remember(self, running: RunningBatch) -> None:
        for request in running.requests:
            self._made_way[request.id] = None
        while len(self._made_way) > MAX_REMEMBERED_REQUESTS:
            del self._made_way[next(iter(self._made_way))]

    def _taken(self, worker_id: int) -> bool:
        """A worker is not on its way from one batch to another any more; False: it was not."""
        key = self._preempted.pop(worker_id, None)
        if key is not None:
            self._served.remove(key)
        return key is not None

    def _perhaps_worth(self, now_ns: int, queue: RequestQueue) -> list[int]:
        """The workers whose batch the queue's candidate would be worth if they were the fastest: none is missing."""
        fastest = self.fastest_profile(queue.model.name, queue.shape)
        if fastest is None:
            return []
        ratio, largest = self.options.preempt_ratio, queue.model.merged_rows
        candidate = self.candidate(now_ns, queue, fastest)
        found = self._small.of_others(queue.key, ROUNDING_FACTOR * candidate.rows / ratio) if candidate else []

        def late(worker_id: int) -> bool:
            running = self._running[worker_id]
            least = ceil(ratio * running.rows)
            return least > largest or now_ns + fastest.upper_ns(least) > running.due_ns

        return found + self._small.of_own(queue.key, ROUNDING_FACTOR * queue.rows / (ratio - 1), late)

    def _is_worth(self, now_ns: int, queue: RequestQueue, worker: Worker, running: RunningBatch) -> bool:
        """Whether the queue's candidate for this worker is so much larger than what runs there."""
        model = queue.model.name
        least = self.options.preempt_ratio * running.rows
        same = running.key == queue.key
        if model not in worker.hosts or queue.rows + (running.rows if same else 0) < least:
            return False
        requests = chain(running.requests if same else (), queue)
        profile = self.profile(model, worker, queue.shape)
        candidate = NEXUS_BATCH_FORMATION.longest_run(requests, queue.model.merged_rows, profile, now_ns)
        if candidate is None or candidate.rows < least:
            return False
        back_ns = now_ns + profile.upper_ns(candidate.rows)
        again_ns = back_ns + self.profile(running.key[0], worker, running.key[1]).upper_ns(running.rows)
        return same or again_ns <= running.due_ns or not self._is_anothers(queue, candidate, running)

    @staticmethod
    def _is_anothers(queue: RequestQueue, candidate: FormedBatch, running: RunningBatch) -> bool:
        """Whether what runs is of a client that has nothing in the candidate."""
        clients = {request.client for request in islice(queue, candidate.start, candidate.start + candidate.count)}
        return any(request.client not in clients for request in running.requests)
