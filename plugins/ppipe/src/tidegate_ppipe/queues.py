"""Queues at the first pools: which requests start, which are dropped, how long others wait (PPipe, Algorithm 1)."""

from collections.abc import Callable, Iterable, Iterator, Set
from typing import TYPE_CHECKING

from tidegate.api import (
    NEVER_NS,
    AnyCommand,
    CancelTimer,
    Commands,
    Dispatch,
    Drop,
    Model,
    QueueKey,
    Request,
    SetTimer,
    queue_key,
)
from tidegate.toolkit import RequestQueue
from tidegate_ppipe.routes import ON_TIME_DEVIATIONS
from tidegate_ppipe.sizing import ModelPipelines, SizedBatch, Sizing

if TYPE_CHECKING:
    from collections.abc import Sequence

GATHERING_DEVIATIONS = 3
"""Spare time in standard deviations of a route down to which a batch waits for more requests."""
WHATEVER_COMES = 2**62
"""More rows than can arrive."""


class PoolQueue(RequestQueue):
    """Waiting requests of one queue, and how long they may wait."""

    __slots__ = ("budget", "due_ns", "waits_for_rows", "wake_ns", "wake_rows", "work_ns")

    def __init__(self, key: QueueKey, model: Model) -> None:
        super().__init__(key, model)
        self.waits_for_rows = 0
        """Rows from which there is something to decide before the timer fires; 0: now."""
        self.due_ns = NEVER_NS
        """The instant by which all that waits has to be done with what is planned."""
        self.budget = 1.0
        """The part of a request's time that this is."""
        self.wake_ns = NEVER_NS
        """When the timer fires."""
        self.wake_rows = 0
        """How many rows waited when that was decided."""
        self.work_ns: Sequence[int] = ()
        """Latency of the selected pipeline in ns, by rows - 1."""


class PoolQueues:
    """All queues, and the decisions about each after a change."""

    def __init__(
        self,
        routes: dict[str, ModelPipelines],
        sizing: Sizing,
        dispatch: Callable[[int, PoolQueue, SizedBatch, list[Request]], Dispatch],
        *,
        as_needed: bool,
        slack_ns: int,
    ) -> None:
        """Create empty queues.

        `routes`: pipelines of each model. `dispatch(now_ns, queue, batch, requests)` dispatches the queue's oldest
        requests. `as_needed`: under light load batches do not wait. `slack_ns`: timer latency in ns.
        """
        self.slack_ns = slack_ns
        self._routes = routes
        self._sizing = sizing
        self._dispatch = dispatch
        self._as_needed = as_needed
        self._queues: dict[str, dict[QueueKey, PoolQueue]] = {model: {} for model in routes}
        self._queue_of: dict[int, PoolQueue] = {}

    def follow(self, before: "PoolQueues") -> None:
        """Take over the observed rates of remaining models from the previous policy."""
        for model, routes in self._routes.items():
            if known := before._routes.get(model):
                routes.rate = known.rate

    @property
    def request_ids(self) -> Set[int]:
        """Ids of the waiting requests."""
        return self._queue_of.keys()

    def of(self, models: Iterable[str]) -> list[PoolQueue]:
        """Return the queues of these models."""
        return [queue for model in models for queue in self._queues[model].values()]

    @property
    def gathering(self) -> list[PoolQueue]:
        """Queues that wait for more requests."""
        return [queue for queue in self.of(self._queues) if queue.wake_ns != NEVER_NS]

    def push(self, now_ns: int, request: Request, *, readmitted: bool) -> Commands:
        """Add a request, and look for a route unless its batch waits for more.

        `readmitted`: whether the previous policy counted the request already.
        """
        queues, model = self._queues[request.model], self._routes[request.model].model
        key = queue_key(request, model)
        queue = queues.get(key)
        if queue is None:
            queue = queues[key] = PoolQueue(key, model)
        queue.push(request)
        self._queue_of[request.id] = queue
        if not readmitted:
            self._routes[request.model].rate.observe(now_ns, request.rows)
        if queue.waits_for_rows == WHATEVER_COMES:
            return ()
        if queue.waits_for_rows > queue.rows and self._sizing.due_ns(request, queue.budget) >= queue.due_ns:
            work_ns, rows, before = queue.work_ns, queue.rows, queue.wake_rows
            grown_ns = max(work_ns[rows - 1] - work_ns[before - 1], work_ns[rows] - work_ns[before])
            if queue.wake_ns - grown_ns > now_ns:
                queue.wake_ns -= grown_ns
                queue.wake_rows = queue.rows
                return [SetTimer(queue.key, queue.wake_ns)]
        return list(self._decide(now_ns, queue))

    def remove(self, now_ns: int, request_id: int) -> Commands:
        """Remove a request; its batch may have time to wait for more."""
        queue = self._queue_of.pop(request_id)
        queue.remove(request_id)
        return list(self._decide(now_ns, queue))

    def wake(self, now_ns: int, key: QueueKey) -> Commands:
        """Decide about the queue `key`, whose last start is due; it may be gone."""
        queue = self._queues[key[0]].get(key)
        return list(self._decide(now_ns, queue)) if queue else ()

    def decide(self, now_ns: int, queues: Iterable[PoolQueue]) -> list[AnyCommand]:
        """Decide about these queues, one after the other."""
        return [command for queue in queues for command in self._decide(now_ns, queue)]

    def _decide(self, now_ns: int, queue: PoolQueue) -> Iterator[AnyCommand]:
        """Algorithm 1: dispatch what can and must leave, drop what cannot be on time, else wait."""
        routes = self._routes[queue.model.name]
        was_waiting = queue.wake_ns != NEVER_NS
        queue.waits_for_rows, queue.wake_ns = 0, NEVER_NS  # what it waited for
        while queue:
            found = self._sizing.best(now_ns, queue, routes)
            if found is None and not routes.take(queue.head.rows):
                break  # until a worker joins that is not done with another policy's work, or the engine fails it
            if found is None:
                request = self._take(queue, 1)[0]
                yield Drop(request.id, "deadline_unreachable")
                continue
            if self._gathers(now_ns, queue, found) or found.path.start_ns > now_ns:
                break  # until the last moment, or until that worker is free
            if (early_ns := found.path.early_ns) > 0:
                queue.waits_for_rows, queue.wake_ns = WHATEVER_COMES, now_ns + early_ns
                break  # it would only wait further on, and cannot grow there
            yield self._dispatch(now_ns, queue, found, self._take(queue, found.count))
        if queue.wake_ns != NEVER_NS:
            yield SetTimer(queue.key, queue.wake_ns)
        elif was_waiting:
            yield CancelTimer(queue.key)
        if not queue:
            # Merge keys come from clients (shapes): queues that are no longer used must not pile up.
            self._queues[queue.model.name].pop(queue.key, None)

    def _gathers(self, now_ns: int, queue: PoolQueue, found: SizedBatch) -> bool:
        """Whether all that wait may go on waiting for others; if so, until when."""
        if (
            found.count < len(queue)
            or found.rows == found.size
            or found.due_ns == NEVER_NS
            or not queue.head.deferrable
        ):
            return False
        routes = self._routes[queue.model.name]
        if self._as_needed and routes.is_light and found.rows >= routes.needed_rows():
            return False
        path = found.path
        work_ns = self._sizing.work_ns(found)
        sure_ns = round((GATHERING_DEVIATIONS - ON_TIME_DEVIATIONS) * path.margin_ns)
        last_ns = path.start_ns + (found.due_ns - path.promised_ns) - sure_ns - self.slack_ns
        if self._as_needed:  # one more could not join after that (Symphony's frontrun): to wait on only costs time
            last_ns = min(last_ns, found.due_ns - work_ns[found.rows] - sure_ns - self.slack_ns)
        if last_ns <= now_ns:
            return False
        queue.waits_for_rows, queue.due_ns, queue.budget = found.size, found.due_ns, found.route.budget
        queue.wake_ns, queue.wake_rows, queue.work_ns = last_ns, found.rows, work_ns
        return True

    def _take(self, queue: PoolQueue, count: int) -> list[Request]:
        taken = queue.pop(count)
        for request in taken:
            del self._queue_of[request.id]
        return taken
