"""`Engine.validate` has teeth: whichever of the books is wrong, it says so."""

import random
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from tests.core.engine.script import Script, arrived, engine_of, run
from tidegate.api import Stage, TimerLatencyUpdated
from tidegate.engine import Engine, InconsistentStateError
from tidegate.engine.kernel.state import EngineState
from tidegate.engine.state_tables import InFlightBatch
from tidegate.engine.waiting.fair_queue_group import FairQueueGroup
from tidegate.host import Plugins, make_policy
from tidegate.sim import Simulation
from tidegate.testing import random_world

SPEC = Plugins.installed().policy("symphony")
MS = 1_000_000


def engines() -> Iterator[Engine]:
    """Engines in the middle of what they do, in many worlds."""
    for seed in range(200):
        world = random_world(random.Random(seed), disturbances=seed % 2 == 0)
        policy = make_policy(SPEC, world.setup, {})
        engine = Engine(policy, name="symphony", strict=True, first_lead_ns=world.first_lead_ns)
        simulation = Simulation(engine)
        simulation.schedule(world.events)
        for at_ms in (40, 80, 120):
            simulation.run(until_ns=at_ms * MS)
            yield engine


def state_of(engine: Engine) -> EngineState:
    return engine._state


def running(state: EngineState) -> list[InFlightBatch]:
    return [flight for flight in state.flights._by_batch.values() if flight.running and flight.requests]


def contended(state: EngineState) -> list[FairQueueGroup]:
    return [shared for shared in state.waiting._sharing._contended if shared._held and shared._view._counted]


def queue_twice(state: EngineState) -> None:
    request = running(state)[0].requests[0]
    state.waiting.queued[request.id] = request


def lose_a_request(state: EngineState) -> None:
    state.waiting.queued.popitem()


def invent_a_request(state: EngineState) -> None:
    state.waiting.queued[10**9] = arrived(10**9).request


def forget_who_is_on_the_way(state: EngineState) -> None:
    state.flights._of_request.popitem()


def forget_a_batch(state: EngineState) -> None:
    del state.flights._by_batch[running(state)[0].batch.id]


def stop_a_stage(state: EngineState) -> None:
    running(state)[0].running = False


def skip_a_stage(state: EngineState) -> None:
    running(state)[0].stage += 5


def swap_a_request(state: EngineState) -> None:
    running(state)[0].requests.append(arrived(10**9).request)


def free_a_batch_id(state: EngineState) -> None:
    state.next_batch_id = running(state)[0].batch.id


def strike_a_stage(state: EngineState) -> None:
    stage = running(state)[0].batch.stages[0]
    booked = state.fleet.bookings[stage.worker_id]
    booked.stages.remove(stage)
    booked.flights.remove(running(state)[0])


def book_what_is_not_planned(state: EngineState) -> None:
    flight = running(state)[0]
    worker_id = flight.batch.stages[0].worker_id
    state.fleet.bookings[worker_id].stages.append(Stage(worker_id, "m", 0, 10))
    state.fleet.bookings[worker_id].flights.append(flight)


def lose_a_flight_of_a_booking(state: EngineState) -> None:
    state.fleet.bookings[running(state)[0].batch.stages[0].worker_id].flights.pop()


def call_a_busy_worker_idle(state: EngineState) -> None:
    state.fleet.idle_ids.add(running(state)[0].batch.stages[0].worker_id)


def call_an_idle_worker_busy(state: EngineState) -> None:
    state.fleet.idle_ids.clear()


def miscount_what_is_hosted(state: EngineState) -> None:
    state.fleet._hosted[next(iter(state.fleet._hosted))] += 1


def lose_bookings(state: EngineState) -> None:
    idle = next(worker_id for worker_id, booked in state.fleet.bookings.items() if not booked.stages)
    del state.fleet.bookings[idle]


def keep_a_worker_that_is_gone(state: EngineState) -> None:
    idle = next(worker_id for worker_id, booked in state.fleet.bookings.items() if not booked.stages)
    state.fleet.withdraw(idle)


def keep_tries(state: EngineState) -> None:
    state.tries.count(arrived(10**9).request)


def await_the_end_of_nothing(state: EngineState) -> None:
    idle = next(worker_id for worker_id, booked in state.fleet.bookings.items() if not booked.stages)
    state.overlap._ready.set(idle, state.now_ns + MS)


def follow_a_stage_that_is_over(state: EngineState) -> None:
    state.expectations._running[10**9] = next(iter(state.expectations.profiles))


def break_a_timer(state: EngineState) -> None:
    state.succession.timers._live["broken"] = 10**9


def plan_a_start_of_nothing(state: EngineState) -> None:
    state.flights._planned_starts.set(10**9, state.now_ns + MS)


def miscount_who_waits(state: EngineState) -> None:
    next(iter(state.waiting._sharing._classes_by.values())).usual.waiting += 1


def stop_looking_for_turns(state: EngineState) -> None:
    state.waiting._sharing._contended.clear()


def miscount_a_flow(state: EngineState) -> None:
    next(iter(contended(state)[0]._flows._flows.values())).waiting += 1


def miscount_flows(state: EngineState) -> None:
    contended(state)[0]._flows.count[0] += 1


def lose_a_request_of_a_flow(state: EngineState) -> None:
    contended(state)[0]._flows._flow_of.popitem()


def miscount_what_is_seen(state: EngineState) -> None:
    view = contended(state)[0]._view
    view._shown[next(iter(view._shown))] += 1


def miscount_rows(state: EngineState) -> None:
    rows = next(iter(contended(state)[0]._view._rows.values()))
    rows[next(iter(rows))] += 1


def watch_what_is_not_held(state: EngineState) -> None:
    contended(state)[0].hopeless.set(10**9, state.now_ns + MS)


def hold_though_no_other_flow_waits(state: EngineState) -> None:
    contended(state)[0].contended = False


def take_several_flows_for_one(state: EngineState) -> None:
    lonely(state)[0]._sole = ("", "somebody else", True)


def count_what_is_gone(state: EngineState) -> None:
    counted = contended(state)[0]._view._counted
    counted[10**9] = arrived(10**9).request


def forget_to_tell(state: EngineState) -> None:
    state.learned.append(TimerLatencyUpdated(state.now_ns, 1))


def forget_to_release(state: EngineState) -> None:
    idle = next(worker_id for worker_id, booked in state.fleet.bookings.items() if not booked.stages)
    state.succession._busy.add(idle)


def lonely(state: EngineState) -> list[FairQueueGroup]:
    """Workers that requests of one flow wait for."""
    groups = [state.waiting._sharing._of(request) for request in state.waiting.queued.values()]
    return [group for group in groups if not group.contended]


def idle_workers(state: EngineState) -> bool:
    return any(not booked.stages for booked in state.fleet.bookings.values())


BREAKAGES: dict[Callable[[EngineState], None], tuple[Callable[[EngineState], object], str]] = {
    queue_twice: (running, "are in several places"),
    lose_a_request: (lambda state: state.waiting.queued, "have not ended and are nowhere"),
    invent_a_request: (running, "have ended and are still somewhere"),
    forget_who_is_on_the_way: (running, "not known to be on their way"),
    forget_a_batch: (running, "which is not on its way"),
    stop_a_stage: (running, "drivers were sent"),
    skip_a_stage: (running, "is kept as"),
    swap_a_request: (running, "has requests that are not its own"),
    free_a_batch_id: (running, "and its id is free"),
    strike_a_stage: (running, "is not booked"),
    book_what_is_not_planned: (running, "that is not to come there"),
    lose_a_flight_of_a_booking: (running, "stages of [01] flights"),
    call_a_busy_worker_idle: (running, "counts as idle with"),
    call_an_idle_worker_busy: (idle_workers, "counts as busy with 0 stages"),
    miscount_what_is_hosted: (running, "are counted as hosted"),
    lose_bookings: (idle_workers, "have no bookings"),
    keep_a_worker_that_is_gone: (idle_workers, "are gone and have nothing to finish"),
    keep_tries: (running, "tries are counted of"),
    await_the_end_of_nothing: (idle_workers, "are awaited to end, and none runs"),
    follow_a_stage_that_is_over: (running, "expectations follow the stages of"),
    break_a_timer: (running, "that will not fire"),
    plan_a_start_of_nothing: (running, "is not to start"),
    miscount_who_waits: (running, "queued and"),
    stop_looking_for_turns: (contended, "fair queueing does not visit them"),
    miscount_a_flow: (contended, "other requests than theirs"),
    miscount_flows: (contended, "flows that wait are counted as"),
    lose_a_request_of_a_flow: (contended, "flows have"),
    miscount_what_is_seen: (contended, "is thought to see"),
    miscount_rows: (contended, "are thought to have"),
    watch_what_is_not_held: (contended, "watched for their deadline and not held"),
    hold_though_no_other_flow_waits: (contended, "are held though no other flow waits"),
    take_several_flows_for_one: (lonely, "several flows wait as if they were one"),
    count_what_is_gone: (contended, "fill batches of which the policy does not know"),
    forget_to_tell: (running, "the policy has not received all events"),
    forget_to_release: (idle_workers, "and the one that follows has not received them"),
}


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.__name__)
def test_wrong_books_are_found(breakage: Callable[[EngineState], None]) -> None:
    applies, says = BREAKAGES[breakage]
    for engine in engines():
        engine.validate()
        if applies(state_of(engine)):
            breakage(state_of(engine))
            with pytest.raises(InconsistentStateError, match=says):
                engine.validate()
            return
    pytest.fail("no world has what is to be broken")


@pytest.mark.parametrize(("start_ns", "says"), [(100, "no timer is set for it"), (0, "could run .* and does not")])
def test_a_stage_that_nobody_will_start_is_found(start_ns: int, says: str) -> None:
    engine = engine_of(Script([run(0, at_ns=100)]))
    engine.handle(arrived(0))
    engine.validate()
    state = state_of(engine)
    state.flights._planned_starts.cancel(0)
    booked = state.fleet.bookings[0]
    (stage,) = booked.stages
    flight = booked.flights[0]
    booked.stages[0] = replace(stage, start_ns=start_ns)
    flight.batch = replace(flight.batch, stages=(booked.stages[0],))
    with pytest.raises(InconsistentStateError, match=says):
        engine.validate()


@pytest.mark.parametrize(("starts_ns", "says"), [((0, 100), "out of their order"), ((100, 200), "booked out of order")])
def test_stages_in_the_wrong_order_are_found(starts_ns: tuple[int, int], says: str) -> None:
    engine = engine_of(Script([], [run(number, batch=number, at_ns=at_ns) for number, at_ns in enumerate(starts_ns)]))
    engine.handle(arrived(0))
    engine.handle(arrived(1))
    engine.validate()
    booked = state_of(engine).fleet.bookings[0]
    booked.stages.reverse()
    booked.flights.reverse()
    with pytest.raises(InconsistentStateError, match=says):
        engine.validate()
