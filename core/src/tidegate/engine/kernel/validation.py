"""Consistency checks of an engine's state after an event; for tests, because they read everything.

They read private attributes of the state tables, which no other module does.
"""

from collections import Counter
from collections.abc import Iterator

from tidegate.api import Request
from tidegate.engine.kernel.state import EngineState
from tidegate.engine.state_tables import InFlightBatch, Reservations
from tidegate.engine.waiting.fair_queue import FairQueue
from tidegate.engine.waiting.fair_queue_group import FairQueueGroup
from tidegate.engine.waiting.flows import flow_key
from tidegate.observation import Reducer


class InconsistentStateError(Exception):
    """Error: two tables of the engine's state contradict each other, a bug in the engine."""


def validate(state: EngineState, reducer: Reducer) -> None:
    """Raise InconsistentStateError with every check of the state that fails."""
    wrong: list[str] = []
    for check in (_requests, _flights, _bookings, _workers, _timers, _sharing):
        try:
            wrong += check(state, reducer)
        except Exception as fault:  # what is wrong with one book may make another one unreadable
            wrong.append(f"{check.__name__[1:]} cannot be looked through: {type(fault).__name__}: {fault}")
    if wrong:
        raise InconsistentStateError(f"at {state.now_ns} ns: " + "; ".join(wrong))


def _requests(state: EngineState, reducer: Reducer) -> Iterator[str]:
    """Every request that has not ended is in one place: queued, held until its turn, or on its way."""
    places = Counter(list(state.waiting.queued))
    places.update(request.id for request in state.waiting._sharing.held)
    places.update(request.id for request in state.waiting.late)
    places.update(list(state.flights._of_request))
    if twice := [request_id for request_id, count in places.items() if count > 1]:
        yield f"requests {twice} are in several places"
    if lost := reducer.open.keys() - places.keys():
        yield f"requests {sorted(lost)} have not ended and are nowhere"
    if ended := places.keys() - reducer.open.keys():
        yield f"requests {sorted(ended)} have ended and are still somewhere"
    if state.waiting.unservable_requests:
        ids = [request.id for request in state.waiting.unservable_requests]
        yield f"requests {ids} are queued and no worker can run them"
    if early := [request.id for request in state.waiting.late if not request.is_late]:
        yield f"requests {early} wait to be served late and are not late"
    if (
        any(request.is_late for request in (*state.waiting.late, *state.waiting.queued.values()))
        and not state.waiting.late.waits
    ):
        yield "late requests are thought not to wait"
    if stray := state.tries._tries.keys() - reducer.open.keys():
        yield f"tries are counted of {sorted(stray)}, which have ended"
    if state.reprieved or state.learned:
        yield "the policy has not received all events"
    yield from _hurried(state)


def _hurried(state: EngineState) -> Iterator[str]:
    """No request with an expired deadline waits behind one with more time."""
    latest_ns: dict[str, tuple[int, int]] = {}
    runs_late = state.policy.is_best_effort
    on_time = (
        request for request in state.waiting.queued.values() if not request.is_late and not runs_late(request.model)
    )
    for request in sorted(on_time, key=lambda request: request.arrival_ns):
        deadline_ns, arrival_ns = latest_ns.get(request.model, (0, 0))
        if request.deadline_ns < min(state.now_ns, deadline_ns) and arrival_ns < request.arrival_ns:
            yield f"request {request.id} waits though its time is over, behind one that has more"
        if request.deadline_ns > deadline_ns:
            latest_ns[request.model] = request.deadline_ns, request.arrival_ns


# Batches -------------------------------------------------------------------------------------------------------------


def _flights(state: EngineState, reducer: Reducer) -> Iterator[str]:
    flights = state.flights._by_batch
    for batch_id, flight in flights.items():
        batch = flight.batch
        if batch.id != batch_id or not 0 <= flight.stage < len(batch.stages):
            yield f"batch {batch_id} is kept as {batch.id}, at stage {flight.stage} of {len(batch.stages)}"
        if not {request.id for request in flight.requests} <= set(batch.request_ids):
            yield f"batch {batch_id} has requests that are not its own"
        if any(state.flights._of_request.get(request.id) is not flight for request in flight.requests):
            yield f"requests of batch {batch_id} are not known to be on their way with it"
        if flight.running and flight.doomed is None and not _is_booked(state, flight, flight.stage):
            yield f"batch {batch_id} runs where it is not booked"
        if batch_id >= state.next_batch_id:
            yield f"batch {batch_id} is on its way, and its id is free"
    if sum(len(flight.requests) for flight in flights.values()) != len(state.flights._of_request):
        yield "requests are on their way without a batch"
    running = {batch_id: flight.stage for batch_id, flight in flights.items() if flight.running}
    if running != (recorded := {batch_id: sent.effect.stage for batch_id, sent in reducer.sent.items()}):
        yield f"stages {running} run, and drivers were sent {recorded}"
    if state.settings.learn and state.expectations._running.keys() != running.keys():
        yield f"expectations follow the stages of {sorted(state.expectations._running)}, of {sorted(running)} they run"


def _is_booked(state: EngineState, flight: InFlightBatch, index: int) -> bool:
    stage = flight.batch.stages[index]
    booked = state.fleet.bookings.get(stage.worker_id)
    return booked is not None and any(other is stage for other in booked.stages)


def _bookings(state: EngineState, reducer: Reducer) -> Iterator[str]:
    """Stages to come are booked on their workers, each once, in the order in which they are to run."""
    fleet, flights = state.fleet, state.flights._by_batch
    for worker_id, booked in fleet.bookings.items():
        if len(booked.stages) != len(booked.flights):
            yield f"worker {worker_id} has {len(booked.stages)} stages of {len(booked.flights)} flights"
            continue
        for stage, flight in zip(booked.stages, booked.flights, strict=True):
            if flights.get(flight.batch.id) is not flight:
                yield f"worker {worker_id} is booked for batch {flight.batch.id}, which is not on its way"
            elif stage.worker_id != worker_id or not any(stage is own for own in flight.batch.stages[flight.stage :]):
                yield f"worker {worker_id} is booked for a stage of batch {flight.batch.id} that is not to come there"
        if (worker_id in fleet.idle_ids) == bool(booked.stages):
            counts_as = "idle" if worker_id in fleet.idle_ids else "busy"
            yield f"worker {worker_id} counts as {counts_as} with {len(booked.stages)} stages"
        yield from _order(state, worker_id, booked)
    for flight in flights.values():
        for index in range(flight.stage, len(flight.batch.stages)):
            if flight.doomed is None and not _is_booked(state, flight, index):
                yield f"stage {index} of batch {flight.batch.id} is not booked"


def _order(state: EngineState, worker_id: int, booked: Reservations) -> Iterator[str]:
    runs = [flight.runs(stage) for stage, flight in zip(booked.stages, booked.flights, strict=True)]
    running = sum(runs)
    if running > 2 or not all(runs[:running]):
        yield f"on worker {worker_id} stages run out of their order: {runs}"
    starts_ns = [stage.start_ns for stage in booked.stages[running:]]
    if starts_ns != sorted(starts_ns):
        yield f"worker {worker_id} is booked out of order: {starts_ns}"
    if not running and booked.stages:
        stage, flight = booked.stages[0], booked.flights[0]
        is_next = flight.batch.stages[flight.stage] is stage and not flight.running
        planned = flight.batch.id in state.flights._planned_starts._live
        if is_next and stage.start_ns <= state.now_ns:
            yield f"batch {flight.batch.id} could run on worker {worker_id} and does not"
        elif is_next and not planned:
            yield f"batch {flight.batch.id} waits for its planned start, and no timer is set for it"


def _workers(state: EngineState, reducer: Reducer) -> Iterator[str]:
    fleet, succession = state.fleet, state.succession
    if missing := fleet.workers.keys() - fleet.bookings.keys():
        yield f"workers {sorted(missing)} have no bookings"
    if finishing := [i for i, booked in fleet.bookings.items() if i not in fleet.workers and not booked.stages]:
        yield f"workers {finishing} are gone and have nothing to finish"
    hosted = Counter(partition for worker in fleet.workers.values() for partition in worker.hosts)
    if +fleet._hosted != hosted:
        yield f"partitions are counted as hosted {dict(fleet._hosted)} times, and are {dict(hosted)} times"
    if free := [worker_id for worker_id in succession._busy if not fleet.bookings[worker_id].stages]:
        yield f"workers {free} are free of the policy before, and the one that follows has not received them"
    ready = {*state.overlap._ready._live, *state.overlap._late._live}
    if idle := [i for i in ready if not (isinstance(i, int) and i in fleet.bookings and fleet.bookings[i].stages)]:
        yield f"stages on workers {idle} are awaited to end, and none runs"


def _timers(state: EngineState, reducer: Reducer) -> Iterator[str]:
    shared = _groups(state.waiting._sharing)
    for timers in (state.succession.timers, state.flights._planned_starts, *(each.hopeless for each in shared)):
        entries = Counter((key, order) for _, order, key in timers._heap)
        if any(entries[key, order] != 1 for key, order in timers._live.items()):
            yield f"timers are set that will not fire, or twice: {dict(timers._live)}"
    for batch_id in state.flights._planned_starts._live:
        flight = state.flights._by_batch.get(batch_id) if isinstance(batch_id, int) else None
        if flight is None or flight.running:
            yield f"batch {batch_id} has a planned start and is not to start"


# Turns ---------------------------------------------------------------------------------------------------------------


def _groups(sharing: FairQueue) -> list[FairQueueGroup]:
    """The classes of all sets of workers."""
    of_sets = {id(classes): classes for classes in sharing._classes_by.values()}.values()
    return [shared for classes in of_sets for shared in classes.groups.values()]


def _sharing(state: EngineState, reducer: Reducer) -> Iterator[str]:
    sharing = state.waiting._sharing
    for shared in _groups(sharing):
        names = sorted(shared._places)
        queued = {
            r.id: r
            for r in state.waiting.queued.values()
            if not r.is_late and r.model in sharing._classes_by and sharing._of(r) is shared
        }
        held = {request.id: request for request in shared.held}
        if shared.waiting != len(queued) + len(held):
            yield f"of {names} {shared.waiting} wait, and are {len(queued)} queued and {len(held)} held"
        if not shared.contended:
            if shared.has_rivals and shared.waiting:
                yield f"of {names} a class waits beside others and is not queued fairly"
            if held:
                yield f"of {names} {sorted(held)} are held though no other flow waits"
            if {flow_key(request) for request in queued.values()} - {shared._sole}:
                yield f"of {names} several flows wait as if they were one"
            continue
        if shared not in sharing._contended:
            yield f"of {names} requests may be held, and fair queueing does not visit them"
        yield from _flows(shared, queued, held)
        yield from _view(shared, queued)
        yield from _throttled(shared)
        if stray := [request_id for request_id in shared.hopeless._live if request_id not in held]:
            yield f"of {names} {stray} are watched for their deadline and not held"


def _flows(shared: FairQueueGroup, queued: dict[int, Request], held: dict[int, Request]) -> Iterator[str]:
    flows = shared._flows
    waiting = {**queued, **held}
    if flows._flow_of.keys() != waiting.keys():
        yield f"flows have {sorted(flows._flow_of)}, and {sorted(waiting)} wait"
        return
    counted = Counter(flow.number for flow in flows._flow_of.values())
    all_flows = {flow.number: flow for flow in [*flows._flows.values(), *flows._flow_of.values()]}
    if any(flow.waiting != counted[flow.number] for flow in all_flows.values()):
        yield f"flows count other requests than theirs: {dict(counted)}"
    hurried = sum(flow.hurried for flow in all_flows.values() if flow.waiting)
    if flows.count != [len(counted) - hurried, hurried]:
        yield f"flows that wait are counted as {flows.count}, and are {[len(counted) - hurried, hurried]}"


def _view(shared: FairQueueGroup, queued: dict[int, Request]) -> Iterator[str]:
    view, flows = shared._view, shared._flows
    seen = [request for request in queued.values() if flows.has(request.id)]
    shown = Counter[tuple[int, str]]()
    for request in seen:
        shown[flows.of(request.id).top.number, request.model] += request.rows
    if (len(seen), shown) != (view._requests, view._shown):
        yield f"the policy sees {dict(shown)} rows by flow and model, and is thought to see {view._shown}"
    if gone := view._counted.keys() - queued.keys():
        yield f"requests {sorted(gone)} fill batches of which the policy does not know"
    rows: dict[str, Counter[object]] = {}
    for request in view._counted.values():
        rows.setdefault(request.model, Counter())[request.model, request.shape, request.merge_key] += request.rows
    if {model: dict(of_key) for model, of_key in rows.items()} != view._rows:
        yield f"kinds of batches are thought to have {view._rows} rows"


def _throttled(shared: FairQueueGroup) -> Iterator[str]:
    for model, throttled in shared._held.items():
        rows = Counter[int]()
        for request in throttled:
            rows[throttled.flow_of(request).top.number] += request.rows
        if dict(rows) != dict(throttled._rows):
            yield f"of {model!r} {dict(rows)} rows are held by flow, and counted are {dict(throttled._rows)}"
