"""PPipe's data plane: batches through pooled pipelines, all they need reserved (section 5.4, Algorithms 1 and 2)."""

from bisect import bisect_right
from collections.abc import Iterator
from typing import ClassVar, Literal, cast

from pydantic import Field

from tidegate.api import (
    NEVER,
    AnyCommand,
    Batch,
    BatchFailed,
    CancelTimer,
    Commands,
    Dispatch,
    Drop,
    LegFinished,
    Pipeline,
    Policy,
    PolicyOptions,
    ProfileUpdated,
    QueueKey,
    Request,
    RequestArrived,
    RequestCancelled,
    Reroute,
    SetTimer,
    Setup,
    TimerFired,
    WakeSlackUpdated,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
    ms_to_ns,
    queue_key,
)
from tidegate_ppipe.paths import Flight, Path, Stop, legs_of
from tidegate_ppipe.places import Place
from tidegate_ppipe.resources import Resources
from tidegate_ppipe.routes import Route, Routes
from tidegate_ppipe.waiting import Found, Queue

WHATEVER_COMES = 2**62
"""More rows than can come."""


class PpipeOptions(PolicyOptions):
    """Options of `ppipe`."""

    reserve_ms: float = Field(
        default=0.0, ge=0, lt=1e6, description="Kept free before every deadline, for what plans do not foresee"
    )
    gathering: Literal["needed", "planned"] = Field(
        default="needed",
        description="How large a batch becomes before its last moment: `planned`, as its pipeline was planned for, "
        "which is the paper's; `needed`, under light load only as large as workers need it to keep up",
    )
    fill_gaps: bool = Field(
        default=False, description="Work may go between two reservations of a worker, not only behind all of them"
    )
    least_part: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="A head that leaves time for less than this part of the planned batch is dropped while others "
        "wait; default: one that leaves time for less than the load needs",
    )


class Ppipe(Policy):
    """A batch leaves when a path is free for it: the first leg at once, the later ones as reserved.

    Which pipeline: the one whose resources wait least at its planned batch size. How many rows: the most that meet the
    deadline of the oldest. While fewer wait the batch gathers, until the last moment at which those are in time.
    Departures from the paper: a batch is bound to its path when its first worker is free, not before; where the chosen
    pipeline cannot meet a deadline the others are asked before the request is dropped; what runs early or late has the
    rest of its path chosen anew.
    """

    Options = PpipeOptions
    runs_pipelines = True
    drops_in_time = "a head that leaves time for fewer rows than the load needs goes, where others wait (Algorithm 1)"
    knows_network: ClassVar[bool] = True
    """False: plans as if what goes from leg to leg took no time."""

    def __init__(self, setup: Setup, options: PpipeOptions) -> None:
        super().__init__(setup, options)
        self._reserve_ns = ms_to_ns(options.reserve_ms)
        self._least_part = options.least_part
        self._as_needed = options.gathering == "needed"
        self._slack_ns = setup.wake_slack_ns
        network = setup.network if self.knows_network else None
        self.resources = Resources(setup.workers, setup.profiles, network, fill_gaps=options.fill_gaps)
        self._models = {model.name: model for model in setup.models}
        self._routes = {model.name: Routes(model, self.route) for model in setup.models}
        self._queues: dict[str, dict[QueueKey, Queue]] = {model.name: {} for model in setup.models}
        self._queue_of: dict[int, Queue] = {}
        self._flights: dict[int, Flight] = {}
        self._models_of: dict[str, list[str]] = {}
        """By partition, the models that it serves; of the first partitions of their pipelines only."""
        for model in setup.models:
            for partition in {path.partitions[0] for path in model.paths}:
                self._models_of.setdefault(partition, []).append(model.name)
        self._measure()

    def route(self, pipeline: Pipeline) -> Route:
        """How batches are sized for a pipeline."""
        return Route(pipeline)

    def stops_of(self, found: Found) -> list[Stop]:
        """The whole way of a batch that leaves now."""
        return found.path.stops

    # Events ------------------------------------------------------------------------------------------------------

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        """Look for a path, unless the batch that it joins gathers on."""
        request = event.request
        queues = self._queues[request.model]
        model = self._models[request.model]
        key = queue_key(request, model)
        queue = queues.get(key)
        if queue is None:
            queue = queues[key] = Queue(key, model)
        queue.push(request)
        self._queue_of[request.id] = queue
        self._routes[request.model].rate.observe(event.now_ns, request.rows)
        if queue.waits_for_rows == WHATEVER_COMES:
            return ()
        if queue.waits_for_rows > queue.rows and self._due_ns(request, queue.budget) >= queue.due_ns:
            grown_ns = queue.work_ns[queue.rows - 1] - queue.work_ns[queue.wake_rows - 1]
            if queue.wake_ns - grown_ns > event.now_ns:
                queue.wake_ns -= grown_ns
                queue.wake_rows = queue.rows
                return [SetTimer(queue.key, queue.wake_ns)]
        return list(self._decide(event.now_ns, queue))

    def on_request_cancelled(self, event: RequestCancelled) -> Commands:
        """The batch that it would have joined may have time to gather."""
        queue = self._queue_of.pop(event.request_id)
        queue.remove(event.request_id)
        return list(self._decide(event.now_ns, queue))

    def on_timer_fired(self, event: TimerFired) -> Commands:
        """The last moment."""
        key = cast("QueueKey", event.key)  # this policy's timers are all named after queues
        queue = self._queues[key[0]].get(key)
        return list(self._decide(event.now_ns, queue)) if queue else ()

    def on_leg_finished(self, event: LegFinished) -> Commands:
        """Reservations are set right, and who waits for the worker gets it."""
        commands: list[AnyCommand] = []
        flight = self._flights.get(event.batch_id)
        if flight is not None:
            stop = flight.stops[event.leg]
            self.resources.release((stop,))
            flight.leg = event.leg + 1
            if flight.leg == len(flight.stops):
                del self._flights[event.batch_id]
            else:
                commands += self._correct(event.now_ns, flight, stop)
            commands += self._advance(event.now_ns, stop.place)
        commands += self._serve(event.now_ns, event.worker_id)
        return commands

    def on_worker_ready(self, event: WorkerReady) -> Commands:
        """Its reservations say when a worker is free."""
        return ()

    def on_batch_failed(self, event: BatchFailed) -> Commands:
        """What it had reserved is free."""
        flight = self._flights.pop(event.batch_id, None)
        if flight is None:
            return ()
        left = flight.stops[flight.leg :]
        self.resources.release(left)
        return [command for stop in left for command in self._freed(event.now_ns, stop.place)]

    def on_worker_joined(self, event: WorkerJoined) -> Commands:
        """There may be paths that were not there before."""
        before = {model: len(routes.usable) for model, routes in self._routes.items()}
        self.resources.join(event.worker)
        self._measure()
        opened = [model for model, routes in self._routes.items() if len(routes.usable) > before[model]]
        waiting = [queue for model in opened for queue in self._queues[model].values() if not queue.waits_for_rows]
        commands = self._serve(event.now_ns, event.worker.id)
        return commands + [command for queue in waiting for command in self._decide(event.now_ns, queue)]

    def on_worker_lost(self, event: WorkerLost) -> Commands:
        """Batches that were to go there are led elsewhere or fail; then what waits is looked at."""
        place = self.resources.leave(event.worker_id)
        if place is None:
            return ()
        self._measure()
        commands: list[AnyCommand] = []
        for flight in list(self._flights.values()):
            if any(stop.place is place for stop in flight.stops[flight.leg :]):
                commands += self._lead_elsewhere(event.now_ns, flight, place)
        affected = [model for model, routes in self._routes.items() if any(map(routes.use, place.hosts))]
        waiting = [queue for model in affected for queue in self._queues[model].values()]
        return commands + [SetTimer(queue.key, event.now_ns) for queue in waiting]

    def on_profile_updated(self, event: ProfileUpdated) -> Commands:
        """Plan with it; the last moment of what gathers has moved."""
        self.resources.expect(event.profile)
        commands: list[AnyCommand] = []
        for model, routes in self._routes.items():
            if routes.use(event.profile.partition):
                routes.measure(self.resources)
                for queue in list(self._queues[model].values()):
                    commands += self._decide(event.now_ns, queue)
        return commands

    def on_wake_slack_updated(self, event: WakeSlackUpdated) -> Commands:
        """The last moments of all that gathers have moved."""
        self._slack_ns = event.wake_slack_ns
        gathering = [queue for queues in self._queues.values() for queue in queues.values() if queue.wake_ns != NEVER]
        return [command for queue in gathering for command in self._decide(event.now_ns, queue)]

    # Batches -----------------------------------------------------------------------------------------------------

    def _serve(self, now_ns: int, worker_id: int) -> list[AnyCommand]:
        """A worker is free for something else: the queues that it serves, most urgent first."""
        place = self.resources.place(worker_id)
        if place is None:
            return []
        models = {model: None for partition in place.hosts for model in self._models_of.get(partition, ())}
        queues = [queue for model in models for queue in self._queues[model].values() if not queue.waits_for_rows]
        queues.sort(key=lambda queue: (queue.head.deadline_ns, queue.head.id))
        return [command for queue in queues for command in self._decide(now_ns, queue)]

    def _decide(self, now_ns: int, queue: Queue) -> Iterator[AnyCommand]:
        """Algorithm 1: dispatch what can and must leave, drop what cannot be in time, else wait."""
        was_waiting = queue.wake_ns != NEVER
        queue.waits_for_rows, queue.wake_ns = 0, NEVER  # what it waited for
        while queue:
            found = self._best_path(now_ns, queue)
            if found is None and not self._routes[queue.model.name].take(queue.head.rows):
                break  # until a worker joins that is not done with another policy's work, or the engine fails it
            if found is None:
                request = self._take(queue, 1)[0]
                yield Drop(request.id, "deadline")
                continue
            if self._gathers(now_ns, queue, found) or found.path.start_ns > now_ns:
                break  # until the last moment, or until that worker is free
            if (early_ns := found.path.early_ns) > 0:
                queue.waits_for_rows, queue.wake_ns = WHATEVER_COMES, now_ns + early_ns
                break  # it would only wait further on, and cannot grow there
            yield self._dispatch(queue, found)
        if queue.wake_ns != NEVER:
            yield SetTimer(queue.key, queue.wake_ns)
        elif was_waiting:
            yield CancelTimer(queue.key)
        if not queue:
            # Merge keys come from clients (shapes): queues that are no longer used must not pile up.
            self._queues[queue.model.name].pop(queue.key, None)

    def _best_path(self, now_ns: int, queue: Queue) -> Found | None:
        """Algorithm 1 for one batch. None: the head is to be dropped."""
        routes = self._routes[queue.model.name]
        usable, needed = routes.usable, routes.needed_rows()
        if len(usable) > 1:
            usable = self._by_waiting(now_ns, usable, queue.shape)
        for route in usable:
            if queue.head.rows <= route.max_rows and (found := self._largest(now_ns, queue, route)):
                least = needed if self._least_part is None else self._least_part * route.merged_rows
                if found.size >= min(least, route.merged_rows, queue.rows):
                    return found
        return None

    def _by_waiting(self, now_ns: int, routes: list[Route], shape: str) -> list[Route]:
        """Step 1: the pipeline first whose links and workers keep a batch of its planned size waiting least."""
        waiting = [
            (self._probe(now_ns, route, route.merged_rows, shape).waiting_ns, number)
            for number, route in enumerate(routes)
        ]
        return [routes[number] for _, number in sorted(waiting)]

    def _largest(self, now_ns: int, queue: Queue, route: Route) -> Found | None:
        """Step 2: the most rows that meet the earliest deadline among them. None: not even the head's."""
        # What nobody may join is as large as it will be.
        work_ns, size = route.work_ns(queue.shape, self.resources), max(route.merged_rows, queue.head.rows)
        while size >= queue.head.rows:
            count, rows, due_ns = self._prefix(queue, route, size)
            if due_ns != NEVER and work_ns[size - 1] > due_ns - now_ns:
                size = bisect_right(work_ns, due_ns - now_ns)
                continue
            may_grow = count == len(queue) and due_ns != NEVER and queue.head.deferrable
            wanted = size if may_grow else rows
            path = self._probe(now_ns, route, wanted, queue.shape)
            if path.end_ns <= due_ns:
                if wanted > rows:
                    path = self._probe(now_ns, route, rows, queue.shape)
                return Found(route, queue.shape, size, count, rows, due_ns, path)
            size = bisect_right(work_ns, work_ns[wanted - 1] - (path.end_ns - due_ns))
        return None

    def _probe(self, now_ns: int, route: Route, rows: int, shape: str) -> Path:
        path = self.resources.probe(route.planned, rows, shape, now_ns)
        assert path is not None, "each of its partitions is hosted"
        return path

    def _prefix(self, queue: Queue, route: Route, most_rows: int) -> tuple[int, int, int]:
        """The oldest requests of at most so many rows: how many, their rows, their earliest deadline."""
        count = rows = 0
        due_ns = NEVER
        for request in queue:
            if rows + request.rows > most_rows:
                break
            count += 1
            rows += request.rows
            due_ns = min(due_ns, self._due_ns(request, route.budget))
        return count, rows, due_ns

    def _gathers(self, now_ns: int, queue: Queue, found: Found) -> bool:
        """Whether all that wait may go on waiting for others; if so, until when."""
        if found.count < len(queue) or found.rows == found.size or found.due_ns == NEVER or not queue.head.deferrable:
            return False
        routes = self._routes[queue.model.name]
        if self._as_needed and routes.is_light and found.rows >= routes.needed_rows():
            return False
        path = found.path
        last_ns = path.start_ns + (found.due_ns - path.end_ns) - self._slack_ns
        if last_ns <= now_ns:
            return False
        queue.waits_for_rows, queue.due_ns, queue.budget = found.size, found.due_ns, found.route.budget
        queue.wake_ns, queue.wake_rows, queue.work_ns = (
            last_ns,
            found.rows,
            found.route.work_ns(queue.shape, self.resources),
        )
        return True

    def _dispatch(self, queue: Queue, found: Found) -> Dispatch:
        requests = self._take(queue, found.count)
        batch_id = self.new_batch_id()
        stops = self.stops_of(found)
        flight = self._flights[batch_id] = Flight(batch_id, found.rows, queue.shape, stops)
        self.resources.reserve(flight, stops)
        request_ids = tuple(request.id for request in requests)
        return Dispatch(Batch(batch_id, queue.model.name, request_ids, legs_of(stops)))

    def _take(self, queue: Queue, count: int) -> list[Request]:
        taken = queue.pop(count)
        for request in taken:
            del self._queue_of[request.id]
        return taken

    def _due_ns(self, request: Request, budget: float) -> int:
        if request.deadline_ns == NEVER:
            return NEVER
        left_ns = request.deadline_ns - self._reserve_ns - request.arrival_ns
        return request.arrival_ns + (left_ns if budget == 1 else round(left_ns * budget))

    # What is on its way ------------------------------------------------------------------------------------------

    def _correct(self, now_ns: int, flight: Flight, done: Stop) -> list[AnyCommand]:
        """A leg is over: where that was not as planned, the rest of the path is chosen anew, or is late."""
        if now_ns == done.end_ns:
            return []
        rest = flight.stops[flight.leg :]
        self.resources.release(rest)
        late = self.resources.follow(rest, now_ns, done)
        other = self.resources.probe([stop.partition for stop in rest], flight.rows, flight.shape, now_ns, done)
        if other is None or (late.end_ns <= other.end_ns and all(map(self.resources.is_here, rest))):
            flight.stops[flight.leg :] = late.stops
            self.resources.reserve(flight, late.stops, done)
            return []
        return self._reroute(now_ns, flight, flight.leg, other.stops, done)

    def _lead_elsewhere(self, now_ns: int, flight: Flight, lost: Place) -> list[AnyCommand]:
        """A worker is lost where a batch was to go: another one takes its place, if there is one."""
        first = next(index for index in range(flight.leg, len(flight.stops)) if flight.stops[index].place is lost)
        if first == flight.leg and (first == 0 or flight.stops[first].booked_ns <= now_ns):
            return []  # it may be there already: then it fails
        sender = flight.stops[first - 1]
        rest = flight.stops[first:]
        self.resources.release(rest)
        ready_ns = now_ns if first == flight.leg else max(now_ns, sender.end_ns)
        path = self.resources.probe([stop.partition for stop in rest], flight.rows, flight.shape, ready_ns, sender)
        if path is None:
            return []
        return self._reroute(now_ns, flight, first, path.stops, sender)

    def _reroute(self, now_ns: int, flight: Flight, first: int, stops: list[Stop], sender: Stop) -> list[AnyCommand]:
        left = [stop.place for stop in flight.stops[first:]]
        flight.stops[first:] = stops
        self.resources.reserve(flight, stops, sender)
        commands: list[AnyCommand] = [Reroute(flight.batch_id, legs_of(stops))]
        for place in left:
            commands += self._freed(now_ns, place)
        return commands

    def _freed(self, now_ns: int, place: Place) -> list[AnyCommand]:
        """A worker is no more needed where it was reserved."""
        return [*self._advance(now_ns, place), *self._serve(now_ns, place.id)]

    def _advance(self, now_ns: int, place: Place) -> list[AnyCommand]:
        """What comes to a worker next may begin earlier than planned, where its input is there earlier."""
        commands: list[AnyCommand] = []
        free_ns = now_ns
        for interval in list(place.timetable.intervals):
            stop = interval.holder
            assert isinstance(stop, Stop)
            start_ns = max(free_ns, stop.there_ns)
            if stop.booked_ns > now_ns and start_ns < stop.start_ns and stop.flight:
                rest = stop.flight.stops[stop.flight.stops.index(stop) :]
                if all(map(self.resources.is_here, rest)):  # else it is going to fail
                    self.resources.advance(stop, start_ns)
                    commands.append(Reroute(stop.flight.batch_id, legs_of(rest)))
            free_ns = max(free_ns, stop.end_ns)
        return commands

    def _measure(self) -> None:
        for routes in self._routes.values():
            routes.measure(self.resources)
