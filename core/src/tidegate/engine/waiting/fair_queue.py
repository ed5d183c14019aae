"""Fair queueing of all models: one `FairQueueGroup` for each set of models that share workers."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from tidegate.api import NEVER_NS, Model, Request, Worker
from tidegate.engine.estimates.expectations import Expectations
from tidegate.engine.state_tables import WorkerTable
from tidegate.engine.waiting.batch_costs import WidestRoute
from tidegate.engine.waiting.fair_queue_group import FairQueueGroup


class FairQueue:
    """Fair queueing: decides which waiting requests the policy sees (`queued`) and throttles the others.

    The engine reports arrivals, starts and departures, and asks for the next requests after every event. Late requests
    do not take part (`late`).
    """

    def __init__(
        self,
        fleet: WorkerTable,
        expectations: Expectations,
        queued: Mapping[int, Request],
        no_slo_max_deferral_ns: int,
        is_best_effort: Callable[[str], bool],
    ) -> None:
        self._fleet = fleet
        self._expectations = expectations
        self._queued = queued
        self._patience_ns = no_slo_max_deferral_ns
        self._is_best_effort = is_best_effort
        self._shared_by: dict[str, FairQueueGroup] = {}
        self._contended: list[FairQueueGroup] = []
        """The sets of workers for which something may be held."""
        self._group()

    def __len__(self) -> int:
        return sum(len(shared.held) for shared in self._contended)

    @property
    def is_contended(self) -> bool:
        """Whether any request may be throttled; otherwise `next` and `hopeless` need not be called."""
        return bool(self._contended)

    @property
    def held(self) -> list[Request]:
        """Requests that the policy does not see."""
        return [request for shared in self._contended for request in shared.held]

    @property
    def next_wake_ns(self) -> int:
        """Time in ns at which a throttled request becomes hopeless; NEVER_NS if none does."""
        return min((shared.hopeless.next_ns for shared in self._contended), default=NEVER_NS)

    def admits(self, now_ns: int, request: Request) -> bool:
        """Add a waiting request; return whether the policy may see it at once."""
        shared = self._shared_by[request.model]
        if shared.admits(request):
            return True
        if not shared.contended:
            shared.begin_to_contend(now_ns, self._queued_by(shared))
            if shared not in self._contended:
                self._contended.append(shared)
        shared.contend(request)
        return False

    def excess(self, now_ns: int) -> list[Request]:
        """Return requests that the policy must not see any more, oldest first; the engine withdraws each."""
        return [request for shared in self._contended for request in shared.excess(now_ns, self._queued.values())]

    def call_back(self, request: Request) -> None:
        """Throttle a request withdrawn from the policy, behind all others."""
        self._shared_by[request.model].call_back(request)

    def next(self, now_ns: int) -> Request | None:
        """Return the next request for the policy; None if none is due."""
        quiet = False
        for shared in self._contended:
            if request := shared.next(now_ns):
                return request
            quiet = quiet or not shared.contended
        if quiet:
            self._contended = [shared for shared in self._contended if shared.contended]
        return None

    def hopeless(self, now_ns: int) -> list[Request]:
        """Return throttled requests that will miss their deadline."""
        return [request for shared in self._contended for request in shared.pop_hopeless(now_ns)]

    def hopeless_ns(self, request: Request) -> int | None:
        """Return the time in ns from which a request is late even alone; None if it is served anyway."""
        return self._shared_by[request.model].hopeless_ns(request)

    def reprieve(self, request: Request) -> None:
        """Put back a throttled request that may be on time because a profile changed."""
        self._shared_by[request.model].reprieve(request)

    def start(self, model: str, requests: list[Request], rows: int, duration_ns: int) -> None:
        """Record the start of a batch of `rows` rows with these requests of a model.

        `duration_ns`: planned time of its workers.
        """
        if requests[0].is_late:
            requests = [request for request in requests if not request.is_late]
            if not requests:
                return
        self._shared_by[model].start(requests, rows, duration_ns)

    def leave(self, request: Request) -> None:
        """Remove a request that did not start, throttled or not."""
        if not request.is_late:
            self._shared_by[request.model].leave(request)

    def get(self, request_id: int) -> Request | None:
        """Return a throttled request by id; None if there is none."""
        return next((found for shared in self._contended if (found := shared.get(request_id))), None)

    def release_all(self) -> list[Request]:
        """Release all throttled requests and return them; call `workers_changed` next."""
        held = self.held
        self._contended = []
        return held

    def workers_changed(self, now_ns: int) -> None:
        """Restart after a change of shared workers; the policy sees all waiting requests."""
        self._group()
        waiting = defaultdict(list)
        for request in self._queued.values():
            if request.is_late:
                continue
            waiting[id(self._shared_by[request.model])].append(request)
        for requests in waiting.values():
            shared = self._shared_by[requests[0].model]
            shared.begin(now_ns, requests)
            if shared.contended:
                self._contended.append(shared)

    def _group(self) -> None:
        """Put models together that share workers, be it by way of others."""
        fleet = self._fleet
        hosting: dict[str, list[Worker]] = defaultdict(list)
        for worker in fleet.workers.values():
            for partition in worker.hosts:
                hosting[partition].append(worker)
        places = {model.name: place for model in fleet.models.values() if (place := _place_of(model, hosting))}
        groups: dict[str, set[str]] = {name: {name} for name in places}
        of_partition: dict[str, set[str]] = defaultdict(set)
        for name in places:
            for path in fleet.models[name].paths:
                for partition in path.partitions:
                    of_partition[partition].add(name)
        for hosts in {worker.hosts for worker in fleet.workers.values()}:
            together = set().union(*(groups[name] for part in hosts for name in of_partition.get(part, ())))
            for name in together:
                groups[name] = together
        self._shared_by = {}
        for group in {id(group): group for group in groups.values()}.values():
            of_group = {name: places[name] for name in places if name in group}
            shared = FairQueueGroup(fleet, self._expectations, of_group, self._patience_ns, self._is_best_effort)
            self._shared_by.update(dict.fromkeys(of_group, shared))

    def _queued_by(self, shared: FairQueueGroup) -> Iterator[Request]:
        return (
            request
            for request in self._queued.values()
            if self._shared_by[request.model] is shared and not request.is_late
        )


def _place_of(model: Model, hosting: Mapping[str, list[Worker]]) -> WidestRoute | None:
    """Where a model runs; None where no pipeline of it can."""
    served = [path for path in model.paths if all(hosting.get(partition) for partition in path.partitions)]
    if not served:
        return None
    widest = max(served, key=lambda path: path.max_rows)
    return WidestRoute(
        frozenset(worker.id for worker in hosting[widest.partitions[0]]),
        tuple(tuple(sorted({(part, worker.device_class) for worker in hosting[part]})) for part in widest.partitions),
        widest.max_rows,
    )
