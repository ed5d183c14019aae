"""Effects are carried out one after the other, whatever they bring about."""

import asyncio
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api import Commands, Drop, Model, PolicyOptions, Profile, Request, RequestArrived, Setup, Worker
from tidegate.engine import AnyEffect, Engine, EngineRestarted
from tidegate.toolkit import FirstComeFirstServed
from tidegate_proxy.observability.recorder import Metrics
from tidegate_proxy.scheduling.clock import LiveEngine

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
