"""Workers are shared in turn: what one client has waiting beyond its turn is held back while others wait for the same.

Start-time fair queueing (Goyal, Vin and Cheng 1996) before the policy, which sees the requests whose turn has come and
decides over them as ever (docs/decisions/0021-workers-are-shared-in-turn.md). A flow is served by the worker time of
the batches that it takes part in; the flow that was served least is next.

- Where one flow waits alone, nothing is held: the policy sees the whole queue.
- While others wait, or did a moment ago, the policy sees a request of every flow, and of each kind of batch as much as
  fills one. What starts is replaced within the same event, so that no batch is smaller for it, and a newcomer is in one
  of the next batches.
- While a worker is idle nothing is held but what waits behind a full batch of its kind.
- Requests without a deadline do not hinder those that have one until they have waited for `patience_ns`: then workers
  are theirs in turn, too.
"""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import is_

from tidegate.api import NEVER, Profile, QueueKey, Request
from tidegate.engine.books import Fleet
from tidegate.engine.expectations import Expectations
from tidegate.engine.held import Flow, HeldRequests, Ranking
from tidegate.engine.timers import Timers

REMEMBERED_NS = 1_000_000_000
"""How long after others waited a flow is kept from crowding: the requests of a closed loop come one by one."""
OPEN_BATCHES = 2
"""So many kinds of batches of a model are begun at a time, while all workers are busy."""
FlowKey = tuple[str, bool]
"""(client, whether its requests have deadlines)."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model runs: along the widest of its pipelines that workers host."""

    workers: frozenset[int]
    """Those that run its first leg."""
    legs: tuple[tuple[tuple[str, str], ...], ...]
    """For each of its legs (partition, kind of worker), one for every kind that hosts it."""
    max_rows: int


@dataclass(frozen=True, slots=True)
class _Costs:
    """What batches of a model take along its place."""

    version: int
    """Of the expectations."""
    profiles: Sequence[Profile]
    """Those that say so."""
    table_ns: Sequence[int]
    """By rows: on the workers that are quickest at it, leg by leg."""
    grace_ns: int
    """What all workers of the place do while the largest batch runs."""


def flow_key(request: Request) -> FlowKey:
    """Whose a request is."""
    return request.client, request.deadline_ns != NEVER


class SharedWorkers:
    """The waiting requests of models that share workers."""

    def __init__(
        self,
        fleet: Fleet,
        expectations: Expectations,
        places: Mapping[str, Place],
        patience_ns: int,
        is_best_effort: Callable[[], bool],
    ) -> None:
        """`places`: by model; `is_best_effort`: whether the policy runs what is late."""
        self.waiting = 0
        """Requests that have not started, held or not."""
        self.contended = False
        """Whether several flows waited since the last time that nothing did."""
        self.hopeless = Timers()
        """When held requests, by id, cannot be in time any more. Kept by `hold` unless the policy is best-effort."""
        self._fleet = fleet
        self._expectations = expectations
        self._patience_ns = patience_ns
        self._places = places
        self._is_best_effort = is_best_effort
        self._costs: dict[str, _Costs] = {}
        """By model."""
        self._sole: FlowKey = ("", True)
        """Whose everything is that waits, while it is not contended."""
        self._forget()

    def _forget(self) -> None:
        """Nothing waits: whoever had too much has harmed nobody who is still there."""
        self.contended = False
        self.hopeless.clear()
        self._held: dict[str, HeldRequests] = {}
        self._flows: dict[FlowKey, Flow] = {}
        self._flow_of: dict[int, Flow] = {}
        """Of all that wait, by request."""
        self._numbers = 0
        self._waiting_flows = {True: Ranking(), False: Ranking()}
        """The hurried and the others; one that ceased to wait stays until it surfaces."""
        self._flows_waiting = {True: 0, False: 0}
        self._crowded_ns: dict[tuple[str, bool], int] = {}
        """When flows of this sort last were in the way of others, on a model that had no idle worker."""
        self._scale_ns = 0
        """Where a flow begins that did not wait: nobody can save up turns."""
        self._unhurried: deque[Request] = deque()
        """Those that wait without a deadline, oldest first; what left stays until it surfaces."""
        self._ripe_number = -1
        """The flow without deadlines that has waited too long."""
        self._shown: Counter[tuple[int, str]] = Counter()
        """How many requests, by flow and model, the policy sees."""
        self._seen: dict[str, dict[QueueKey, int]] = {}
        """The rows, by model and key, of what the policy sees and can still be in a batch of full size."""
        self._counted: set[int] = set()
        """The requests that are among those rows."""
        self._stale: deque[tuple[int, Request]] = deque()
        """Those of them that have deadlines, each with when it ceases to count, about in order."""

    # Requests that come and go -----------------------------------------------------------------------------------

    def admits(self, request: Request) -> bool:
        """Count a request that arrived where nobody but its own flow waits; else False."""
        if self.contended:
            return False
        if not self.waiting:
            self._sole = flow_key(request)
        elif self._sole != flow_key(request):
            return False
        self.waiting += 1
        return True

    def begin(self, now_ns: int, requests: Sequence[Request]) -> None:
        """Take in all that waits: the policy sees it."""
        if not all(self.admits(request) for request in requests):
            self.waiting = len(requests)
            self._count_flows(now_ns, requests)

    def contend(self, now_ns: int, request: Request, queued: Iterable[Request]) -> None:
        """Take in a request that `admits` did not; it is held until `next` says otherwise.

        `queued`: what the policy sees, of these models.
        """
        if not self.contended:
            self._count_flows(now_ns, queued)
        self._join(request)
        self.waiting += 1
        self._hold(request)

    def excess(self, now_ns: int, queued: Collection[Request]) -> list[Request]:
        """What the policy is not to see any more, since others have begun to wait, too; oldest first.

        `queued`: what it sees, of these models and others. Each of them is to be called back.
        """
        excess: list[Request] = []
        for model in {*self._seen, *self._held}:
            if self._fleet.idle_ids.isdisjoint(self._places[model].workers):
                for hurried in self._crowded(now_ns, model):
                    excess += self._excess_of(model, queued, hurried=hurried)
        return excess

    def call_back(self, request: Request) -> None:
        """Hold a request that the policy saw, behind all that are held."""
        self._hide(request)
        self._hold(request)

    def _hold(self, request: Request) -> None:
        held = self._held.get(request.model)
        if held is None:
            held = self._held[request.model] = HeldRequests()
        held.add(request, self._flow_of[request.id])
        if self._counts_time_of(request):
            self.hopeless.set(request.id, self._hopeless_ns(request))

    def leave(self, request: Request) -> None:
        """A request waits no more, held or not, though it did not start."""
        self.waiting -= 1
        if self.contended:
            held = self._held.get(request.model)
            if held is not None and held.remove(request.id):
                self.hopeless.cancel(request.id)
            else:
                self._hide(request)
            self._part(request)
            if not self.waiting:
                self._forget()

    def start(self, requests: list[Request], rows: int, duration_ns: int) -> None:
        """A batch of these starts, that many rows, and is planned to take its workers so long."""
        self.waiting -= len(requests)
        if self.contended:
            for request in requests:
                self._flow_of[request.id].served_ns += duration_ns * request.rows // rows
                self._hide(request)
                self._part(request)
            if not self.waiting:
                self._forget()

    def pop_hopeless(self, now_ns: int) -> Iterator[Request]:
        """What is held and cannot be in time any more: each has to `leave`."""
        for _, request_id in self.hopeless.pop_due(now_ns) if self.hopeless.is_due(now_ns) else ():
            request = self.get(request_id) if isinstance(request_id, int) else None
            if request is None or not self._counts_time_of(request):
                continue
            hopeless_ns = self._hopeless_ns(request)
            if hopeless_ns <= now_ns:
                yield request
            else:  # batches have become quicker
                self.hopeless.set(request.id, hopeless_ns)

    @property
    def held(self) -> list[Request]:
        """Everything that is held."""
        return [request for held in self._held.values() for request in held]

    def get(self, request_id: int) -> Request | None:
        """A held request by its id."""
        return next((found for held in self._held.values() if (found := held.get(request_id))), None)

    # Turns -------------------------------------------------------------------------------------------------------

    def next(self, now_ns: int) -> Request | None:
        """The held request that the policy is to see next, which is held no more; None when it is nobody's turn."""
        if not self._held:
            return None
        while self._stale and (self._stale[0][0] <= now_ns or self._stale[0][1].id not in self._counted):
            self._discount(self._stale.popleft()[1])
        for model, held in list(self._held.items()):
            if request := self._next_of(now_ns, model, held):
                held.remove(request.id)
                self.hopeless.cancel(request.id)
                self._show(now_ns, request)
                if not held:
                    del self._held[model]
                return request
            if not held:
                del self._held[model]
        return None

    def _next_of(self, now_ns: int, model: str, held: HeldRequests) -> Request | None:
        return (
            self._next_in_turn(now_ns, model, held)
            or self._next_to_join(now_ns, model, held)
            or (
                None
                if self._fleet.idle_ids.isdisjoint(self._places[model].workers)
                else self._next_for_idle(model, held)
            )
        )

    def _next_in_turn(self, now_ns: int, model: str, held: HeldRequests) -> Request | None:
        """The oldest request of the flow that was served least."""
        seen, most_rows = self._seen.get(model, {}), self._fleet.models[model].max_rows
        while (flow := held.next_flow) and (request := held.oldest_of(flow)):
            if not self._is_turn(now_ns, flow, model):
                return None
            if not self._is_limited(now_ns, model, hurried=flow.hurried):
                return request
            if not self._is_late(now_ns, request):
                rows = seen.get((model, request.merge_key), 0)
                fits = rows < most_rows and (rows or len(seen) < OPEN_BATCHES)
                return request if fits or not self._shown[flow.number, model] else None
            held.pass_over(request)
        return None

    def _next_to_join(self, now_ns: int, model: str, held: HeldRequests) -> Request | None:
        """One that fills a batch that was begun, whosever it is."""
        most_rows = self._fleet.models[model].max_rows
        for key, rows in self._seen.get(model, {}).items():
            while rows < most_rows and (request := held.oldest_of_key(key)):
                if not self._is_late(now_ns, request):
                    if self._is_turn(now_ns, held.flow_of(request), model):
                        return request
                    break
                held.pass_over(request)
        return None

    def _next_for_idle(self, model: str, held: HeldRequests) -> Request | None:
        """Whatever there is, but for what waits behind a full batch: workers have nothing better to do."""
        seen, most_rows = self._seen.get(model, {}), self._fleet.models[model].max_rows
        for key in held.keys:
            if seen.get(key, 0) < most_rows and (request := held.oldest_of_key(key)):
                return request
        return held.youngest_passed_over

    def _is_turn(self, now_ns: int, flow: Flow, model: str) -> bool:
        """Whether a flow was served least of those that wait, give or take what the workers do while a batch runs."""
        first = self._first(hurried=True)
        other = self._ripe(now_ns, first) if flow.hurried else self._first(hurried=False)
        served_ns = flow.served_ns - self._costs_of(model).grace_ns
        return not (first and first.served_ns < served_ns) and not (other and other.served_ns < served_ns)

    def _ripe(self, now_ns: int, first: Flow | None) -> Flow | None:
        """The flow without deadlines that has waited too long; it has saved up no turns."""
        unhurried = self._unhurried
        while unhurried and unhurried[0].id not in self._flow_of:
            unhurried.popleft()
        if not unhurried or now_ns - unhurried[0].arrival_ns <= self._patience_ns:
            self._ripe_number = -1
            return None
        flow = self._flow_of[unhurried[0].id]
        if self._ripe_number != flow.number:
            self._ripe_number = flow.number
            flow.served_ns = max(flow.served_ns, first.served_ns if first else 0)
        return flow

    def _first(self, *, hurried: bool) -> Flow | None:
        """The flow that was served least of those that wait."""
        ranking = self._waiting_flows[hurried]
        while (flow := ranking.first) and not flow.waiting:
            ranking.drop_first()
        return flow

    def _is_limited(self, now_ns: int, model: str, *, hurried: bool) -> bool:
        """Whether flows of this sort are kept from crowding a model."""
        return now_ns - self._crowded_ns.get((model, hurried), -REMEMBERED_NS) < REMEMBERED_NS

    def _crowded(self, now_ns: int, model: str) -> list[bool]:
        """Of the two sorts of flows those that are to be limited on a busy model from now on, and were not."""
        hurried, others = self._flows_waiting[True], self._flows_waiting[False]
        newly = []
        for sort, in_the_way in ((True, hurried > 1), (False, others and hurried + others > 1)):
            if in_the_way:
                if not self._is_limited(now_ns, model, hurried=sort):
                    newly.append(sort)
                self._crowded_ns[model, sort] = now_ns
        return newly

    def _excess_of(self, model: str, queued: Iterable[Request], *, hurried: bool) -> list[Request]:
        """What is beyond a full batch of each kind, and beyond the kinds that are begun at a time."""
        most_rows = self._fleet.models[model].max_rows
        kept: set[int] = set()
        rows: dict[QueueKey, int] = {}
        excess = []
        for request in queued:
            if request.model != model or (flow := self._flow_of[request.id]).hurried != hurried:
                continue
            key = (model, request.merge_key)
            before = rows.get(key, 0)
            if (before < most_rows and (before or len(rows) < OPEN_BATCHES)) or flow.number not in kept:
                rows[key] = before + request.rows
                kept.add(flow.number)
            else:
                excess.append(request)
        return excess

    # Books -------------------------------------------------------------------------------------------------------

    def _count_flows(self, now_ns: int, seen: Iterable[Request]) -> None:
        """Somebody else waits, too: keep the books of all from now on."""
        self.contended = True
        for request in seen:
            self._join(request)
            self._show(now_ns, request)

    def _join(self, request: Request) -> None:
        """A request waits from now on."""
        key = flow_key(request)
        flow = self._flows.get(key)
        if flow is None:
            self._prune()
            self._numbers += 1
            flow = self._flows[key] = Flow(self._numbers, hurried=key[1])
        if not flow.waiting:
            if least := self._first(hurried=True) or self._first(hurried=False):
                self._scale_ns = max(self._scale_ns, least.served_ns)
            flow.served_ns = max(flow.served_ns, self._scale_ns)
            self._waiting_flows[flow.hurried].add(flow)
            self._flows_waiting[flow.hurried] += 1
        flow.waiting += 1
        self._flow_of[request.id] = flow
        if not flow.hurried:
            self._unhurried.append(request)

    def _part(self, request: Request) -> None:
        """A request waits no more."""
        flow = self._flow_of.pop(request.id)
        flow.waiting -= 1
        if not flow.waiting:
            self._flows_waiting[flow.hurried] -= 1

    def _prune(self) -> None:
        """Clients choose how many they are: those that wait for nothing must not pile up."""
        if len(self._flows) > 2 * sum(self._flows_waiting.values()) + 64:
            self._flows = {key: flow for key, flow in self._flows.items() if flow.waiting}

    def _show(self, now_ns: int, request: Request) -> None:
        """The policy sees a request from now on."""
        self._shown[self._flow_of[request.id].number, request.model] += 1
        if self._counts_time_of(request):
            stale_ns = request.deadline_ns - self._full_ns(request)
            if stale_ns <= now_ns:
                return
            self._stale.append((stale_ns, request))
        self._counted.add(request.id)
        rows = self._seen.setdefault(request.model, {})
        key = (request.model, request.merge_key)
        rows[key] = rows.get(key, 0) + request.rows

    def _hide(self, request: Request) -> None:
        """The policy sees it no more."""
        flow = (self._flow_of[request.id].number, request.model)
        self._shown[flow] -= 1
        if not self._shown[flow]:
            del self._shown[flow]
        self._discount(request)

    def _discount(self, request: Request) -> None:
        """It fills no batch any more."""
        if request.id in self._counted:
            self._counted.remove(request.id)
            rows, key = self._seen[request.model], (request.model, request.merge_key)
            rows[key] -= request.rows
            if not rows[key]:
                del rows[key]
            if not rows:
                del self._seen[request.model]

    # How long it takes -------------------------------------------------------------------------------------------

    def _counts_time_of(self, request: Request) -> bool:
        """Whether a request is given up when it cannot be in time."""
        return request.deadline_ns != NEVER and not self._is_best_effort()

    def _hopeless_ns(self, request: Request) -> int:
        """From when on a request would be late even alone, as `Gathering.is_hopeless` says."""
        return request.deadline_ns - self._latency_ns(request.model, request.rows) + 1

    def _is_late(self, now_ns: int, request: Request) -> bool:
        """Whether it leaves no time to wait for the next worker and then for a batch as large as the load needs."""
        if not self._counts_time_of(request):
            return False
        full_ns = self._full_ns(request)
        return now_ns + full_ns + full_ns // len(self._places[request.model].workers) > request.deadline_ns

    def _full_ns(self, request: Request) -> int:
        """What the largest batch takes whose oldest request has time to wait for the next worker; 0 if none has.

        What `staggered_target` says of a model under overload, here of the time that this request was given.
        """
        workers = len(self._places[request.model].workers)
        budget_ns = (request.deadline_ns - request.arrival_ns) * workers // (workers + 1)
        table_ns = self._costs_of(request.model).table_ns
        rows = bisect_right(table_ns, budget_ns)
        return table_ns[rows - 1] if rows else 0

    def _latency_ns(self, model: str, rows: int) -> int:
        """What a batch takes on the workers that are quickest at it, leg by leg."""
        table_ns = self._costs_of(model).table_ns
        return table_ns[min(rows, len(table_ns)) - 1]

    def _costs_of(self, model: str) -> _Costs:
        known, expectations = self._costs.get(model), self._expectations
        if known and known.version == expectations.version:
            return known
        place, profiles = self._places[model], expectations.profiles
        present = [profiles[key] for leg in place.legs for key in leg]
        if known and all(map(is_, known.profiles, present)):  # those of other models have changed
            table_ns: Sequence[int] = known.table_ns
        else:
            legs = [[profiles[key].table_ns for key in leg] for leg in place.legs]
            table_ns = [sum(min(table[at] for table in leg) for leg in legs) for at in range(place.max_rows)]
        largest_ns = table_ns[min(self._fleet.models[model].max_rows, len(table_ns)) - 1]
        costs = _Costs(expectations.version, present, table_ns, len(place.workers) * largest_ns)
        self._costs[model] = costs
        return costs
