"""Virtual time: the total order of events, and when a simulation is over."""

from tidegate.api import LegFinished, Model, PolicyOptions, Profile, Request, RequestArrived, Setup, Worker, WorkerLost
from tidegate.engine import Engine, Fail, StartLeg
from tidegate.sim import Simulation
from tidegate.toolkit import FirstComeFirstServed

SETUP = Setup((Model("m", 4),), (Worker(0, "w0", ("m",)),), (Profile("m", "default", (10, 20, 30, 40)),))


def simulation() -> Simulation:
    return Simulation(Engine(FirstComeFirstServed(SETUP, PolicyOptions()), name="first-come", strict=True, learn=False))


def arrival(request_id: int, at_ns: int) -> RequestArrived:
    return RequestArrived(at_ns, Request(request_id, "m", 1, at_ns))


def starts(simulation: Simulation) -> list[tuple[int, tuple[int, ...]]]:
    return [(at_ns, effect.batch.request_ids) for at_ns, effect in simulation.effects if isinstance(effect, StartLeg)]


def test_what_is_fed_and_what_is_scheduled_happen_in_the_order_of_time() -> None:
    one = simulation()
    one.feed(iter([arrival(0, 0), arrival(1, 5), arrival(2, 30)]))
    one.schedule([arrival(4, 7), arrival(3, 6)])
    one.run()
    assert starts(one) == [(0, (0,)), (10, (1, 3, 4)), (40, (2,))]


def test_what_is_fed_is_taken_one_by_one() -> None:
    taken = []

    def arrivals() -> "object":
        for number in range(10):
            taken.append(number)
            yield arrival(number, 100 * number)

    one = simulation()
    one.feed(arrivals())  # type: ignore[arg-type]
    assert taken == [0]
    one.run(until_ns=350)
    assert taken == [0, 1, 2, 3, 4]
    assert one.engine.tally.answered == 4
    one.run()
    assert one.engine.tally.answered == 10


def test_of_one_instant_what_was_fed_comes_first() -> None:
    """A request that arrives when a worker gets free can join what that worker runs next."""
    one = simulation()
    one.feed([arrival(0, 0), arrival(1, 10)])
    one.run()
    assert starts(one) == [(0, (0,)), (10, (1,))]
    assert one.engine.tally.answered == 2


def test_of_one_instant_what_was_scheduled_first_happens_first() -> None:
    first, second = simulation(), simulation()
    first.schedule([WorkerLost(5, 0), arrival(0, 5)])
    second.schedule([arrival(0, 5), WorkerLost(5, 0)])
    for one in (first, second):
        one.run()
    assert starts(first) == []
    assert starts(second) == [(5, (0,))]
    assert all(isinstance(one.effects[-1][1], Fail) for one in (first, second))


def test_a_run_can_be_interrupted_without_a_trace() -> None:
    whole, parts = simulation(), simulation()
    for one in (whole, parts):
        one.schedule(arrival(number, 7 * number) for number in range(20))
    whole.run()
    for until_ns in range(0, 400, 3):
        parts.run(until_ns)
    assert parts.effects == whole.effects
    assert parts.engine.tally == whole.engine.tally


def test_a_leg_takes_what_the_service_says() -> None:
    engine = Engine(FirstComeFirstServed(SETUP, PolicyOptions()), name="first-come", learn=False)
    told: list[LegFinished] = []

    class Watching(Simulation):
        def outcome(self, effect: StartLeg, started_ns: int, ended_ns: int) -> LegFinished:
            finished = LegFinished(ended_ns, effect.batch.id, effect.leg, 0, started_ns, ended_ns)
            told.append(finished)
            return finished

    one = Watching(engine, service=lambda effect: 100 * effect.rows)
    one.schedule([arrival(0, 0), arrival(1, 1), arrival(2, 2)])
    one.run()
    assert [(leg.started_ns, leg.ended_ns) for leg in told] == [(0, 100), (100, 300)]
