"""Triton's dynamic batcher for one model, after its documentation and source (dynamic batch scheduler).

A request waits in the queue until the batcher moves it into a *payload*; payloads wait, in order, for an instance.
While all instances are busy, up to two payloads per instance may wait, unless a timeout or limit of the queue forbids
it. The last payload still grows; with a queue delay only by requests that make it a preferred size, because fewer do
not wake the batcher. Requests in a payload do not time out.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain

from tidegate.api import NEVER_NS, Model, Request


@dataclass(slots=True)
class InstancePayload:
    """Payload of Triton's batcher: requests that form a batch or wait for an instance."""

    requests: list[Request] = field(default_factory=list)
    rows: int = 0
    closed: bool = False
    """Whether no request is added any more, unless the instance that takes it finds others that waited too long."""
    sealed: bool = False
    """Whether the next request has another shape, so that no request at all is added any more."""
    begins_ns: int = 0
    """Time in ns at which the idle instance that takes it has woken up; an instance that becomes free takes it
    at once.
    """

    @property
    def since_ns(self) -> int:
        """Arrival of the oldest request, in ns."""
        return min(request.arrival_ns for request in self.requests)


@dataclass(frozen=True, slots=True)
class BatcherConfig:
    """Settings of `dynamic_batching` in a model's config.pbtxt, in ns."""

    preferred: frozenset[int]
    """Preferred batch sizes in rows; without configured ones the largest batch."""
    delay_ns: int = 0
    timeout_ns: int = 0
    """Queue timeout in ns; 0: none."""
    allow_timeout_override: bool = False
    reject: bool = True
    """Whether a request that timed out is rejected; otherwise it is delayed behind those that did not."""
    max_queue_size: int = 0
    """Maximum number of queued requests; 0: unlimited."""
    begin_ns: int = 0
    """Wake-up time of an idle instance in ns; requests that arrive meanwhile join the batch."""

    @property
    def prefetches(self) -> bool:
        """Whether payloads are formed before an instance is free; not with queue limits, which count only the queue."""
        return not (self.timeout_ns or self.allow_timeout_override or self.max_queue_size)


class DynamicBatcher:
    """Simulation of Triton's dynamic batcher for one model: its queue and payloads."""

    def __init__(self, model: Model, config: BatcherConfig) -> None:
        self.model = model
        self.config = config
        self.payloads: deque[InstancePayload] = deque()
        self._waiting: OrderedDict[int, tuple[int, Request]] = OrderedDict()
        """Waiting requests by id, in order of ids: any may leave at any time, and thousands at once."""
        self._delayed: OrderedDict[int, tuple[int, Request]] = OrderedDict()
        """Requests that timed out and run after all others."""
        self._rows = 0
        """The rows of both."""
        self._pushed = 0
        self._timeouts: list[tuple[int, int, Request]] = []
        """A heap: when each times out, with its number; what left stays until it surfaces."""
        self._waking_rows = 0
        """How many rows must wait before the batcher looks at a payload that grows."""

    def push(self, request: Request) -> bool:
        """Add a request; return False if the queue is full."""
        full = self.config.max_queue_size and len(self._waiting) + len(self._delayed) >= self.config.max_queue_size
        if full:
            return False
        self._pushed += 1
        self._waiting[request.id] = self._pushed, request
        self._rows += request.rows
        if self.config.timeout_ns:
            heappush(self._timeouts, (self._timeout_at_ns(request), self._pushed, request))
        return True

    def remove(self, request_id: int) -> None:
        """Remove a request from the queue or its payload."""
        for queue in (self._waiting, self._delayed):
            if request_id in queue:
                _, request = queue.pop(request_id)
                self._rows -= request.rows
                return
        for payload in self.payloads:
            payload.requests = [request for request in payload.requests if request.id != request_id]
            payload.rows = sum(request.rows for request in payload.requests)
        self.payloads = deque(payload for payload in self.payloads if payload.requests)

    def expire(self, now_ns: int) -> list[Request]:
        """Remove requests that timed out; return those that are rejected."""
        expired = []
        while (timeout := self._next_timeout()) and timeout[0] < now_ns:
            _, number, request = heappop(self._timeouts)
            expired.append((number, request))
            del self._waiting[request.id]
        expired.sort()
        if not self.config.reject:
            self._delayed.update((request.id, (number, request)) for number, request in expired)
            return []
        self._rows -= sum(request.rows for _, request in expired)
        return [request for _, request in expired]

    def form(self, now_ns: int, instances: int, idle: int) -> int:
        """Fill payloads from the queue as far as there is room; return the time in ns of the next check, or NEVER_NS.

        `instances`: number of instances; `idle`: number of idle ones.
        """
        room = 2 * instances if self.config.prefetches else idle
        while self._waiting or self._delayed:
            if idle and self.payloads and self.payloads[0].begins_ns <= now_ns:
                return NEVER_NS  # taken at once, so that nothing more joins it: look again then
            growing = bool(self.payloads) and not self.payloads[-1].closed
            if len(self.payloads) >= room and (self.config.prefetches or not growing):
                break
            if growing and self._rows < self._waking_rows:
                break
            if self.payloads and not growing:
                self._waking_rows = 0
            begins_ns = now_ns + self.config.begin_ns if idle else 0
            payload = self.payloads[-1] if growing else InstancePayload(begins_ns=begins_ns)
            joining, again_ns = self._choose(now_ns, payload)
            for _ in range(joining):
                _, (_, request) = (self._waiting or self._delayed).popitem(last=False)
                payload.requests.append(request)
                payload.rows += request.rows
                self._rows -= request.rows
            if joining and not growing:
                self.payloads.append(payload)
            if not joining and not payload.closed:
                return min(again_ns, self._next_timeout_ns())
        return self._next_timeout_ns()

    def take(self, now_ns: int) -> list[Request]:
        """Return the requests of the first payload for a free instance, and overdue ones of later payloads."""
        payload = self.payloads.popleft()
        if not self.payloads:
            self._waking_rows = 0
        requests, rows = payload.requests, payload.rows
        key = _company(requests[0])
        while self.config.delay_ns and self.payloads and not payload.sealed:
            following = self.payloads[0]
            if (
                following.sealed
                or _company(following.requests[0]) != key
                or now_ns - following.since_ns <= self.config.delay_ns
                or rows + following.rows > self.model.merged_rows
            ):
                break
            self.payloads.popleft()
            requests, rows = requests + following.requests, rows + following.rows
        return requests

    def _choose(self, now_ns: int, payload: InstancePayload) -> tuple[int, int]:
        """How many of the oldest waiting requests join the payload now; with none, when to look again."""
        preferred, delay_ns = self.config.preferred, self.config.delay_ns
        largest_preferred = max(preferred)
        count = 0
        rows = payload.rows
        best_count = 0  # as many as make the largest preferred size so far
        cannot_grow = False
        key = _company(payload.requests[0]) if payload.requests else None
        oldest_ns = NEVER_NS
        for request in self._in_order():
            if rows + request.rows > largest_preferred and not best_count and (count or payload.requests):
                best_count, payload.closed = count, True
            if key is not None and rows + request.rows > self.model.merged_rows:
                cannot_grow = True
                break
            if key is not None and _company(request) != key:
                cannot_grow = payload.sealed = True
                break
            key = _company(request)
            count, rows = count + 1, rows + request.rows
            oldest_ns = min(oldest_ns, request.arrival_ns)
            if rows in preferred:
                best_count = count
        delayed_enough = delay_ns > 0 and now_ns - oldest_ns >= delay_ns
        if best_count and not delayed_enough:
            payload.closed |= delay_ns == 0
            return best_count, NEVER_NS
        if cannot_grow or rows >= largest_preferred:
            payload.closed = True
            return count, NEVER_NS
        if delayed_enough or delay_ns == 0:
            return count, NEVER_NS
        self._waking_rows = min((size for size in preferred if size > rows), default=min(preferred)) - payload.rows
        # A payload that waits anyway, of no preferred size, takes in what there is.
        if payload.rows > 0 and not payload.closed and payload.rows not in preferred:
            return count, NEVER_NS
        return 0, oldest_ns + delay_ns

    def _in_order(self) -> Iterator[Request]:
        return (request for _, request in chain(self._waiting.values(), self._delayed.values()))

    def _next_timeout_ns(self) -> int:
        """When the next request times out, where that needs doing at once."""
        timeout = self._next_timeout() if self.config.reject else None
        return timeout[0] + 1 if timeout else NEVER_NS

    def _next_timeout(self) -> tuple[int, int, Request] | None:
        """The first timeout of what still waits: when, and of which."""
        while self._timeouts:
            _, number, request = self._timeouts[0]
            if self._waiting.get(request.id, (0, None))[0] == number:
                return self._timeouts[0]
            heappop(self._timeouts)
        return None

    def _timeout_at_ns(self, request: Request) -> int:
        timeout_ns = self.config.timeout_ns
        if self.config.allow_timeout_override and request.deadline_ns < NEVER_NS:
            timeout_ns = min(timeout_ns, request.deadline_ns - request.arrival_ns)
        return request.arrival_ns + timeout_ns


def _company(request: Request) -> tuple[str, str]:
    """Return the key of requests of a model that can share a batch."""
    return request.shape, request.merge_key
