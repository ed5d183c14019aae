"""Who looks: nothing is looked at for nobody, and nothing piles up for one who reads slowly."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

import pytest

from tidegate_proxy.app.dashboard import viewers
from tidegate_proxy.app.dashboard.snapshot import DashboardSnapshot
from tidegate_proxy.app.dashboard.viewers import MAX_VIEWERS, TooMany, Viewers

if TYPE_CHECKING:
    from tidegate_proxy.app.dashboard.live import LiveView


class Watched:
    """Counts what it is asked."""

    def __init__(self) -> None:
        self.opened = self.closed = self.ticks = 0
        self.breaks = False

    def open(self) -> None:
        self.opened += 1

    def close(self) -> None:
        self.closed += 1

    def tick(self, viewers: int) -> DashboardSnapshot:
        self.ticks += 1
        if self.breaks:
            raise RuntimeError("of no meaning")
        return DashboardSnapshot(float(self.ticks), 1.0, [], 0, [], 0, [], [], [], 0, [], 0, [], viewers)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "TICK_S", 0.001)
    monkeypatch.setattr(viewers, "LINGER_S", 0.02)


def run(test: Callable[[Watched, Viewers], Awaitable[None]]) -> Watched:
    watched = Watched()

    async def all_of_it() -> None:
        those = Viewers(cast("LiveView", watched))
        try:
            await asyncio.wait_for(test(watched, those), 20)
        finally:
            await those.close()

    asyncio.run(all_of_it())
    return watched


def test_it_is_looked_at_from_the_first_viewer_until_after_the_last() -> None:
    async def test(watched: Watched, those: Viewers) -> None:
        assert not those.is_open
        async with aclosing(those.watch()) as one, aclosing(those.watch()) as other:
            assert b'"viewers":2' in [await anext(one), await anext(other), await anext(one)][-1]
            assert those.is_open
        while those.is_open:
            await asyncio.sleep(0.001)
        assert (watched.opened, watched.closed, those.count) == (1, 1, 0)
        async with aclosing(those.watch()) as again:
            await anext(again)
        assert watched.opened == 2

    assert run(test).closed == 2


def test_one_who_reads_slowly_misses_some() -> None:
    async def test(watched: Watched, those: Viewers) -> None:
        async with aclosing(those.watch()) as slow:
            first = await anext(slow)
            before = watched.ticks
            while watched.ticks < before + 10:
                await asyncio.sleep(0.001)
            second = await anext(slow)
            assert first != second
            assert f'"at_ms":{float(watched.ticks)}'.encode() in second  # the latest, and none in between

    run(test)


def test_so_many_may_look() -> None:
    async def test(_watched: Watched, those: Viewers) -> None:
        many = [those.watch() for _ in range(MAX_VIEWERS)]
        for each in many:
            await anext(each)
        with pytest.raises(TooMany, match="close one"):
            await anext(those.watch())
        for each in many:
            await each.aclose()
        async with aclosing(those.watch()) as one:
            await anext(one)

    run(test)


def test_a_fault_ends_nothing() -> None:
    async def test(watched: Watched, those: Viewers) -> None:
        async with aclosing(those.watch()) as one:
            await anext(one)
            watched.breaks, before = True, watched.ticks
            while watched.ticks < before + 3:
                await asyncio.sleep(0.001)
            watched.breaks = False
            await anext(one)

    run(test)


def test_viewers_are_told_when_it_ends() -> None:
    async def test(_watched: Watched, those: Viewers) -> None:
        async with aclosing(those.watch()) as one:
            await anext(one)
            await those.close()
            assert [each async for each in one] == []

    run(test)
