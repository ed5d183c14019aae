"""Fair queueing for models that share workers: start-time fair queueing (Goyal, Vin and Cheng 1996) before the policy.

The policy sees the requests whose flow was served least and decides over them as usual (decision 21). A flow is charged
the worker time of the batches that it takes part in, by rows.

- If one flow waits alone, the policy sees the whole queue.
- While several flows wait, or did within `REMEMBERED_NS`, the policy sees a request of every flow, and for each queue
  key as many as fill a batch of the size that the load needs. Started requests are replaced within the same event, and
  a new client is in one of the next batches.
- A flow may show more, up to its share of the largest batch. It then displaces the oldest visible request of a flow
  that shows its share without it. So a flood neither fills all batches nor makes the requests of others too old.
- While a worker is idle, only requests behind a full batch of their queue key are throttled.
- Requests without a deadline yield to those with one until they have waited for `no_slo_max_deferral_ns`; from then on
  they share the workers fairly.
- Each priority class has a group of its own (`priority_classes`). The policy sees nothing of a group that is `closed`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_

from tidegate.api import NEVER_NS, Model, Profile, QueueKey, Request
from tidegate.engine.estimates.expectations import Expectations
from tidegate.engine.state_tables import WorkerTable
from tidegate.engine.timers import Timers
from tidegate.engine.waiting.flows import ClientFlow, FlowKey, ThrottledRequests, WaitingFlows, flow_key


@dataclass(frozen=True, slots=True)
class WidestRoute:
    """Route of a model: the pipeline with the largest batches that workers host."""

    workers: frozenset[int]
    """Ids of the workers that run the first stage."""
    stages: tuple[tuple[tuple[str, str], ...], ...]
    """For each stage (partition, device class) for every device class that hosts the partition."""
    max_rows: int


@dataclass(slots=True)
class _Cost:
    """Latency of batches of a model and shape along its route."""

    version: int
    """The version of the expectations that this follows from."""
    profiles: Sequence[Profile]
    """The profiles that this follows from."""
    along: Profile
    """Profile along the fastest workers, stage by stage."""
    grace_ns: int
    """Time in ns for all workers of the route to start a batch while the largest batch runs."""
    budget_ns: int = -1
    """The time that the latest request had in all that was asked about: most have the same. -1: none was."""
    full_ns: int = 0
    """Latency of the largest batch that such a request has time for (`BatchCosts._full_ns`)."""
    full_rows: int = 1
    """Rows of that batch, at least 1."""


class BatchCosts:
    """Latency of batches of models that share workers, by the current profiles."""

    def __init__(
        self,
        models: Mapping[str, Model],
        places: Mapping[str, WidestRoute],
        expectations: Expectations,
        is_best_effort: Callable[[str], bool],
    ) -> None:
        """Create the costs of some models.

        `places`: widest route by model. `is_best_effort(model)`: whether the policy also runs late requests of a model.
        """
        self._models = models
        self._places = places
        self._expectations = expectations
        self._is_best_effort = is_best_effort
        self._costs: dict[tuple[str, str], _Cost] = {}
        """Costs of batches by model and shape."""

    def counts_time_of(self, request: Request) -> bool:
        """Whether a request is given up when it will miss its deadline."""
        return request.deadline_ns != NEVER_NS and not self._is_best_effort(request.model)

    def hopeless_ns(self, request: Request) -> int:
        """Return the time in ns from which a request is late even alone (`Profile.lower_bound_ns`)."""
        along = self._cost_of(request.model, request.shape).along
        return request.deadline_ns - along.lower_bound_ns(min(request.rows, along.max_rows)) + 1

    def stale_ns(self, request: Request) -> int:
        """Return the time in ns from which a request fits into no batch of the size that the load needs."""
        return request.deadline_ns - self._full_ns(request)

    def is_late(self, now_ns: int, request: Request) -> bool:
        """Whether a request has no time to wait for the next worker and for a batch of the size that the load needs."""
        if not self.counts_time_of(request):
            return False
        full_ns = self._full_ns(request)
        return now_ns + full_ns + full_ns // len(self._places[request.model].workers) > request.deadline_ns

    def largest_ns(self, models: Collection[str]) -> int:
        """Return the latency in ns of the largest batch of these models, of any shape that was asked about; 0: none."""
        return max(
            (
                cost.grace_ns // len(self._places[key[0]].workers)
                for key, cost in self._costs.items()
                if key[0] in models
            ),
            default=0,
        )

    def full_batch_ns(self, model: str, shape: str) -> int:
        """Return the latency in ns of the largest batch of a model and shape."""
        return self._cost_of(model, shape).grace_ns // len(self._places[model].workers)

    def full_rows(self, request: Request) -> int:
        """Return the rows of a batch of the size that the load needs, for requests with as much time; at least 1."""
        self._full_ns(request)
        return self._cost_of(request.model, request.shape).full_rows

    def grace_ns(self, model: str, shape: str) -> int:
        """Return the time in ns between starts if all workers of a model run its largest batch of this shape in
        rotation.
        """
        return self._cost_of(model, shape).grace_ns

    def _full_ns(self, request: Request) -> int:
        """Return the latency of the largest batch whose oldest request has time to wait for the next worker; 0 if none.

        As `staggered_target` computes for a model under overload, for the time that this request has.
        """
        cost = self._cost_of(request.model, request.shape)
        budget_ns = request.deadline_ns - request.arrival_ns
        if cost.budget_ns != budget_ns:
            workers = len(self._places[request.model].workers)
            rows = cost.along.largest_rows_within(budget_ns * workers // (workers + 1))
            cost.budget_ns, cost.full_ns = budget_ns, cost.along.upper_ns(rows) if rows else 0
            cost.full_rows = max(1, min(rows, self._models[request.model].max_rows))
        return cost.full_ns

    def _cost_of(self, model: str, shape: str) -> _Cost:
        known, expectations = self._costs.get((model, shape)), self._expectations
        if known and known.version == expectations.version:
            return known
        place, profiles = self._places[model], expectations.profiles
        stages = [
            [profiles[partition, device_class, shape] for partition, device_class in stage] for stage in place.stages
        ]
        present = [profile for stage in stages for profile in stage]
        if known and all(map(is_, known.profiles, present)):  # those of other models and shapes have changed
            along = known.along
        else:
            along = Profile.in_sequence(map(Profile.quickest, stages), place.max_rows)
        largest_ns = along.upper_ns(min(self._models[model].max_rows, along.max_rows))
        cost = _Cost(expectations.version, present, along, len(place.workers) * largest_ns)
        self._costs[model, shape] = cost
        return cost


NO_REQUESTS: Mapping[QueueKey, int] = {}


class VisibleRequests:
    """Counts of requests that the policy sees: by flow, and rows by queue key."""

    def __init__(self, costs: BatchCosts) -> None:
        self._costs = costs
        self._requests = 0
        """How many requests the policy sees."""
        self._shown: dict[tuple[int, str], int] = {}
        """The rows, by flow and model, of all that the policy sees."""
        self._rows: dict[str, dict[QueueKey, int]] = {}
        """The rows, by model and key, of what the policy sees and can still be in a batch of full size."""
        self._counted: dict[int, Request] = {}
        """Counted rows by request id."""
        self._stale = Timers()
        """When what of it has a deadline ceases to be."""

    @property
    def latest_start_ns(self) -> int:
        """Latest start, in ns, at which every visible request still fits into a batch of the size that the load needs.

        -1 if it has passed for one of them, or if one has no deadline.
        """
        return self._stale.next_ns if len(self._stale) == self._requests else -1

    @property
    def kinds(self) -> dict[str, int]:
        """Number of kinds of batches that the policy may form, by model; at least 1 for each model."""
        return {model: max(1, len(self.rows_of(model))) for _, model in self._shown}

    @property
    def models(self) -> Mapping[str, Mapping[QueueKey, int]]:
        """Rows that can still be in a full batch, by model and queue key."""
        return self._rows

    def is_counted(self, request_id: int) -> bool:
        """Whether the policy sees a request that can still be in a full batch."""
        return request_id in self._counted

    def rows_of(self, model: str) -> Mapping[QueueKey, int]:
        """Return the rows of a model that can still be in a full batch, by queue key."""
        return self._rows.get(model, NO_REQUESTS)

    def rows_of_flow(self, flow: ClientFlow, model: str) -> int:
        """Return the rows of a flow, or of all flows of its tenant, for a model that the policy sees."""
        return self._shown.get((flow.top.number, model), 0)

    def show(self, now_ns: int, request: Request, flow: ClientFlow) -> None:
        """Count a request that the policy sees from `now_ns` on."""
        model = request.model
        shown = (flow.top.number, model)
        self._requests += 1
        self._shown[shown] = self._shown.get(shown, 0) + request.rows
        if self._costs.counts_time_of(request):
            stale_ns = self._costs.stale_ns(request)
            if stale_ns <= now_ns:
                return
            self._stale.set(request.id, stale_ns)
        self._counted[request.id] = request
        rows = self._rows.get(model)
        if rows is None:
            rows = self._rows[model] = {}
        key = (model, request.shape, request.merge_key)
        rows[key] = rows.get(key, 0) + request.rows

    def hide(self, request: Request, flow: ClientFlow) -> None:
        """Stop counting a request that the policy no longer sees."""
        shown = (flow.top.number, request.model)
        self._requests -= 1
        left = self._shown[shown] - request.rows
        if left:
            self._shown[shown] = left
        else:
            del self._shown[shown]
        self._discount(request.id)

    def pass_time(self, now_ns: int) -> None:
        """Stop counting requests that have no time left for a full batch."""
        if self._stale.earliest_ns <= now_ns:
            for _, request_id in self._stale.pop_due(now_ns):
                if isinstance(request_id, int):
                    self._discount(request_id)

    def _discount(self, request_id: int) -> None:
        """Count a request no more: it fills no batch."""
        request = self._counted.pop(request_id, None)
        if request is None:
            return
        self._stale.cancel(request.id)
        model = request.model
        rows, key = self._rows[model], (model, request.shape, request.merge_key)
        left = rows[key] - request.rows
        if left:
            rows[key] = left
            return
        del rows[key]
        if not rows:
            del self._rows[model]


REMEMBERED_NS = 1_000_000_000
"""Time in ns after contention for which a flow's requests stay limited: a closed-loop client sends them one by one."""
OPEN_BATCHES = 2
"""Maximum number of queue keys of a model whose batches are filled at a time while all workers are busy."""


class FairQueueGroup:
    """Waiting requests of models that share workers, with fair queueing among their clients."""

    def __init__(
        self,
        fleet: WorkerTable,
        expectations: Expectations,
        places: Mapping[str, WidestRoute],
        no_slo_max_deferral_ns: int,
        is_best_effort: Callable[[str], bool],
    ) -> None:
        """Create a group without waiting requests.

        `places`: widest route by model. `no_slo_max_deferral_ns`: how long requests without a deadline yield to others.
        `is_best_effort(model)`: whether the policy also runs late requests of a model.
        """
        self.waiting = 0
        """Requests that have not started, held or not."""
        self.contended = False
        """Whether several flows waited since the last time that nothing did."""
        self.hopeless = Timers()
        """When held requests, by id, cannot be on time any more. Kept by `hold` unless the policy is best-effort."""
        self.closed = False
        """Whether the policy sees no request except what fills more urgent batches, because such a class waits."""
        self._tight_until_ns = -1
        """Latest deadline of a request with too little time to wait for a full batch and to run in one."""
        self.above: Sequence[FairQueueGroup] = ()
        """The groups whose batches the requests may fill while the group is closed."""
        self.has_rivals = False
        """Whether other priority classes wait for the same workers."""
        self._fleet = fleet
        self._patience_ns = no_slo_max_deferral_ns
        self._places = places
        self._costs = BatchCosts(fleet.models, places, expectations, is_best_effort)
        self._sole: FlowKey = ("", "", True)
        """Whose everything is that waits, while it is not contended."""
        self._forget()

    def _forget(self) -> None:
        """Forget excess use once nothing waits: it has harmed no flow that is still there."""
        self.contended = False
        self.hopeless.clear()
        self._held: dict[str, ThrottledRequests] = {}
        self._newcomer: Request | None = None
        """A request that arrived while nothing was throttled; it is checked first, since most are shown at once."""
        self._latest: Request | None = None
        """The latest request that arrived while others were throttled, until `next` was asked about it."""
        self._overfull: list[Request] = []
        """Requests that were shown beyond a full batch and have displaced no other one yet."""
        self._flows = WaitingFlows(self._patience_ns)
        self._view = VisibleRequests(self._costs)
        self._crowded_ns: dict[str, list[int]] = {}
        """When flows of a sort (others, hurried) last were in a model's way with no worker of it idle, by its name."""

    # Requests that come and go -----------------------------------------------------------------------------------

    def admits(self, request: Request) -> bool:
        """Count an arriving request if only its own flow waits; return False, without counting it, otherwise."""
        if self.contended:
            return False
        if not self.waiting:
            self._sole = flow_key(request)
        elif self._sole != flow_key(request):
            return False
        self.waiting += 1
        return True

    def begin(self, now_ns: int, requests: Sequence[Request]) -> None:
        """Add all waiting requests; the policy sees them."""
        if not all(self.admits(request) for request in requests):
            self.waiting = len(requests)
            self.begin_to_contend(now_ns, requests)

    def begin_to_contend(self, now_ns: int, seen: Iterable[Request]) -> None:
        """Start fair queueing when a second client is about to wait.

        `seen`: waiting requests, all visible to the policy.
        """
        self.contended = True
        for request in seen:
            self._flows.join(request)
            self._view.show(now_ns, request, self._flows.of(request.id))
            if self.has_rivals:
                self._note_tight(request)

    def contend(self, request: Request) -> None:
        """Add a request that `admits` rejected; it is throttled until `next` returns it."""
        self._flows.join(request)
        self.waiting += 1
        if self.has_rivals:
            self._note_tight(request)
        if self._held or self._newcomer:
            self._hold_newcomer()
            self._hold(request)
            self._latest = request
        else:
            self._newcomer = request

    def excess(self, now_ns: int, queued: Collection[Request]) -> list[Request]:
        """Return requests to withdraw from the policy because other clients now wait, oldest first.

        `queued`: requests that the policy sees, of these and other models.
        """
        if self.closed:
            self._overfull = []
            return self._excess_of_closed(queued) if self._view.kinds else []
        excess: list[Request] = []
        seen, held, newcomer = self._view.models, self._held, self._newcomer
        for model in seen:
            self._limit(now_ns, model, queued, excess)
        for model in held:
            if model not in seen:
                self._limit(now_ns, model, queued, excess)
        if newcomer and newcomer.model not in seen:
            self._limit(now_ns, newcomer.model, queued, excess)
        if self._overfull and not excess:  # otherwise next time, if what is left is still more than a full batch
            excess = self._displaced(queued)
        return excess

    def call_back(self, request: Request) -> None:
        """Throttle a request that the policy saw: the last of its flow, or the first if the group is closed."""
        self._hold_newcomer()
        self._view.hide(request, self._flows.of(request.id))
        self._hold(request, oldest=self.closed)

    def _hold_newcomer(self) -> None:
        if newcomer := self._newcomer:
            self._newcomer = None
            self._hold(newcomer)

    def _hold(self, request: Request, *, oldest: bool = False) -> None:
        held = self._held.get(request.model)
        if held is None:
            held = self._held[request.model] = ThrottledRequests()
        held.add(request, self._flows.of(request.id), oldest=oldest)
        if self._costs.counts_time_of(request):
            self.hopeless.set(request.id, self._costs.hopeless_ns(request))

    def leave(self, request: Request) -> None:
        """Remove a request that did not start, throttled or not."""
        self.waiting -= 1
        if self.contended:
            self._hold_newcomer()
            held = self._held.get(request.model)
            if held is not None and held.remove(request.id):
                self.hopeless.cancel(request.id)
            else:
                self._view.hide(request, self._flows.of(request.id))
            self._flows.part(request)
            if not self.waiting:
                self._forget()

    def start(self, requests: list[Request], rows: int, duration_ns: int) -> None:
        """Record the start of a batch of `rows` rows with these requests; `duration_ns`: planned time of its
        workers.
        """
        self.waiting -= len(requests)
        if self.contended:
            for request in requests:
                flow = self._flows.part(request)
                flow.charge(duration_ns * request.rows // rows)
                self._view.hide(request, flow)
            if not self.waiting:
                self._forget()

    def charge(self, request: Request, extra_ns: int) -> None:
        """Charge the flow of a started request for worker time in ns beyond what was planned."""
        if self.contended:
            self._flows.charge(request, extra_ns)

    def pop_hopeless(self, now_ns: int) -> list[Request]:
        """Return throttled requests that will miss their deadline; the caller calls `leave` or `reprieve` for each."""
        newcomer = self._newcomer
        if newcomer and self._costs.counts_time_of(newcomer) and self._costs.hopeless_ns(newcomer) <= now_ns:
            self._hold_newcomer()
        popped: list[Request] = []
        if now_ns < self.hopeless.earliest_ns:
            return popped
        for _, request_id in self.hopeless.pop_due(now_ns):
            request = self.get(request_id) if isinstance(request_id, int) else None
            if request is None or not self._costs.counts_time_of(request):
                continue
            hopeless_ns = self._costs.hopeless_ns(request)
            if hopeless_ns <= now_ns:
                popped.append(request)
            else:  # batches have become quicker
                self.hopeless.set(request.id, hopeless_ns)
        return popped

    def hopeless_ns(self, request: Request) -> int | None:
        """Return the time in ns from which a request is late even alone; None if it is served anyway."""
        return self._costs.hopeless_ns(request) if self._costs.counts_time_of(request) else None

    def reprieve(self, request: Request) -> None:
        """Keep a throttled request that `pop_hopeless` returned, as a changed profile lets it meet its deadline."""
        self.hopeless.set(request.id, self._costs.hopeless_ns(request))

    def exceeds_share(self, now_ns: int, request: Request) -> bool:
        """Whether a request of `pop_hopeless` waits because its flow was served more than others, or has its share
        without it.

        Otherwise it came with too little time, or workers were too slow.
        """
        flow, model = self._flows.of(request.id), request.model
        rows = self._view.rows_of_flow(flow, model) + self._held[model].rows_of_flow(flow) - request.rows
        return not self._is_turn_of(now_ns, flow, request) or self._is_share(model, flow, rows)

    @property
    def held(self) -> list[Request]:
        """All throttled requests."""
        if newcomer := self._newcomer:
            return [newcomer]
        return [request for held in self._held.values() for request in held]

    def get(self, request_id: int) -> Request | None:
        """Return a throttled request by id; None if there is none."""
        if newcomer := self._newcomer:
            return newcomer if newcomer.id == request_id else None
        return next((found for held in self._held.values() if (found := held.get(request_id))), None)

    # Priority classes --------------------------------------------------------------------------------------------

    @property
    def kinds(self) -> dict[str, int]:
        """Number of kinds of batches of which requests wait, by model; at least 1 for each model."""
        waiting = dict.fromkeys(self._held, 1)
        if self._newcomer:
            waiting[self._newcomer.model] = 1
        return waiting | self._view.kinds

    @property
    def largest_ns(self) -> int:
        """Latency in ns of the largest batch of any model of which requests wait."""
        return self._costs.largest_ns(self.kinds)

    @property
    def latest_start_ns(self) -> int:
        """Time in ns until which no request of the group needs a worker; -1 if one may need it now."""
        return -1 if self._held or self._newcomer else self._view.latest_start_ns

    def _note_tight(self, request: Request) -> None:
        if request.deadline_ns < request.arrival_ns + 2 * self._costs.full_batch_ns(request.model, request.shape):
            self._tight_until_ns = max(self._tight_until_ns, request.deadline_ns)

    def _free_rows(self, model: str, key: QueueKey) -> int:
        """Rows that batches of more urgent classes leave free."""
        rows = sum(group._view.rows_of(model).get(key, 0) for group in self.above)
        return self._fleet.models[model].merged_rows - rows if rows and self._fleet.models[model].merges else 0

    def _next_to_fill(self, now_ns: int) -> Request | None:
        """A request that fills a batch of a more urgent class, and has time for it."""
        if any(now_ns <= group._tight_until_ns for group in self.above):
            return None
        self._view.pass_time(now_ns)
        for model, held in self._held.items():
            for key in {key: None for group in self.above for key in group._view.rows_of(model)}:
                free = self._free_rows(model, key) - self._view.rows_of(model).get(key, 0)
                while free > 0 and (request := held.oldest_of_key(key)):
                    if not self._costs.is_late(now_ns, request):
                        if request.rows <= free:
                            return request
                        break
                    held.pass_over(request)
        return None

    def _excess_of_closed(self, queued: Iterable[Request]) -> list[Request]:
        """Return the requests that do not fit into batches of more urgent classes."""
        free: dict[QueueKey, int] = {}
        excess = []
        for request in queued:
            if self._flows.has(request.id):
                key = (request.model, request.shape, request.merge_key)
                left = free.get(key)
                if left is None:
                    left = self._free_rows(request.model, key)
                free[key] = left - request.rows
                if left < request.rows:
                    excess.append(request)
        return excess

    # Turns -------------------------------------------------------------------------------------------------------

    def next(self, now_ns: int) -> Request | None:
        """Remove and return the next throttled request for the policy; None if none is due."""
        if self.closed:
            self._hold_newcomer()
            request = self._next_to_fill(now_ns)
            return self._show(now_ns, request) if request else None
        if newcomer := self._newcomer:
            self._view.pass_time(now_ns)
            flow = self._flows.of(newcomer.id)
            if self._is_next(now_ns, newcomer, flow):
                self._newcomer = None
                self._view.show(now_ns, newcomer, flow)
                return newcomer
            self._hold_newcomer()
        if not self._held:
            return None
        self._view.pass_time(now_ns)
        for model, held in list(self._held.items()):
            if request := self._next_of(now_ns, model, held):
                return self._show(now_ns, request)
            if not held:
                del self._held[model]
        return self._next_latest(now_ns) if self._latest else None

    def _next_latest(self, now_ns: int) -> Request | None:
        """The request that arrived last, if its flow may show another one: its share must not wait for other flows."""
        request, self._latest = self._latest, None
        held = self._held.get(request.model) if request else None
        if request is None or held is None or not held.is_oldest_of_flow(request.id):
            return None
        return self._show(now_ns, request) if self._is_next(now_ns, request, held.flow_of(request)) else None

    def _show(self, now_ns: int, request: Request) -> Request:
        """Count a throttled request as one that the policy sees; return it."""
        held = self._held[request.model]
        held.remove(request.id)
        self.hopeless.cancel(request.id)
        self._view.show(now_ns, request, self._flows.of(request.id))
        if not held:
            del self._held[request.model]
        return request

    def _is_next(self, now_ns: int, request: Request, flow: ClientFlow) -> bool:
        """Whether it is the turn of a flow that has this request, and no other flow has one; see `_next_in_turn`."""
        model = request.model
        if not self._flows.is_turn(now_ns, flow, self._costs.grace_ns(model, request.shape)):
            return False
        if not self._is_limited(now_ns, model, hurried=flow.hurried):
            return True
        if self._costs.is_late(now_ns, request):
            return False
        return self._may_show(request, flow)

    def _may_show(self, request: Request, flow: ClientFlow) -> bool:
        """Whether the policy may see a request while its model is limited; the caller shows it then.

        It joins a batch that is not full, begins one of `OPEN_BATCHES`, or is the first of its flow. Into a full batch
        come requests of flows that show less than their share; each displaces another one (`excess`).
        """
        seen, key = self._view.rows_of(request.model), (request.model, request.shape, request.merge_key)
        rows, shown = seen.get(key, 0), self._view.rows_of_flow(flow, request.model)
        if not rows:
            return len(seen) < OPEN_BATCHES or not shown
        if rows < self._costs.full_rows(request):
            return True
        if self._is_share(request.model, flow, shown):
            return False
        self._overfull.append(request)
        return True

    def _is_share(self, model: str, flow: ClientFlow, rows: int) -> bool:
        """Whether this many rows are a flow's share of the largest batch, or more.

        At least two flows contend, though one may not wait now.
        """
        return rows * max(2, self._flows.count[flow.hurried]) >= self._fleet.models[model].max_rows

    def _displaced(self, queued: Iterable[Request]) -> list[Request]:
        """Return the requests that those shown beyond full batches displace, oldest first.

        Each displaces another visible request of its queue key, without which the batch is still full and its flow
        still shows its share. So no flow may show again what was displaced, and none loses its only visible request.
        """
        overfull, self._overfull = self._overfull, []
        most = Counter((shown.model, shown.shape, shown.merge_key) for shown in overfull)
        rows = {key: self._view.rows_of(key[0]).get(key, 0) for key in most}
        gone: Counter[tuple[int, str]] = Counter()
        displaced: list[Request] = []
        for request in queued:
            key = (request.model, request.shape, request.merge_key)
            if not most.get(key) or not self._view.is_counted(request.id):
                continue
            if rows[key] - request.rows < self._costs.full_rows(request):  # it could join again
                continue
            flow = self._flows.of(request.id)
            left = self._view.rows_of_flow(flow, request.model) - gone[flow.top.number, request.model] - request.rows
            if self._is_share(request.model, flow, left):
                displaced.append(request)
                if len(displaced) == len(overfull):
                    break
                most[key] -= 1
                rows[key] -= request.rows
                gone[flow.top.number, request.model] += request.rows
        return displaced

    def _next_of(self, now_ns: int, model: str, held: ThrottledRequests) -> Request | None:
        request = self._next_in_turn(now_ns, model, held) or self._next_to_join(now_ns, model, held)
        if request or self._fleet.idle_ids.isdisjoint(self._places[model].workers):
            return request
        return self._next_for_idle(now_ns, model, held)

    def _next_in_turn(self, now_ns: int, model: str, held: ThrottledRequests) -> Request | None:
        """The oldest request of the flow that was served least."""
        while first := held.first:
            flow, request = first
            if not self._flows.is_turn(now_ns, flow, self._costs.grace_ns(model, request.shape)):
                return None
            if not self._is_limited(now_ns, model, hurried=flow.hurried):
                return request
            if not self._costs.is_late(now_ns, request):
                return request if self._may_show(request, flow) else None
            held.pass_over(request)
        return None

    def _next_to_join(self, now_ns: int, model: str, held: ThrottledRequests) -> Request | None:
        """One that fills a batch that was begun, whosever it is."""
        for key, rows in self._view.rows_of(model).items():
            while (request := held.oldest_of_key(key)) and rows < self._costs.full_rows(request):
                if not self._costs.is_late(now_ns, request):
                    if self._flows.is_turn(now_ns, held.flow_of(request), self._costs.grace_ns(model, request.shape)):
                        return request
                    break
                held.pass_over(request)
        return None

    def _next_for_idle(self, now_ns: int, model: str, held: ThrottledRequests) -> Request | None:
        """Whatever there is, but for what waits behind a full batch: workers have nothing better to do.

        Where the policy waits for something with what it sees, out of turn comes only what can join that: a batch of
        another kind would take the worker from it, as urgent as its client says it is.
        """
        seen, most_rows = self._view.rows_of(model), self._fleet.models[model].max_rows
        for key in held.keys:
            rows = seen.get(key, 0)
            if rows >= most_rows or not (request := held.oldest_of_key(key)):
                continue
            joins = rows > 0 and rows + request.rows <= most_rows
            if joins or not seen or self._is_turn_of(now_ns, held.flow_of(request), request):
                return request
        return held.youngest_passed_over

    def _is_turn_of(self, now_ns: int, flow: ClientFlow, request: Request) -> bool:
        return self._flows.is_turn(now_ns, flow, self._costs.grace_ns(request.model, request.shape))

    def _is_limited(self, now_ns: int, model: str, *, hurried: bool) -> bool:
        """Whether flows of this sort are kept from crowding a model."""
        crowded_ns = self._crowded_ns.get(model)
        return crowded_ns is not None and now_ns - crowded_ns[hurried] < REMEMBERED_NS

    def _limit(self, now_ns: int, model: str, queued: Collection[Request], excess: list[Request]) -> None:
        """Keep from a busy model the sorts of flows that are in the way of others; add what is in excess because of it.

        Only of those that were not kept from it before.
        """
        if not self._fleet.idle_ids.isdisjoint(self._places[model].workers):
            return
        others, hurried = self._flows.count
        if self.has_rivals:
            others, hurried = others and others + 1, hurried and hurried + 1
        crowded_ns = self._crowded_ns.get(model)
        if crowded_ns is None:
            crowded_ns = self._crowded_ns[model] = [-REMEMBERED_NS, -REMEMBERED_NS]
        if hurried > 1:
            if now_ns - crowded_ns[True] >= REMEMBERED_NS:
                excess += self._excess_of(model, queued, hurried=True)
            crowded_ns[True] = now_ns
        if others and hurried + others > 1:
            if now_ns - crowded_ns[False] >= REMEMBERED_NS:
                excess += self._excess_of(model, queued, hurried=False)
            crowded_ns[False] = now_ns

    def _excess_of(self, model: str, queued: Iterable[Request], *, hurried: bool) -> list[Request]:
        """Return requests beyond a full batch of each queue, and beyond the queues that may start at once."""
        most_rows = self._fleet.models[model].max_rows
        kept: set[int] = set()
        rows: dict[QueueKey, int] = {}
        excess = []
        for request in queued:
            if request.model != model or request.is_late or not self._flows.has(request.id):
                continue
            flow = self._flows.of(request.id)
            if flow.hurried != hurried:
                continue
            key = (model, request.shape, request.merge_key)
            before = rows.get(key, 0)
            if (before < most_rows and (before or len(rows) < OPEN_BATCHES)) or flow.top.number not in kept:
                rows[key] = before + request.rows
                kept.add(flow.top.number)
            else:
                excess.append(request)
        return excess
