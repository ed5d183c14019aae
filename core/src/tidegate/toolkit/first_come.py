"""First come, first served: the simplest policy, and the fallback of a failed one (invariant 9)."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from tidegate.api import (
    AnyCommand,
    Batch,
    BatchFailed,
    Commands,
    Dispatch,
    Drop,
    Pipeline,
    PolicyOptions,
    Setup,
    Stage,
    StageFinished,
    Worker,
    WorkerJoined,
    WorkerLost,
)
from tidegate.toolkit.queueing import QueueingPolicy, RequestQueue


class FirstComeFirstServed(QueueingPolicy):
    """First come, first served: the oldest request and those that can join it run on the first idle worker.

    Requests of unsplit models are never dropped. A batch of a split model starts when a worker of its first partition
    is idle; each later stage is reserved on the worker expected to be free first. A request that no route answers on
    time is dropped, because it would occupy several workers.
    """

    best_effort = True
    runs_pipelines = True

    def __init__(self, setup: Setup, options: PolicyOptions) -> None:
        super().__init__(setup, options)
        self._books_ahead = any(model.pipelines for model in setup.models)
        """Whether later stages are booked on workers that are busy; then no stage is sent before its worker is idle."""
        self.supports_pipelined_dispatch = not self._books_ahead
        self._hosting: dict[str, dict[int, Worker]] = defaultdict(dict)
        """The workers by partition and id."""
        self._stages: dict[int, dict[int, Stage]] = {}
        """The stages that are not over, by batch and by their numbers, as long as is expected."""
        self._work_ns: Counter[int] = Counter()
        """How long these take together, by worker."""
        self._ends_ns: dict[int, tuple[int, int]] = {}
        """When the last of them on a worker was expected to end, and until when it is booked, by worker."""
        for worker in setup.workers:
            self._join(worker)

    def largest_batch(self, queue: RequestQueue) -> int:
        """Return the maximum rows of a batch of several requests of this queue."""
        return queue.model.merged_rows

    def queue_changed(self, now_ns: int, queue: RequestQueue) -> Commands:
        """Dispatch the queue if workers are idle."""
        return self._run(now_ns, queue) if queue else ()

    def worker_freed(self, now_ns: int, worker: Worker) -> Commands:
        """Dispatch the queue with the longest-waiting request among those that the worker can run."""
        waiting = [
            queue
            for queue in self.queues.values()
            if any(part in worker.hosts for path in queue.paths for part in path.partitions)
        ]
        waiting.sort(key=lambda queue: (queue.head.arrival_ns, queue.head.id))
        commands: list[AnyCommand] = []
        for queue in waiting:
            if not self.idle.is_idle(worker.id):
                break
            commands += self.queue_changed(now_ns, queue)
        return commands

    def on_stage_finished(self, event: StageFinished) -> Commands:
        """Update the work of the stage's worker."""
        self._strike(event.batch_id, (event.stage,))
        return ()

    def on_batch_failed(self, event: BatchFailed) -> Commands:
        """Update the work of the batch's workers."""
        self._strike(event.batch_id, tuple(self._stages.get(event.batch_id, ())))
        return ()

    def on_worker_joined(self, event: WorkerJoined) -> Commands:
        """Add the worker to those that stages are reserved on."""
        self._join(event.worker)
        return super().on_worker_joined(event)

    def on_worker_lost(self, event: WorkerLost) -> Commands:
        """Stop reserving stages on the worker; batches on their way to it fail first."""
        for hosting in self._hosting.values():
            hosting.pop(event.worker_id, None)
        for batch_id, stages in list(self._stages.items()):
            if lost := [number for number, stage in stages.items() if stage.worker_id == event.worker_id]:
                self._strike(batch_id, [number for number in stages if number >= lost[0]])
        return super().on_worker_lost(event)

    def _run(self, now_ns: int, queue: RequestQueue) -> list[Dispatch | Drop]:
        """The head and what can join it, where workers are idle."""
        if queue.model.pipelines:
            return self._run_along(now_ns, queue)
        worker = self.idle.peek(queue.model.name)
        if worker is None:
            return []
        count, _ = queue.prefix_within(min(self.largest_batch(queue), queue.model.max_rows))
        dispatch = self.dispatch(now_ns, queue, count, worker)
        if self._books_ahead:
            self._note(dispatch.batch, dispatch.batch.stages)
        return [dispatch]

    # Split models ------------------------------------------------------------------------------------------------

    def _run_along(self, now_ns: int, queue: RequestQueue) -> list[Dispatch | Drop]:
        """Dispatch while a worker of a first partition is idle; drop what is hopeless meanwhile."""
        commands: list[Dispatch | Drop] = []
        while queue:
            head = queue.head
            paths = [path for path in queue.paths if head.rows <= path.max_rows and self._is_bookable(path)]
            first = {path: self.idle.peek_each_kind(path.partitions[0]) for path in paths}
            if not any(first.values()):
                break
            found = [
                found for path in paths if first[path] and (found := self._on_time(now_ns, queue, path, first[path]))
            ]
            if found:
                count, stages = min(found, key=lambda each: each[1][-1].end_ns)
                commands.append(self._depart(now_ns, queue, count, stages))
            elif any(self._plan(now_ns, queue, path, head.rows)[-1].end_ns <= head.deadline_ns for path in paths):
                break  # a worker that is busy would be on time
            else:
                (lost,) = self.take(queue, 1)
                commands.append(Drop(lost.id, "deadline_unreachable"))
        return commands

    def _on_time(
        self, now_ns: int, queue: RequestQueue, path: Pipeline, first: list[Worker]
    ) -> tuple[int, list[Stage]] | None:
        """The largest batch with the head that is on time for it, of all that can join, half as many, and so on.

        Returns its requests and its stages; None where not even the head alone is on time.
        """
        count, rows = queue.prefix_within(min(self.largest_batch(queue), path.max_rows))
        while True:
            stages = self._plan(now_ns, queue, path, rows, first)
            if stages[-1].end_ns <= queue.head.deadline_ns:
                return count, stages
            if count == 1:
                return None
            count //= 2
            rows = sum(request.rows for request, _ in zip(queue, range(count), strict=False))

    def _plan(
        self, now_ns: int, queue: RequestQueue, path: Pipeline, rows: int, first: Iterable[Worker] = ()
    ) -> list[Stage]:
        """Each stage on the worker that is expected to be done first with it; `first`: those to choose from at
        first."""
        stages: list[Stage] = []
        ready_ns = now_ns
        for partition in path.partitions:
            found = [
                Stage(
                    worker.id,
                    partition,
                    max(ready_ns, self._last_ends_ns(worker.id)[0], now_ns + self._work_ns[worker.id]),
                    self.profile(partition, worker, queue.shape).expected_ns(rows),
                )
                for worker in ((not stages and first) or self._bookable(partition))
            ]
            stages.append(min(found, key=lambda stage: (stage.end_ns, self._work_ns[stage.worker_id], stage.worker_id)))
            ready_ns = stages[-1].end_ns + self._transfer_ns(partition, rows)
        return stages

    def _depart(self, now_ns: int, queue: RequestQueue, count: int, stages: list[Stage]) -> Dispatch:
        """Book the stages as early as they may begin: each does once its worker, and the stage before it, are done."""
        requests = self.take(queue, count)
        rows = sum(request.rows for request in requests)
        booked: list[Stage] = []
        start_ns = now_ns
        for stage in stages:
            worker = self._hosting[stage.partition][stage.worker_id]
            least_ns = self.profile(stage.partition, worker, queue.shape).lower_bound_ns(rows)
            start_ns = max(start_ns, self._last_ends_ns(worker.id)[1])
            booked.append(Stage(worker.id, stage.partition, start_ns, least_ns))
            start_ns = booked[-1].end_ns
            self.idle.occupy(worker.id)
        request_ids = tuple(request.id for request in requests)
        batch = Batch(self.new_batch_id(), queue.model.name, request_ids, tuple(booked))
        self._note(batch, stages)
        return Dispatch(batch)

    def _note(self, batch: Batch, expected: Sequence[Stage]) -> None:
        """The stages of a batch are booked, of which so much is expected."""
        self._stages[batch.id] = dict(enumerate(expected))
        for stage, booked in zip(expected, batch.stages, strict=True):
            self._work_ns[stage.worker_id] += stage.duration_ns
            self._ends_ns[stage.worker_id] = stage.end_ns, booked.end_ns

    def _last_ends_ns(self, worker_id: int) -> tuple[int, int]:
        return self._ends_ns[worker_id] if self._work_ns[worker_id] else (0, 0)

    def _strike(self, batch_id: int, numbers: Iterable[int]) -> None:
        """These stages of a batch are over, or will not run."""
        stages = self._stages.get(batch_id, {})
        for number in numbers:
            if stage := stages.pop(number, None):
                self._work_ns[stage.worker_id] -= stage.duration_ns
        if not stages:
            self._stages.pop(batch_id, None)

    def _join(self, worker: Worker) -> None:
        self._work_ns[worker.id] = 0
        for partition in worker.hosts:
            self._hosting[partition][worker.id] = worker

    def _is_bookable(self, path: Pipeline) -> bool:
        return all(any(self._bookable(partition)) for partition in path.partitions)

    def _bookable(self, partition: str) -> Iterator[Worker]:
        """The workers that are idle or have stages of ours. The others run what the engine gave them (late
        requests)."""
        for worker in self._hosting[partition].values():
            if self._work_ns[worker.id] or self.idle.is_idle(worker.id):
                yield worker

    def _transfer_ns(self, partition: str, rows: int) -> int:
        network = self.setup.network
        return network.transfer_ns(partition, rows) + network.latency_ns if network else 0
