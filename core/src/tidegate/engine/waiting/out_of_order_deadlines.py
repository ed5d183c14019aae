"""Requests due before earlier ones of their model: the engine expires them for policies that look only at the
oldest.
"""

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush

from tidegate.api import NEVER_NS, Request
from tidegate.engine.timers import MAX_DEAD_TIMERS


class OutOfOrderDeadlines:
    """Queued requests that are due before some earlier request of their model, and when they are hopeless.

    If deadlines come in the order of arrival, as with one SLO for the whole model, there are none, and only the latest
    deadline is kept.
    """

    def __init__(
        self,
        queued: Mapping[int, Request],
        is_first: Callable[[], bool],
        hopeless_ns: Callable[[Request], int | None],
    ) -> None:
        """Create the table without requests.

        `queued`: requests that the policy sees, by id. `is_first()`: whether no other request waits or runs.
        `hopeless_ns(request)`: time in ns from which a request cannot be on time; None if it is served anyway.
        """
        self.earliest_ns = NEVER_NS
        """Nobody is hopeless before, and perhaps nobody then."""
        self._queued = queued
        self._is_first = is_first
        self._hopeless_ns = hopeless_ns
        self._latest_ns: dict[str, int] = {}
        """The latest deadline of the requests, by model, since one was the only one."""
        self._heap: list[tuple[int, int]] = []
        """When, and which by id: what is not queued any more stays until it surfaces, or most of them are such."""

    @property
    def next_ns(self) -> int:
        """Time in ns at which the next request becomes hopeless; NEVER_NS if none can."""
        heap = self._heap
        while heap and heap[0][1] not in self._queued:
            heappop(heap)
        self.earliest_ns = heap[0][0] if heap else NEVER_NS
        return self.earliest_ns

    def arrives(self, request: Request) -> None:
        """Watch an arriving request if an earlier one of its model has more time."""
        model, deadline_ns = request.model, request.deadline_ns
        if deadline_ns >= self._latest_ns.get(model, 0):
            self._latest_ns[model] = deadline_ns
        elif self._is_first():
            self._latest_ns = {model: deadline_ns}
        else:
            self.watch(request)

    def returns(self, request: Request) -> None:
        """Watch a request that is queued again if another one may have more time."""
        if request.deadline_ns < self._latest_ns.get(request.model, 0):
            self.watch(request)

    def watch(self, request: Request) -> None:
        """Watch a request in any case, unless it is served anyway."""
        hopeless_ns = self._hopeless_ns(request)
        if hopeless_ns is not None:
            if len(self._heap) > 2 * len(self._queued) + MAX_DEAD_TIMERS:
                self._sweep()
            heappush(self._heap, (hopeless_ns, request.id))
            self.earliest_ns = self._heap[0][0]

    def _sweep(self) -> None:
        """Forget what is not queued any more; of what is there more than once, all but the earliest."""
        earliest: dict[int, int] = {}
        for hopeless_ns, request_id in self._heap:
            if request_id in self._queued:
                earliest[request_id] = min(hopeless_ns, earliest.get(request_id, NEVER_NS))
        self._heap = [(hopeless_ns, request_id) for request_id, hopeless_ns in earliest.items()]
        heapify(self._heap)

    def pop_hopeless(self, now_ns: int) -> list[Request]:
        """Return hopeless requests; the caller drops each or watches it again."""
        popped = {}
        while self._heap and self._heap[0][0] <= now_ns:
            _, request_id = heappop(self._heap)
            request = self._queued.get(request_id)
            if request is None:
                continue
            hopeless_ns = self._hopeless_ns(request)
            if hopeless_ns is None:
                continue
            if hopeless_ns <= now_ns:
                popped[request_id] = request
            else:  # batches have become quicker
                heappush(self._heap, (hopeless_ns, request_id))
        self.earliest_ns = self._heap[0][0] if self._heap else NEVER_NS
        return list(popped.values())
