"""First come, first served: the simplest policy, and what goes on when another one breaks (invariant 9)."""

from tidegate.api import Batch, Commands, Dispatch, Leg, Worker
from tidegate.toolkit.queueing import QueueingPolicy, RequestQueue


class FirstComeFirstServed(QueueingPolicy):
    """The oldest waiting request, with what can join it, runs on the first idle worker. Nothing is dropped.

    A split model runs where a worker of each of its partitions is idle; each is kept for it until its leg is done.
    """

    best_effort = True
    runs_pipelines = True

    def largest_batch(self, queue: RequestQueue) -> int:
        """The most rows that a batch of several requests of this queue may have."""
        return queue.model.merged_rows

    def queue_changed(self, now_ns: int, queue: RequestQueue) -> Commands:
        """Run it if workers are idle."""
        return self._run(now_ns, queue) if queue else ()

    def worker_freed(self, now_ns: int, worker: Worker) -> Commands:
        """Run the queue whose head waits longest among those that can run now that this worker is idle."""
        waiting = [
            queue
            for queue in self.queues.values()
            if queue.model.name in worker.hosts
            or any(part in worker.hosts for path in queue.model.pipelines for part in path.partitions)
        ]
        while waiting:
            oldest = min(waiting, key=lambda queue: (queue.head.arrival_ns, queue.head.id))
            if commands := self._run(now_ns, oldest):
                return commands
            waiting.remove(oldest)
        return ()

    def _run(self, now_ns: int, queue: RequestQueue) -> Commands:
        """The head and what can join it, through the first pipeline that takes the head and has idle workers."""
        for path in queue.paths:
            if queue.head.rows > path.max_rows:
                continue
            workers = [self.idle.peek(partition) for partition in path.partitions]
            present = [worker for worker in workers if worker is not None]
            if len(present) < len(workers):
                continue
            count, _ = queue.prefix_within(min(self.largest_batch(queue), path.max_rows))
            if path.partitions == (queue.model.name,):
                return [self.dispatch(now_ns, queue, count, present[0])]
            return [self._dispatch_along(now_ns, queue, count, path.partitions, present)]
        return ()

    def _dispatch_along(
        self, now_ns: int, queue: RequestQueue, count: int, partitions: tuple[str, ...], workers: list[Worker]
    ) -> Dispatch:
        requests = self.take(queue, count)
        rows = sum(request.rows for request in requests)
        legs: list[Leg] = []
        start_ns = now_ns
        for partition, worker in zip(partitions, workers, strict=True):
            start_ns = max(start_ns, self.start_ns(now_ns, worker))
            legs.append(
                Leg(worker.id, partition, start_ns, self.profile(partition, worker, queue.shape).planned_ns(rows))
            )
            start_ns = legs[-1].end_ns
        for worker in workers:
            self.idle.occupy(worker.id)
        return Dispatch(
            Batch(self.new_batch_id(), queue.model.name, tuple(request.id for request in requests), tuple(legs))
        )
