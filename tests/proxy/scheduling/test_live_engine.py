"""Effects are carried out one after the other, whatever they bring about."""

import asyncio
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api import Commands, Drop, Model, PolicyOptions, Profile, Request, RequestArrived, Setup, Worker
from tidegate.engine import AnyEffect, Engine, EngineRestarted, PolicyOverran, PolicyReplaced
from tidegate.toolkit import FirstComeFirstServed
from tidegate_proxy.observability.metrics import Metrics
from tidegate_proxy.scheduling.clock import WATCHED_EVENTS, DecisionBudget, LiveEngine

SETUP = Setup((Model("m", 1),), (Worker(0, "w", ("m",)),), (Profile("m", "default", (1,)),))


class DropsInTwos(FirstComeFirstServed):
    """Drops every second request, and the one before."""

    def __init__(self, setup: Setup, options: PolicyOptions) -> None:
        super().__init__(setup, options)
        self._pair: list[int] = []

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        """One more."""
        self._pair.append(event.request.id)
        if len(self._pair) < 2:
            return []
        kept, self._pair = self._pair, []
        return [Drop(number, "enough") for number in kept]


class World:
    """An engine whose effects are looked at, and may bring about what a test wants."""

    def __init__(self) -> None:
        engine = Engine(DropsInTwos(SETUP, PolicyOptions()), name="test")
        self.carried_out: list[AnyEffect] = []
        self.given_up: list[AnyEffect] = []
        self.depth = self.deepest = 0
        self.then: Callable[[AnyEffect], None] = lambda _: None
        self.engine = LiveEngine(engine, Metrics(SETUP, engine.reducer), self._carry_out, self.given_up.append)
        self._next = 0

    def arrive(self) -> None:
        """One more request."""
        now_ns, self._next = time.monotonic_ns(), self._next + 1
        self.engine.take_in(RequestArrived(now_ns, Request(self._next - 1, "m", 1, now_ns)))

    def dropped(self) -> list[int]:
        """The requests that were, in the order in which that was carried out."""
        return [effect.request_id for effect in self.carried_out if isinstance(effect, Drop)]

    def _carry_out(self, effect: AnyEffect) -> None:
        self.depth += 1
        self.deepest = max(self.deepest, self.depth)
        self.carried_out.append(effect)
        try:
            self.then(effect)
        finally:
            self.depth -= 1


def _in_a_loop(work: Callable[[], None]) -> None:
    async def run() -> None:
        work()

    asyncio.run(run())


def test_what_was_put_off_is_told_before_anything_else_even_where_telling_breaks() -> None:
    def work() -> None:
        world, told = World(), []

        def broken() -> None:
            told.append(world.engine.engine.tally.accepted)
            raise ValueError("broken")

        world.engine.put_off(broken)
        world.arrive()
        world.arrive()
        world.engine.catch_up()
        assert told == [0]
        assert world.dropped() == [0, 1]

    _in_a_loop(work)


def test_broken_metrics_break_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(Metrics, "_of", broken)

    def work() -> None:
        world = World()
        world.arrive()
        world.arrive()
        assert world.dropped() == [0, 1]
        assert not any(isinstance(effect, EngineRestarted) for effect in world.carried_out)

    _in_a_loop(work)


def test_a_chain_of_events_is_as_long_as_it_likes_and_never_deep() -> None:
    def work() -> None:
        world = World()

        def send_the_next(_effect: AnyEffect) -> None:
            if world._next < 5000:
                world.arrive()

        world.then = send_the_next
        world.arrive()
        world.arrive()
        assert world.dropped() == list(range(5000))
        assert world.deepest == 1

    _in_a_loop(work)


@given(st.lists(st.integers(0, 3), max_size=30))
def test_effects_are_carried_out_in_the_order_of_their_events(arrivals: list[int]) -> None:
    """Each effect brings about so many requests."""

    def work() -> None:
        world, plan = World(), iter(arrivals)

        def bring_about(_effect: AnyEffect) -> None:
            for _ in range(next(plan, 0)):
                world.arrive()

        world.then = bring_about
        world.arrive()
        world.arrive()
        assert world.dropped() == list(range(world._next // 2 * 2))
        assert world.deepest == 1

    _in_a_loop(work)


def test_an_effect_that_cannot_be_carried_out_is_given_up_and_the_others_are_carried_out() -> None:
    def work() -> None:
        world = World()

        def fail(effect: AnyEffect) -> None:
            if effect == Drop(0, "enough"):
                raise ValueError("a test")

        world.then = fail
        world.arrive()
        world.arrive()
        assert world.given_up == [Drop(0, "enough")]
        assert world.dropped() == [0, 1]

    _in_a_loop(work)


def test_what_an_engine_wanted_before_it_restarted_is_carried_out_and_what_restarts_it_behind_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work() -> None:
        world = World()

        def break_the_engine(effect: AnyEffect) -> None:
            if effect == Drop(0, "enough"):
                with monkeypatch.context() as patched:
                    patched.setattr(Engine, "handle", lambda *_: 1 / 0)
                    world.arrive()

        world.then = break_the_engine
        world.arrive()
        world.arrive()
        restarted = EngineRestarted("test", "ZeroDivisionError: division by zero", failed=(2,))
        assert world.carried_out == [Drop(0, "enough"), Drop(1, "enough"), restarted]
        assert world.deepest == 1

    _in_a_loop(work)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The monotonic clock and that of the thread, both moved by hand."""
    now = SimpleNamespace(wall_ns=10**12, cpu_ns=0, asked=0)

    def thread_time_ns() -> int:
        now.asked += 1
        cpu_ns: int = now.cpu_ns
        return cpu_ns

    monkeypatch.setattr(time, "monotonic_ns", lambda: now.wall_ns)
    monkeypatch.setattr(time, "thread_time_ns", thread_time_ns)
    return now


def overruns(clocks: SimpleNamespace, decisions: Iterable[tuple[int, int]]) -> list[int]:
    """After which of these decisions a policy is given up, each of so many ms of wall time, and of CPU."""
    budget, found = DecisionBudget(), []
    for number, (wall_ms, cpu_ms) in enumerate(decisions):
        began_ns, seemed_ns = budget.began_ns(), clocks.wall_ns
        clocks.wall_ns += wall_ms * 1_000_000
        clocks.cpu_ns += cpu_ms * 1_000_000
        if budget.ended(clocks.wall_ns, clocks.wall_ns - seemed_ns, began_ns):
            found.append(number)
    return found


def test_a_policy_is_given_up_that_takes_a_tenth_of_the_time_for_overlong_decisions(clocks: SimpleNamespace) -> None:
    assert overruns(clocks, [(340, 340)] * 5) == [4], "the first is not measured yet; then 1.2 s of 1.36 s"
    assert overruns(clocks, [(4800, 4800)] * 3) == [1, 2]
    assert overruns(clocks, [(30, 30), *[(10, 10)] * 60] * 100) == [], "a hundredth of the time, it is borne"


def test_where_the_machine_gives_the_cpu_to_others_no_policy_is_given_up(clocks: SimpleNamespace) -> None:
    assert overruns(clocks, [(300, 2)] * 1000) == []


def test_decisions_within_the_budget_are_not_measured(clocks: SimpleNamespace) -> None:
    assert overruns(clocks, [(19, 19)] * 1000) == []
    assert clocks.asked == 0
    overruns(clocks, [(21, 1), *[(1, 1)] * 1000])
    assert clocks.asked == 2 * WATCHED_EVENTS


def test_a_live_policy_that_overruns_is_replaced_and_nothing_is_lost() -> None:
    def work() -> None:
        world = World()
        late_ns = time.monotonic_ns() + 10**9
        overran = [PolicyOverran(late_ns, 2 * 10**9, 10**10, 2 * 10**7)]
        world.engine._budget.ended = lambda *_: overran.pop() if overran else None  # type: ignore[method-assign]
        world.arrive()
        assert any(isinstance(effect, PolicyReplaced) for effect in world.carried_out)
        assert type(world.engine.engine.policy) is FirstComeFirstServed
        assert world.engine.engine.tally.accepted == 1

    _in_a_loop(work)
