"""The alarm rings at the instant last set."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from tidegate_proxy.scheduling.clock import WakeTimer

MS = 1_000_000
HOUR_NS = 3_600_000 * MS
Work = Callable[[], Awaitable[None]]
Run = Callable[[Work], None]


class Rings:
    """Counts them, and says when."""

    def __init__(self) -> None:
        self.at_ns: list[int] = []
        self._rang = asyncio.Event()

    def __call__(self) -> None:
        self.at_ns.append(time.monotonic_ns())
        self._rang.set()

    async def next(self) -> int:
        """When it rings next."""
        async with asyncio.timeout(60):
            await self._rang.wait()
        self._rang.clear()
        return self.at_ns[-1]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """`run(work)`: a coroutine to its end, in either event loop."""

    async def whole(work: Work) -> None:
        await work()

    def to_its_end(work: Work) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(whole(work))

    return to_its_end


def test_rings_once_and_not_before(run: Run) -> None:
    async def work() -> None:
        rings = Rings()
        alarm = WakeTimer(rings)
        due_ns = time.monotonic_ns() + 5 * MS
        alarm.set(due_ns)
        assert await rings.next() >= due_ns
        alarm.set(again_ns := time.monotonic_ns() + 20 * MS)
        assert await rings.next() >= again_ns
        assert len(rings.at_ns) == 2
        alarm.close()

    run(work)


def test_an_instant_in_the_past_rings_at_once(run: Run) -> None:
    async def work() -> None:
        rings = Rings()
        alarm = WakeTimer(rings)
        for at_ns in (time.monotonic_ns() - MS, 0, -5):
            alarm.set(at_ns)
            await rings.next()
        alarm.close()

    run(work)


def test_an_earlier_instant_replaces_a_later(run: Run) -> None:
    async def work() -> None:
        rings = Rings()
        alarm = WakeTimer(rings)
        alarm.set(time.monotonic_ns() + HOUR_NS)
        alarm.set(time.monotonic_ns() + MS)
        await rings.next()
        alarm.close()

    run(work)


def test_a_later_instant_replaces_an_earlier(run: Run) -> None:
    async def work() -> None:
        rings = Rings()
        alarm = WakeTimer(rings)
        first_ns = time.monotonic_ns() + 20 * MS
        alarm.set(first_ns)
        alarm.set(first_ns + 20 * MS)
        assert await rings.next() >= first_ns + 20 * MS
        alarm.close()

    run(work)


def test_none_rings_not_at_all(run: Run) -> None:
    async def work() -> None:
        silent, rings = Rings(), Rings()
        alarm, other = WakeTimer(silent), WakeTimer(rings)
        alarm.set(due_ns := time.monotonic_ns() + 10 * MS)
        alarm.set(None)
        other.set(due_ns + 10 * MS)
        await rings.next()
        assert not silent.at_ns
        alarm.close()
        other.close()

    run(work)


def test_may_be_set_again_while_it_rings(run: Run) -> None:
    async def work() -> None:
        rings = Rings()

        def ring() -> None:
            rings()
            alarm.set(time.monotonic_ns() + MS)

        alarm = WakeTimer(ring)
        alarm.set(time.monotonic_ns())
        for _ in range(5):
            await rings.next()
        alarm.close()

    run(work)


def test_closed_it_rings_no_more(run: Run) -> None:
    async def work() -> None:
        silent, rings = Rings(), Rings()
        alarm, other = WakeTimer(silent), WakeTimer(rings)
        alarm.set(due_ns := time.monotonic_ns() + 10 * MS)
        alarm.close()
        alarm.close()
        alarm.set(due_ns)
        other.set(due_ns + 10 * MS)
        await rings.next()
        assert not silent.at_ns
        other.close()

    run(work)
