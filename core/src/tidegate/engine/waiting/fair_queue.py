"""Fair queueing of all models: `PriorityClasses` for each set of models that share workers."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from tidegate.api import NEVER_NS, Model, Request, Worker
from tidegate.api.model import DEFAULT_PRIORITY
from tidegate.engine.estimates.expectations import Expectations
from tidegate.engine.state_tables import WorkerTable
from tidegate.engine.waiting.fair_queue_group import FairQueueGroup, WidestRoute
from tidegate.engine.waiting.priority_classes import PriorityClasses


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
        floors: Mapping[int, float],
    ) -> None:
        """Create fair queueing without requests.

        `queued`: requests that the policy sees, by id. `no_slo_max_deferral_ns`: how long requests without a deadline
        yield to others. `is_best_effort(model)`: whether the policy also runs late requests of a model. `floors`:
        fraction of worker time that a priority class keeps, by priority.
        """
        self._fleet = fleet
        self._expectations = expectations
        self._queued = queued
        self._patience_ns = no_slo_max_deferral_ns
        self._is_best_effort = is_best_effort
        self._floors = floors
        self._classes_by: dict[str, PriorityClasses] = {}
        self._ranked: list[PriorityClasses] = []
        """Sets of workers with requests of several priorities."""
        self._contended: list[FairQueueGroup] = []
        """The classes of sets of workers of which something may be held."""
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
        classes = self._classes_by[request.model]
        shared, rivals = classes.usual, list[FairQueueGroup]()
        if classes.has_several or request.priority != DEFAULT_PRIORITY:
            shared = classes.group(request.priority)
            if classes not in self._ranked:
                self._ranked.append(classes)
            if rivals := classes.meet(shared):
                for each in rivals:
                    self._contend(now_ns, each)
        if not rivals and shared.admits(request):
            return True
        self._contend(now_ns, shared)
        shared.contend(request)
        return False

    def _of(self, request: Request) -> FairQueueGroup:
        classes = self._classes_by[request.model]
        return classes.usual if request.priority == DEFAULT_PRIORITY else classes.group(request.priority)

    def _contend(self, now_ns: int, shared: FairQueueGroup) -> None:
        """Start fair queueing of a class, whose requests the policy sees."""
        if not shared.contended:
            shared.begin_to_contend(now_ns, self._queued_by(shared))
            if shared not in self._contended:
                self._contended.append(shared)

    def excess(self, now_ns: int) -> list[Request]:
        """Return requests that the policy must not see any more, oldest first; the engine withdraws each."""
        for classes in self._ranked:
            classes.arrange(now_ns)
        return [request for shared in self._contended for request in shared.excess(now_ns, self._queued.values())]

    def call_back(self, requests: list[Request]) -> None:
        """Throttle requests that were withdrawn from the policy, youngest first, so that they keep their order."""
        for request in reversed(requests):
            if not (shared := self._of(request)).closed:
                shared.call_back(request)
        for request in requests if self._ranked else ():
            if (shared := self._of(request)).closed:
                shared.call_back(request)

    def is_outranked(self, request: Request) -> bool:
        """Whether a throttled request waits because of more urgent ones."""
        return self._of(request).closed

    def exceeds_share(self, now_ns: int, request: Request) -> bool:
        """Whether a throttled request waits because its client was served more than others, or has its share."""
        return self._of(request).exceeds_share(now_ns, request)

    def next(self, now_ns: int) -> Request | None:
        """Return the next request for the policy; None if none is due."""
        quiet = False
        for classes in self._ranked:
            classes.arrange(now_ns)
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
        return self._classes_by[request.model].usual.hopeless_ns(request)

    def reprieve(self, request: Request) -> None:
        """Put back a throttled request that may be on time because a profile changed."""
        self._of(request).reprieve(request)

    def start(self, model: str, requests: list[Request], rows: int, duration_ns: int) -> None:
        """Record the start of a batch of `rows` rows with these requests of a model.

        `duration_ns`: planned time of its workers.
        """
        if requests[0].is_late:
            requests = [request for request in requests if not request.is_late]
            if not requests:
                return
        classes = self._classes_by[model]
        if not classes.has_several:
            classes.usual.start(requests, rows, duration_ns)
            return
        for priority in {request.priority for request in requests}:
            of_class = [request for request in requests if request.priority == priority]
            classes.group(priority).start(of_class, rows, duration_ns)
            classes.charge(priority, duration_ns * sum(request.rows for request in of_class) // rows)

    def charge(self, request: Request, extra_ns: int) -> None:
        """Charge the flow of a started request for worker time in ns beyond what was planned."""
        classes = self._classes_by.get(request.model)
        if classes is None or request.is_late or extra_ns <= 0:
            return
        if group := classes.groups.get(request.priority):
            group.charge(request, extra_ns)
        if classes.has_several:
            classes.charge(request.priority, extra_ns)

    def leave(self, request: Request) -> None:
        """Remove a request that did not start, throttled or not."""
        if not request.is_late:
            self._of(request).leave(request)

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
            waiting[id(self._of(request))].append(request)
        for requests in waiting.values():
            shared, classes = self._of(requests[0]), self._classes_by[requests[0].model]
            shared.begin(now_ns, requests)
            if shared.contended:
                self._contended.append(shared)
            if classes.has_several and classes not in self._ranked:
                self._ranked.append(classes)
        for classes in self._ranked:
            for shared in [each for each in classes.groups.values() if each.waiting and classes.meet(each)]:
                self._contend(now_ns, shared)

    def _group(self) -> None:
        """Group models that share workers, directly or through other models."""
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
        self._classes_by, self._ranked = {}, []
        for group in {id(group): group for group in groups.values()}.values():
            of_group = {name: places[name] for name in places if name in group}
            make = partial(FairQueueGroup, fleet, self._expectations, of_group, self._patience_ns, self._is_best_effort)
            workers = frozenset[int]().union(*(place.workers for place in of_group.values()))
            classes = PriorityClasses(make, fleet, workers, self._floors)
            self._classes_by.update(dict.fromkeys(of_group, classes))

    def _queued_by(self, shared: FairQueueGroup) -> Iterator[Request]:
        return (request for request in self._queued.values() if not request.is_late and self._of(request) is shared)


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
