"""All waiting requests: visible to the policy, throttled by fair queueing, or late; and the policy's notifications.

The engine expires requests that are due before earlier ones of their model, for policies that look only at the oldest.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from heapq import heapify, heappop, heappush

from tidegate.api import (
    NEVER_NS,
    Drop,
    Policy,
    ProfileUpdated,
    Request,
    RequestArrived,
    RequestCancelled,
)
from tidegate.engine.estimates.expectations import Expectations
from tidegate.engine.state_tables import WorkerTable
from tidegate.engine.timers import MAX_DEAD_TIMERS
from tidegate.engine.waiting.fair_queue import FairQueue
from tidegate.engine.waiting.late_requests import LateRequests

FAIR_SHARE = "fair_share"
"""Drop reason of a request that missed its deadline while throttled: its client had more service than others, or its
share without this request.
"""
LOWER_PRIORITY = "lower_priority"
"""Drop reason of a request that missed its deadline while more urgent ones used the workers."""
DEADLINE_UNREACHABLE = "deadline_unreachable"
"""Drop reason of another request that missed its deadline while it waited; policies use the same reason."""
Notification = RequestArrived | RequestCancelled | ProfileUpdated | Drop | None
"""Next notification: an event for the policy, or the end of a request; None: first handle the consequences."""


class WaitingRequests:
    """Waiting requests, from arrival or batch failure until they start, leave or are dropped."""

    def __init__(
        self,
        fleet: WorkerTable,
        expectations: Expectations,
        no_slo_max_deferral_ns: int,
        *,
        decides: Callable[[], Policy],
        is_free: Callable[[int], bool],
        runs: Callable[[], bool],
        floors: Mapping[int, float],
    ) -> None:
        """Create the table without requests.

        `no_slo_max_deferral_ns`: how long, in ns, requests without a deadline yield to others. `decides()` returns the
        current policy. `is_free(worker_id)`: whether the policy may give work to an idle worker. `runs()`: whether a
        batch is in flight. `floors`: fraction of worker time that a priority class keeps, by priority.
        """
        self.queued: dict[int, Request] = {}
        """The requests that the policy sees, by id."""
        self._fleet = fleet
        self._expectations = expectations
        self._runs = runs
        self._sharing = FairQueue(
            fleet,
            expectations,
            self.queued,
            no_slo_max_deferral_ns,
            lambda name: decides().is_best_effort(name),
            floors,
        )
        self._hurried = OutOfOrderDeadlines(self.queued, self._has_no_request, self._sharing.hopeless_ns)
        """Requests of `queued` that wait behind requests with more time."""
        self.late = LateRequests(fleet, expectations, self.queued, is_free)
        """Requests that will miss their deadline and wait to be served anyway."""

    def __len__(self) -> int:
        return len(self.queued) + len(self._sharing) + len(self.late)

    # Requests that come and go -----------------------------------------------------------------------------------

    def arrives(self, now_ns: int, request: Request, *, again: bool = False) -> bool:
        """Add a request at `now_ns`; return whether the policy sees it. `again`: its batch failed."""
        if again:
            self._hurried.returns(request)
        else:
            self._hurried.arrives(request)
        if request.is_late:
            self.late.add(request)
            return False
        if not self._sharing.admits(now_ns, request):
            return False
        self.queued[request.id] = request
        return True

    def returns(self, request: Request) -> None:
        """Record that the policy sees a request again."""
        self.queued[request.id] = request
        self._hurried.returns(request)

    def watch_deadline(self, request: Request) -> None:
        """Watch a request for a new policy: the previous one may have run late ones."""
        self._hurried.returns(request)

    def starts(self, model: str, requests: list[Request], rows: int, duration_ns: int) -> None:
        """Record the start of a batch of `rows` rows with these requests of a model.

        `duration_ns`: planned time of its workers.
        """
        for request in requests:
            self.queued.pop(request.id, None)
        self._sharing.start(model, requests, rows, duration_ns)

    def charge(self, request: Request, extra_ns: int) -> None:
        """Charge the flow of a started request for worker time in ns beyond what was planned."""
        self._sharing.charge(request, extra_ns)

    def leaves(self, request_id: int) -> bool | None:
        """Remove a request whose client left; return whether the policy saw it, None if it does not wait."""
        if request := self.queued.pop(request_id, None):
            self._sharing.leave(request)
            return True
        if held := self._sharing.get(request_id):
            self._sharing.leave(held)
            return False
        return False if self.late.remove(request_id) else None

    def give_up(self, now_ns: int, request: Request, *, seen: bool = True) -> bool:
        """Give up a request that will miss its deadline; return True if it is dropped, False if it is served late.

        `seen`: the policy saw it before.
        """
        self._sharing.leave(request)
        if request.is_late or request.late_until_ns <= now_ns:
            return True
        self.late.add(request, seen=seen)
        return False

    # Time that passes --------------------------------------------------------------------------------------------

    def next_ns(self, before_ns: int) -> int:
        """Return the time in ns at which the next request becomes hopeless or unwanted, at most `before_ns`."""
        if self._sharing.is_contended:
            before_ns = min(before_ns, self._sharing.next_wake_ns)
        if self.late.earliest_ns < before_ns:
            before_ns = min(before_ns, self.late.next_ns)
        if self.queued and self._hurried.earliest_ns < before_ns:
            before_ns = min(before_ns, self._hurried.next_ns)
        return before_ns

    def is_due(self, now_ns: int) -> bool:
        """Whether `expire` may have a request to give up."""
        return self._hurried.earliest_ns <= now_ns or self.late.earliest_ns <= now_ns

    def expire(self, now_ns: int) -> Iterator[Notification]:
        """Give up hopeless requests; yields a notification for each."""
        if self._hurried.earliest_ns <= now_ns:
            yield from self._expire_hurried(now_ns)
        if self.late.earliest_ns <= now_ns:
            yield from self._expire_late(now_ns)

    @property
    def is_shared(self) -> bool:
        """Whether `advance` may yield a notification: several flows wait, or a request is late."""
        return self._sharing.is_contended or self.late.waits

    def advance(self, now_ns: int) -> Iterator[Notification]:
        """Show the policy the next requests by fair queueing, and late requests for unneeded workers; withdraw others.

        Yields a notification for each.
        """
        if self._sharing.is_contended:
            yield from self._take_turns(now_ns)
        if self.late.waits:
            yield from self._take_late(now_ns)

    def _take_turns(self, now_ns: int) -> Iterator[Notification]:
        sharing = self._sharing
        if excessive := sharing.excess(now_ns):
            called_back = []
            for excess in reversed(excessive):
                if self.queued.pop(excess.id, None):  # unless the policy ran or dropped it on another event
                    called_back.append(excess)
                    yield RequestCancelled(now_ns, excess.id)
            sharing.call_back(called_back)
            yield None  # what the policy gave up wrongly meanwhile waits, too
        for hopeless in sharing.hopeless(now_ns):
            if (yield from self._doubt(now_ns, hopeless)):
                sharing.reprieve(hopeless)
                continue
            reason = self._throttling_reason(now_ns, hopeless)
            if self.give_up(now_ns, hopeless, seen=False):
                yield Drop(hopeless.id, reason)
        yield None  # so does what was expected of those who will not come
        while following := sharing.next(now_ns):
            self.returns(following)
            yield RequestArrived(now_ns, following)
            yield None

    def _throttling_reason(self, now_ns: int, request: Request) -> str:
        """Return the drop reason of a throttled request."""
        if self._sharing.is_outranked(request):
            return LOWER_PRIORITY
        return FAIR_SHARE if self._sharing.exceeds_share(now_ns, request) else DEADLINE_UNREACHABLE

    def _take_late(self, now_ns: int) -> Iterator[Notification]:
        late = self.late
        for shown in late.to_call_back():
            if self.queued.pop(shown.id, None):  # unless the policy ran it on another event
                yield RequestCancelled(now_ns, shown.id)
                late.call_back(shown)
                yield None
        while request := late.next():
            yield RequestArrived(now_ns, request)
            yield None

    def _expire_hurried(self, now_ns: int) -> Iterator[Notification]:
        """Drop what cannot be on time any more where it waits, behind requests that have more time."""
        for hopeless in self._hurried.pop_hopeless(now_ns):
            if hopeless.id not in self.queued:
                continue  # the policy ran or dropped it on another event
            if hopeless.deadline_ns >= now_ns and (yield from self._doubt(now_ns, hopeless)):
                self._hurried.watch(hopeless)
                continue
            del self.queued[hopeless.id]
            if self.give_up(now_ns, hopeless):
                yield Drop(hopeless.id, DEADLINE_UNREACHABLE)
            yield RequestCancelled(now_ns, hopeless.id)

    def _expire_late(self, now_ns: int) -> Iterator[Notification]:
        """Drop what waits to be served late, and whose client waits no longer."""
        for request_id in self.late.pop_expired(now_ns):
            if expired := self.late.remove(request_id):
                if self.give_up(now_ns, expired):
                    yield Drop(request_id, DEADLINE_UNREACHABLE)
            elif (shown := self.queued.get(request_id)) and shown.is_late:
                del self.queued[request_id]
                if self.give_up(now_ns, shown):
                    yield Drop(request_id, DEADLINE_UNREACHABLE)
                yield RequestCancelled(now_ns, request_id)

    def _doubt(self, now_ns: int, hopeless: Request) -> Generator[Notification, None, bool]:
        """Whether too long an expectation may be why a request is hopeless: the policy gets the present one."""
        doubted = self._expectations.doubt(now_ns, hopeless, self._fleet.idle)
        for key in doubted:
            yield ProfileUpdated(now_ns, self._expectations.expect_after_doubt(key))
        return bool(doubted)

    # Workers that come and go ------------------------------------------------------------------------------------

    def release(self) -> list[Request]:
        """Release all throttled requests and return them; call `workers_changed` next.

        Requests that some worker can run are queued.
        """
        released = self._sharing.release_all()
        for request in released:
            if self._fleet.serves(request):
                self.returns(request)
        return released

    def workers_changed(self, now_ns: int) -> None:
        """Restart fair queueing after a change of the workers that models share."""
        self._sharing.workers_changed(now_ns)

    @property
    def unservable_requests(self) -> list[Request]:
        """Queued requests that no remaining worker can run."""
        return [request for request in self.queued.values() if not self._fleet.serves(request)]

    def pop_unservable_late_requests(self) -> list[Request]:
        """Return late requests that are not queued and have no worker left."""
        unservable = [request for request in self.late if not self._fleet.serves(request)]
        for request in unservable:
            self.late.remove(request.id)
        return unservable

    def _has_no_request(self) -> bool:
        return not (self.queued or self._runs() or self._sharing.is_contended)


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
        """Earliest instant at which a request may be hopeless."""
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
