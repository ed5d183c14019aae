"""Earliest deadline first with early drop: serves the queue with the earliest deadline, drops hopeless requests."""

from pydantic import Field

from tidegate.api import (
    NEVER_NS,
    AnyCommand,
    Commands,
    Dispatch,
    Drop,
    PolicyOptions,
    SetTimer,
    Setup,
    Worker,
    ms_to_ns,
)
from tidegate.toolkit import Gathering, QueueingPolicy, RequestQueue


class TemplateOptions(PolicyOptions):
    """Options of the policy `template`; each has a default and a description."""

    deadline_margin_ms: float = Field(
        default=0, ge=0, description="Time to finish before each deadline, for the response to reach the client"
    )


class Template(QueueingPolicy):
    """Earliest deadline first: a free worker serves the queue whose oldest request has the earliest deadline.

    `QueueingPolicy` keeps the queues (one for each model, shape and merge key, oldest request first), the idle workers
    and the profiles. This class decides what to do when a queue changed, when its timer is due, and when a worker is
    free.
    """

    Options = TemplateOptions
    options: TemplateOptions

    def __init__(self, setup: Setup, options: TemplateOptions) -> None:
        super().__init__(setup, options)
        self._gathering = Gathering(reserve_ns=ms_to_ns(options.deadline_margin_ms))

    def queue_changed(self, now_ns: int, queue: RequestQueue) -> Commands:
        """Dispatch to idle workers while the queue allows; drop requests that will miss their deadline."""
        commands: list[AnyCommand] = []
        while queue and (latest_ns := self._latest_start_ns(queue)) is not None:
            if now_ns > latest_ns:
                commands += [Drop(request.id, "deadline_unreachable") for request in self.take(queue, 1)]
            elif dispatch := self._dispatch_on_time(now_ns, queue):
                commands.append(dispatch)
            else:  # wait for `worker_freed`, or until the oldest request has to be dropped
                return commands if latest_ns == NEVER_NS else [*commands, SetTimer(queue.key, latest_ns + 1)]
        return commands

    def worker_freed(self, now_ns: int, worker: Worker) -> Commands:
        """Serve the queues whose model the worker hosts, by the deadline of their oldest requests."""
        hosted = [queue for queue in self.queues.values() if queue.model.name in worker.hosts]
        commands: list[AnyCommand] = []
        for queue in sorted(hosted, key=lambda queue: (queue.head.deadline_ns, queue.key)):
            if not self.idle.is_idle(worker.id):
                break
            commands += self.queue_changed(now_ns, queue)
            if self.start_ns(now_ns, worker) > now_ns:
                break  # the most urgent queue would be late behind the running stage: keep the worker for it
        return commands

    def _latest_start_ns(self, queue: RequestQueue) -> int | None:
        """Latest start, in ns, of the oldest request, alone on the fastest worker; None if no worker hosts its
        model."""
        model, head = queue.model.name, queue.head
        latencies_ns = [
            self.profiles[model, device_class, queue.shape].upper_ns(head.rows)
            for device_class in self.idle.kinds_hosting(model)
        ]
        if not latencies_ns:
            return None
        due_ns = self._gathering.due_ns(head)
        return due_ns if due_ns == NEVER_NS else due_ns - min(latencies_ns)

    def _dispatch_on_time(self, now_ns: int, queue: RequestQueue) -> Dispatch | None:
        """Dispatch the largest batch with the oldest request to the first idle worker that meets its deadline."""
        for worker in self.idle.peek_each_kind(queue.model.name):
            profile, start_ns = self.profile(queue.model.name, worker, queue.shape), self.start_ns(now_ns, worker)
            gathered = self._gathering.keep_head(queue, profile, start_ns)
            if gathered:
                return self.dispatch(now_ns, queue, gathered.count, worker)
        return None
