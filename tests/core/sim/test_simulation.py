"""Virtual time: the total order of events, who executes, who watches, and when a simulation is over."""

from collections.abc import Iterator, Sequence

import pytest

from tests.arrivals import Arrivals
from tests.effect_log import EffectLog
from tidegate.api import (
    Commands,
    Model,
    PolicyOptions,
    Preempt,
    Profile,
    RequestArrived,
    SetTimer,
    Setup,
    StageFinished,
    TimerFired,
    Worker,
    WorkerJoined,
    WorkerLost,
)
from tidegate.engine import AnyEffect, AnyStimulus, Engine, Fail, StartStage
from tidegate.sim import EventQueue, ExactWorkers, Simulation
from tidegate.sim.simulation import TimerLoopError
from tidegate.sim.workers import taking
from tidegate.toolkit import FirstComeFirstServed

SETUP = Setup((Model("m", 4),), (Worker(0, "w0", ("m",)),), (Profile("m", "default", (10, 20, 30, 40)),))


def engine_of(policy: type[FirstComeFirstServed] = FirstComeFirstServed) -> Engine:
    return Engine(policy(SETUP, PolicyOptions()), name="first-come", strict=True, learn=False)


def simulation() -> tuple[Simulation, EffectLog]:
    effects = EffectLog()
    return Simulation(engine_of(), listeners=[effects]), effects


arrived = Arrivals()


def starts(effects: EffectLog) -> list[tuple[int, tuple[int, ...]]]:
    return [(at_ns, effect.batch.request_ids) for at_ns, effect in effects if isinstance(effect, StartStage)]


# Order ----------------------------------------------------------------------------------------------------------------


def test_what_is_fed_and_what_is_scheduled_happen_in_the_order_of_time() -> None:
    one, effects = simulation()
    one.feed(iter([arrived(0, 0), arrived(1, 5), arrived(2, 30)]))
    one.schedule([arrived(4, 7), arrived(3, 6)])
    one.run()
    assert starts(effects) == [(0, (0,)), (10, (1, 3, 4)), (40, (2,))]


def test_what_is_fed_is_taken_one_by_one() -> None:
    taken = []

    def arrivals() -> Iterator[RequestArrived]:
        for number in range(10):
            taken.append(number)
            yield arrived(number, 100 * number)

    one, _ = simulation()
    one.feed(arrivals())
    assert taken == [0]
    one.run(until_ns=350)
    assert taken == [0, 1, 2, 3, 4]
    assert one.engine.tally.answered == 4
    one.run()
    assert one.engine.tally.answered == 10


def test_of_one_instant_what_was_fed_comes_first() -> None:
    """A request that arrives when a worker gets free can join what that worker runs next."""
    one, effects = simulation()
    one.feed([arrived(0, 0), arrived(1, 10)])
    one.run()
    assert starts(effects) == [(0, (0,)), (10, (1,))]
    assert one.engine.tally.answered == 2


def test_of_one_instant_what_was_scheduled_first_happens_first() -> None:
    (first, lost_first), (second, lost_second) = simulation(), simulation()
    first.schedule([WorkerLost(5, 0), arrived(0, 5)])
    second.schedule([arrived(0, 5), WorkerLost(5, 0)])
    for one in (first, second):
        one.run()
    assert starts(lost_first) == []
    assert starts(lost_second) == [(5, (0,))]
    assert all(isinstance(effects[-1][1], Fail) for effects in (lost_first, lost_second))


def test_what_was_called_off_does_not_happen() -> None:
    agenda = EventQueue()
    agenda.schedule(arrived(0, 5))
    agenda.call_off(agenda.schedule(arrived(1, 5)))
    agenda.feed([arrived(2, 7)])
    assert [agenda.next_ns, agenda.pop(), agenda.pop(), agenda.pop(), agenda.pop()] == [
        5,
        arrived(0, 5),
        None,
        arrived(2, 7),
        None,
    ]


# The end --------------------------------------------------------------------------------------------------------------


def test_a_run_can_be_interrupted_without_a_trace() -> None:
    (whole, whole_effects), (parts, parts_effects) = simulation(), simulation()
    for one in (whole, parts):
        one.schedule(arrived(number, 7 * number) for number in range(20))
    whole.run()
    for until_ns in range(0, 400, 3):
        parts.run(until_ns)
    assert parts_effects == whole_effects
    assert parts.engine.tally == whole.engine.tally


class Restless(FirstComeFirstServed):
    """Asks to be woken again and again, and runs nothing."""

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        return [SetTimer("again", event.now_ns + 1)]

    def on_timer_fired(self, event: TimerFired) -> Commands:
        return [SetTimer("again", event.now_ns + 1)]


def test_patience_with_a_policy_that_only_waits_ends() -> None:
    one = Simulation(engine_of(Restless), patience=25)
    one.schedule([arrived(0, 100)])
    one.run()
    assert one.engine.now_ns == 125
    assert one.engine.queued == 1


class NeverLets(FirstComeFirstServed):
    """Sets a timer for now whenever one fires."""

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        return [SetTimer("now", event.now_ns)]

    def on_timer_fired(self, event: TimerFired) -> Commands:
        return [SetTimer("now", event.now_ns - 1)]


def test_a_timer_for_now_again_and_again_is_an_error() -> None:
    one = Simulation(engine_of(NeverLets))
    one.schedule([arrived(0, 100)])
    with pytest.raises(TimerLoopError, match=r"^timers fired 10,000 times in a row at 100 ns: .*; set it for later"):
        one.run()


def test_many_timers_one_after_the_other_are_none() -> None:
    one = Simulation(engine_of(Restless), enough=lambda: one.engine.now_ns > 12_000)
    one.schedule([arrived(0, 100)])
    one.run()
    assert one.engine.queued == 1


def test_a_run_ends_where_enough_was_seen() -> None:
    effects = EffectLog()
    one = Simulation(engine_of(), listeners=[effects], enough=lambda: len(effects) == 2)
    one.schedule(arrived(number, 100 * number) for number in range(5))
    one.run()
    assert starts(effects) == [(0, (0,)), (100, (1,))]
    assert one.engine.now_ns == 100


# Workers --------------------------------------------------------------------------------------------------------------


class Ends:
    """A listener that keeps how stages ended."""

    def __init__(self) -> None:
        self.stages: list[tuple[int, int]] = []

    def handled(self, event: AnyStimulus, effects: Sequence[AnyEffect]) -> None:
        if isinstance(event, StageFinished):
            self.stages.append((event.started_ns, event.ended_ns))


def test_a_stage_takes_what_the_service_says() -> None:
    ends = Ends()
    one = Simulation(engine_of(), ExactWorkers(taking(lambda effect: 100 * effect.rows)), listeners=[ends])
    one.schedule([arrived(0, 0), arrived(1, 1), arrived(2, 2)])
    one.run()
    assert ends.stages == [(0, 100), (100, 300)]


class Impatient(FirstComeFirstServed):
    """Takes its first batch back when the second request comes."""

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        commands = super().on_request_arrived(event)
        return [Preempt(0), *commands] if event.request.id == 1 else commands


def test_a_stage_that_is_taken_from_an_exact_worker_ends_once_and_at_once() -> None:
    ends, effects = Ends(), EffectLog()
    one = Simulation(engine_of(Impatient), listeners=[ends, effects])
    one.schedule([arrived(0, 0), arrived(1, 4)])
    one.run()
    assert starts(effects) == [(0, (0,)), (4, (1,)), (14, (0,))]
    assert ends.stages == [(4, 14), (14, 24)]
    assert one.engine.tally.answered == 2


def test_an_exact_worker_that_comes_back_is_free() -> None:
    ends = Ends()
    one = Simulation(engine_of(), listeners=[ends])
    one.schedule([arrived(0, 0), WorkerLost(3, 0), WorkerJoined(4, SETUP.workers[0]), arrived(1, 5)])
    one.run()
    assert (5, 15) in ends.stages
