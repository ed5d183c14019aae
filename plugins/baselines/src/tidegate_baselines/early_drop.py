"""Base class of eager, timeout, Clockwork and Shepherd: central queues, dispatch to idle workers, early drop."""

from abc import abstractmethod
from typing import ClassVar

from tidegate.api import NEVER_NS, AnyCommand, Commands, Drop, Profile, SetTimer, Worker
from tidegate.toolkit import FormedBatch, Gathering, QueueingPolicy, RequestQueue

NEXUS_BATCH_FORMATION = Gathering(reserve_ns=0)


class EarlyDrop(QueueingPolicy):
    """Base class: runs a queue's batch as soon as a worker is idle, and drops requests that would be late even alone.

    Subclasses choose the batch that a queue would run, and the queue that a free worker serves.
    """

    gives_up_skipped: ClassVar[bool] = False
    """Whether requests before a batch that does not begin at the head are dropped; otherwise they may still run."""

    @abstractmethod
    def candidate(self, now_ns: int, queue: RequestQueue, profile: Profile) -> FormedBatch | None:
        """Return the batch that a queue would start at `now_ns` on a worker with this profile; None if there is
        none.
        """

    @abstractmethod
    def rank(self, candidate: FormedBatch, profile: Profile) -> int:
        """Return the rank of a candidate: a free worker runs the candidate with the smallest rank."""

    def queue_changed(self, now_ns: int, queue: RequestQueue) -> Commands:
        """Dispatch the queue to idle workers as far as requests are on time."""
        commands: list[AnyCommand] = []
        self.serve(now_ns, queue, commands)
        return commands

    def worker_freed(self, now_ns: int, worker: Worker) -> Commands:
        """Run the best candidate of all queues on the worker.

        A worker that is about to be idle gets it only if it is as good then as at the latest planned end: once the
        worker is idle, possibly earlier than planned, more requests may be on time.
        """
        found = []
        for queue in self.queues.values():
            if queue.model.name in worker.hosts:
                profile = self.profile(queue.model.name, worker, queue.shape)
                candidate = self.candidate(now_ns, queue, profile)
                if candidate:
                    found.append((self.rank(candidate, profile), queue.key, candidate, profile))
        if not found:
            return ()
        _, key, candidate, profile = min(found, key=lambda entry: entry[:2])
        queue, start_ns = self.queues[key], self.start_ns(now_ns, worker)
        if start_ns > now_ns and candidate != self.candidate(start_ns, queue, profile):
            return ()
        commands: list[AnyCommand] = []
        self._run(now_ns, queue, candidate, worker, commands)
        self.serve(now_ns, queue, commands)  # what is left has another head
        return commands

    def serve(self, now_ns: int, queue: RequestQueue, commands: list[AnyCommand]) -> None:
        """Append commands that dispatch to idle workers, drop hopeless requests, and set a timer for the next
        change.
        """
        while queue and (fastest := self.fastest_profile(queue.model.name, queue.shape)):
            if dropped := self.drop_hopeless(now_ns, queue, fastest):
                commands.extend(dropped)
            elif not self._grant(now_ns, queue, commands):
                wake_ns = self.wake_ns(now_ns, queue, fastest)
                if wake_ns < NEVER_NS:
                    commands.append(SetTimer(queue.key, wake_ns))
                return

    def drop_hopeless(self, now_ns: int, queue: RequestQueue, fastest: Profile) -> Commands:
        """Drop the oldest request if it will miss its deadline on the fastest worker; return the commands."""
        if not NEXUS_BATCH_FORMATION.is_hopeless(queue.head, fastest, now_ns):
            return ()
        return [Drop(request.id, "deadline_unreachable") for request in self.take(queue, 1)]

    def wake_ns(self, now_ns: int, queue: RequestQueue, fastest: Profile) -> int:
        """Return the time in ns for the next check of a queue: when its oldest request becomes hopeless.

        `fastest`: profile of the fastest worker.
        """
        head = queue.head
        return NEVER_NS if head.deadline_ns == NEVER_NS else head.deadline_ns - fastest.upper_ns(head.rows) + 1

    def _grant(self, now_ns: int, queue: RequestQueue, commands: list[AnyCommand]) -> bool:
        """Give the queue's batch to the idle worker of the smallest id on which it is on time; False if none is."""
        for worker in self.idle.peek_each_kind(queue.model.name):
            candidate = self.candidate(now_ns, queue, self.profile(queue.model.name, worker, queue.shape))
            if candidate:
                self._run(now_ns, queue, candidate, worker, commands)
                return True
        return False

    def _run(
        self, now_ns: int, queue: RequestQueue, candidate: FormedBatch, worker: Worker, commands: list[AnyCommand]
    ) -> None:
        start = candidate.start
        if self.gives_up_skipped:
            commands.extend(Drop(request.id, "early_drop") for request in self.take(queue, start))
            start = 0
        commands.append(self.dispatch(now_ns, queue, candidate.count, worker, start=start))
