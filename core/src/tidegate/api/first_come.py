"""First come, first served: the simplest policy, and what goes on when another one breaks (invariant 9)."""

from tidegate.api.commands import Dispatch
from tidegate.api.model import Worker
from tidegate.api.policy import Commands
from tidegate.api.queueing import QueueingPolicy, RequestQueue


class FirstComeFirstServed(QueueingPolicy):
    """The oldest waiting request, with what can join it, runs on the first idle worker. Nothing is dropped."""

    best_effort = True

    def largest_batch(self, queue: RequestQueue) -> int:
        """The most rows that a batch of this queue may have."""
        return queue.model.max_rows

    def queue_changed(self, now_ns: int, queue: RequestQueue) -> Commands:
        """Run it if a worker is idle."""
        worker = self.idle.peek(queue.model.name)
        return [self._run(now_ns, queue, worker)] if queue and worker else ()

    def worker_freed(self, now_ns: int, worker: Worker) -> Commands:
        """Run the queue whose head waits longest among those that the worker hosts."""
        waiting = [queue for queue in self.queues.values() if queue.model.name in worker.hosts]
        if not waiting:
            return ()
        return [self._run(now_ns, min(waiting, key=lambda queue: (queue.head.arrival_ns, queue.head.id)), worker)]

    def _run(self, now_ns: int, queue: RequestQueue, worker: Worker) -> Dispatch:
        count, _ = queue.prefix_within(self.largest_batch(queue))
        return self.dispatch(now_ns, queue, max(count, 1), worker)
