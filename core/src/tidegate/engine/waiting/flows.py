"""Flows of fair queueing and their throttled requests.

A flow contains the requests of one client for models that share workers; requests with and without a deadline are
separate flows. The flows of one tenant share one turn by its weight, and take it in rotation.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace

from tidegate.api import NEVER_NS, QueueKey, Request
from tidegate.engine.timers import MAX_DEAD_TIMERS

FlowKey = tuple[str, str, bool]
"""(tenant, client, whether its requests have deadlines)."""


def flow_key(request: Request) -> FlowKey:
    """Return the key of the flow that a request belongs to."""
    return request.tenant, request.client, request.deadline_ns != NEVER_NS


class ClientFlow:
    """Requests of one client for models that share workers; those with and without a deadline are separate flows."""

    __slots__ = ("hurried", "number", "served_ns", "tenant", "waiting")

    def __init__(self, number: int, *, hurried: bool, tenant: "TenantFlow | None" = None) -> None:
        self.number = number
        """The number of the flow, in the order in which flows came."""
        self.hurried = hurried
        """Whether its requests have deadlines."""
        self.served_ns = 0
        """The worker time that it has had, on a scale that all flows share: the one with the least is next."""
        self.waiting = 0
        """Requests that have not started, whether the policy sees them or not."""
        self.tenant = tenant
        """The flow of its tenant, in whose turn it is served; None: it has its own."""

    @property
    def top(self) -> "ClientFlow":
        """The flow whose turn it waits for: its tenant's, or itself."""
        return self.tenant or self

    def charge(self, duration_ns: int) -> None:
        """Add worker time in ns that it has had."""
        self.served_ns += duration_ns
        if self.tenant:
            self.tenant.charge(duration_ns)


class TenantFlow(ClientFlow):
    """Requests of all clients of one tenant: `served_ns` is worker time divided by the weight of the tenant."""

    __slots__ = ("clients", "scale_ns", "weight")

    def __init__(self, number: int, *, hurried: bool) -> None:
        super().__init__(number, hurried=hurried)
        self.weight = 1.0
        """The weight that its latest request brought."""
        self.clients = FlowRanking()
        """The flows of its clients that wait; one that ceased to wait stays until it surfaces."""
        self.scale_ns = 0
        """Where a client begins that did not wait."""

    @property
    def first(self) -> ClientFlow | None:
        """The client that was served least of those that wait."""
        while (flow := self.clients.first) and not flow.waiting:
            self.clients.drop_first()
        return flow

    def charge(self, duration_ns: int) -> None:
        """Add worker time in ns that a client of it has had."""
        self.served_ns += round(duration_ns / self.weight)


class FlowRanking:
    """Flows by service received, least first. Outdated entries are corrected when they surface.

    Flows without waiting requests are removed when they are the majority, because clients determine how many flows
    there are.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, ClientFlow]] = []
        self._ranked: set[int] = set()
        self._most = MAX_DEAD_TIMERS
        """The entries from which on it is worth looking for those that wait for nothing."""

    def add(self, flow: ClientFlow) -> None:
        """Add a flow unless it is ranked already."""
        if flow.number not in self._ranked:
            if len(self._heap) >= self._most:
                self._sweep()
            self._ranked.add(flow.number)
            heappush(self._heap, (flow.served_ns, flow.number, flow))

    @property
    def first(self) -> ClientFlow | None:
        """Flow that was served least; None if there is none."""
        heap = self._heap
        while heap:
            served_ns, number, flow = heap[0]
            if served_ns == flow.served_ns:
                return flow
            heapreplace(heap, (flow.served_ns, number, flow))
        return None

    def drop_first(self) -> None:
        """Remove the first flow."""
        _, number, _ = heappop(self._heap)
        self._ranked.remove(number)

    def _sweep(self) -> None:
        self._heap = [(flow.served_ns, number, flow) for _, number, flow in self._heap if flow.waiting]
        heapify(self._heap)
        self._ranked = {number for _, number, _ in self._heap}
        self._most = 2 * len(self._heap) + MAX_DEAD_TIMERS


class WaitingFlows:
    """Flows of all requests that wait for the same workers, throttled or not."""

    def __init__(self, no_slo_max_deferral_ns: int) -> None:
        """Create the table without flows.

        `no_slo_max_deferral_ns`: how long, in ns, flows without deadlines yield to flows with deadlines.
        """
        self._patience_ns = no_slo_max_deferral_ns
        self._flows: dict[FlowKey, ClientFlow] = {}
        self._tenants: dict[tuple[str, bool], TenantFlow] = {}
        self._flow_of: dict[int, ClientFlow] = {}
        """The flow that a request waits in, by the request's id."""
        self._numbers = 0
        self._rankings = (FlowRanking(), FlowRanking())
        """The others and the hurried; one that ceased to wait stays until it surfaces."""
        self.count = [0, 0]
        """How many flows wait: others, hurried."""
        self._scale_ns = 0
        """Start of a flow that did not wait: no flow can save up turns."""
        self._unhurried: deque[Request] = deque()
        """The requests that wait without a deadline, oldest first.

        What left stays until it surfaces, or most of them did.
        """
        self._ripe_number = -1
        """The flow without deadlines that has waited too long."""

    def of(self, request_id: int) -> ClientFlow:
        """Return the flow of a waiting request."""
        return self._flow_of[request_id]

    def has(self, request_id: int) -> bool:
        """Whether a request waits here."""
        return request_id in self._flow_of

    def join(self, request: Request) -> None:
        """Add a waiting request to its flow."""
        key = flow_key(request)
        flow = self._flows.get(key)
        if flow is None:
            self._prune()
            self._numbers += 1
            tenant = self._tenant_of(request, hurried=key[2]) if request.tenant else None
            flow = self._flows[key] = ClientFlow(self._numbers, hurried=key[2], tenant=tenant)
        if not flow.waiting:
            if flow.tenant:
                self._join_tenant(flow, flow.tenant, request.weight)
            else:
                self._begin_to_wait(flow)
            self.count[flow.hurried] += 1
        flow.waiting += 1
        self._flow_of[request.id] = flow
        if not flow.hurried:
            if len(self._unhurried) > 2 * len(self._flow_of) + MAX_DEAD_TIMERS:
                self._unhurried = deque(each for each in self._unhurried if each.id in self._flow_of)
            self._unhurried.append(request)

    def _tenant_of(self, request: Request, *, hurried: bool) -> TenantFlow:
        """The flow of a request's tenant, which may be a new one."""
        key = request.tenant, hurried
        tenant = self._tenants.get(key)
        if tenant is None:
            self._numbers += 1
            tenant = self._tenants[key] = TenantFlow(self._numbers, hurried=hurried)
        return tenant

    def _begin_to_wait(self, flow: ClientFlow) -> None:
        """Rank a flow that has a turn of its own and did not wait."""
        if least := self._first(hurried=True) or self._first(hurried=False):
            self._scale_ns = max(self._scale_ns, least.served_ns)
        flow.served_ns = max(flow.served_ns, self._scale_ns)
        self._rankings[flow.hurried].add(flow)

    def _join_tenant(self, flow: ClientFlow, tenant: TenantFlow, weight: float) -> None:
        """Rank the flow of a client that did not wait among those of its tenant."""
        if not tenant.waiting:
            self._begin_to_wait(tenant)
        if least := tenant.first:
            tenant.scale_ns = max(tenant.scale_ns, least.served_ns)
        flow.served_ns = max(flow.served_ns, tenant.scale_ns)
        tenant.weight = weight
        tenant.clients.add(flow)
        tenant.waiting += 1

    def part(self, request: Request) -> ClientFlow:
        """Remove a request and return its flow."""
        flow = self._flow_of.pop(request.id)
        flow.waiting -= 1
        if not flow.waiting:
            self.count[flow.hurried] -= 1
            if flow.tenant:
                flow.tenant.waiting -= 1
        return flow

    def charge(self, request: Request, extra_ns: int) -> None:
        """Add worker time in ns to the account of the flow of a started request."""
        if flow := self._flows.get(flow_key(request)):
            flow.charge(extra_ns)

    def is_turn(self, now_ns: int, flow: ClientFlow, grace_ns: int) -> bool:
        """Whether a flow was served least among waiting flows, within the tolerance `grace_ns`."""
        first = self._first(hurried=True) if self.count[True] else None
        other = self._ripe(now_ns, first) if flow.hurried else self._first(hurried=False)
        served_ns = flow.served_ns - grace_ns
        if tenant := flow.tenant:
            if (client := tenant.first) and client.served_ns < served_ns:
                return False
            served_ns = tenant.served_ns - round(grace_ns / tenant.weight)
        return not (first and first.served_ns < served_ns) and not (other and other.served_ns < served_ns)

    def _ripe(self, now_ns: int, first: ClientFlow | None) -> ClientFlow | None:
        """The flow without deadlines that has waited too long; it has saved up no turns."""
        unhurried = self._unhurried
        while unhurried and unhurried[0].id not in self._flow_of:
            unhurried.popleft()
        if not unhurried or now_ns - unhurried[0].arrival_ns <= self._patience_ns:
            self._ripe_number = -1
            return None
        flow = self._flow_of[unhurried[0].id].top
        if self._ripe_number != flow.number:
            self._ripe_number = flow.number
            flow.served_ns = max(flow.served_ns, first.served_ns if first else 0)
        return flow

    def _first(self, *, hurried: bool) -> ClientFlow | None:
        """The flow that was served least of those that wait."""
        ranking = self._rankings[hurried]
        while (flow := ranking.first) and not flow.waiting:
            ranking.drop_first()
        return flow

    def _prune(self) -> None:
        """Clients choose how many they are: those that wait for nothing must not pile up."""
        if len(self._flows) > 2 * sum(self.count) + 64:
            self._flows = {key: flow for key, flow in self._flows.items() if flow.waiting}
            self._tenants = {key: tenant for key, tenant in self._tenants.items() if tenant.waiting}


class ThrottledRequests:
    """Throttled requests of one model. Removed ones stay in the queues until they surface, so removal takes O(1)."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Request, ClientFlow]] = {}
        self._rows: Counter[int] = Counter()
        """Their rows, by the number of the flow that has a turn of its own."""
        self._passed_over: dict[int, None] = {}
        self._of_flow: dict[int, deque[Request]] = {}
        self._of_key: dict[QueueKey, deque[Request]] = {}
        self._flows = FlowRanking()
        """The flows that have turns of their own and requests here."""
        self._clients: dict[int, FlowRanking] = {}
        """The flows of a tenant's clients that have requests here, by the number of its flow."""
        self._entries = 0

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Request]:
        return (request for request, _ in self._held.values())

    def add(self, request: Request, flow: ClientFlow, *, oldest: bool = False) -> None:
        """Add a request, the youngest of its flow, or the `oldest`."""
        self._held[request.id] = request, flow
        self._rows[flow.top.number] += request.rows
        of_flow = self._of_flow.setdefault(flow.number, deque())
        of_key = self._of_key.setdefault((request.model, request.shape, request.merge_key), deque())
        if oldest:
            of_flow.appendleft(request)
            of_key.appendleft(request)
        else:
            of_flow.append(request)
            of_key.append(request)
        if flow.tenant:
            self._clients.setdefault(flow.tenant.number, FlowRanking()).add(flow)
        self._flows.add(flow.top)
        self._entries += 1
        if self._entries > 2 * len(self._held) + 64:
            self._tidy()

    def remove(self, request_id: int) -> Request | None:
        """Remove a request and return it; None if it was not throttled."""
        request, flow = self._held.pop(request_id, (None, None))
        self._passed_over.pop(request_id, None)
        if request and flow:
            number = flow.top.number
            self._rows[number] -= request.rows
            if not self._rows[number]:
                del self._rows[number]
        return request

    def pass_over(self, request: Request) -> None:
        """Move a request to the set that only `youngest_passed_over` returns."""
        self._passed_over[request.id] = None

    def get(self, request_id: int) -> Request | None:
        """Return a throttled request by id; None if there is none."""
        return self._held[request_id][0] if request_id in self._held else None

    def flow_of(self, request: Request) -> ClientFlow:
        """Return the flow of a throttled request."""
        return self._held[request.id][1]

    def rows_of_flow(self, flow: ClientFlow) -> int:
        """Return the throttled rows of a flow, or of all flows of its tenant."""
        return self._rows[flow.top.number]

    def is_oldest_of_flow(self, request_id: int) -> bool:
        """Whether a request is throttled, and no older one of its flow is, except those passed over."""
        request, flow = self._held.get(request_id, (None, None))
        return flow is not None and self._head(self._of_flow.get(flow.number)) is request

    @property
    def first(self) -> tuple[ClientFlow, Request] | None:
        """The flow served least among those with requests here, with its oldest request; None if there is none."""
        while top := self._flows.first:
            if top.number in self._clients:
                if found := self._first_in(self._clients[top.number]):
                    return found
                del self._clients[top.number]
            elif request := self._head(self._of_flow.get(top.number)):
                return top, request
            self._of_flow.pop(top.number, None)
            self._flows.drop_first()
        return None

    def _first_in(self, clients: FlowRanking) -> tuple[ClientFlow, Request] | None:
        """The flow served least of a tenant's, with its oldest request."""
        while flow := clients.first:
            if request := self._head(self._of_flow.get(flow.number)):
                return flow, request
            self._of_flow.pop(flow.number, None)
            clients.drop_first()
        return None

    def oldest_of_key(self, key: QueueKey) -> Request | None:
        """Return the oldest request of a queue key, of any flow; None if there is none."""
        return self._head(self._of_key.get(key))

    @property
    def youngest_passed_over(self) -> Request | None:
        """Request that was passed over last; None if there is none."""
        return self._held[next(reversed(self._passed_over))][0] if self._passed_over else None

    @property
    def keys(self) -> Iterable[QueueKey]:
        """Keys of queues with current or former throttled requests."""
        return self._of_key

    def _head(self, requests: deque[Request] | None) -> Request | None:
        while requests:
            if requests[0].id in self._held and requests[0].id not in self._passed_over:
                return requests[0]
            requests.popleft()
        return None

    def _tidy(self) -> None:
        """Forget what left, and came back in front: behind what is held for long it would not surface."""
        for requests in (*self._of_flow.values(), *self._of_key.values()):
            kept = {request.id: request for request in requests if request.id in self._held}
            requests.clear()
            requests.extend(kept.values())
        self._of_flow = {number: requests for number, requests in self._of_flow.items() if requests}
        self._of_key = {key: requests for key, requests in self._of_key.items() if requests}
        self._entries = len(self._held)
