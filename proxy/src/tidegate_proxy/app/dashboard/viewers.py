"""Viewers of the dashboard: each gets every tick, or only the latest if it reads slowly, so nothing queues up."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Final

import msgspec

from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.tasks import cancel

if TYPE_CHECKING:
    from tidegate_proxy.app.dashboard.live import LiveView

MAX_VIEWERS: Final = 8
"""Largest number of viewers."""
TICK_S: Final = 1.0
LINGER_S: Final = 5.0
"""Seconds for which observation continues after the last viewer left, for one that reloads the page."""


class TooMany(Exception):
    """Error: the maximum number of viewers is reached."""


class Viewers:
    """Viewers of a source: opens it for the first one, makes each snapshot once, closes it after the last one."""

    def __init__(self, watched: "LiveView", *, clock: Callable[[], float] = time.monotonic) -> None:
        self._watched = watched
        self._clock = clock
        self._news: dict[object, asyncio.Event] = {}
        """An event for each viewer, set when there is another snapshot."""
        self._latest = b""
        self._encoder = msgspec.json.Encoder()
        self._ticking: asyncio.Task[None] | None = None
        self.closed = False
        """Whether the viewers are closed for good."""

    @property
    def count(self) -> int:
        """Number of viewers."""
        return len(self._news)

    @property
    def is_open(self) -> bool:
        """Whether the source is open."""
        return self._ticking is not None

    async def watch(self) -> AsyncGenerator[bytes, None]:
        """Yield snapshots as JSON for one viewer, which misses some if it is slower than the ticks. Raises TooMany.

        Close it (`aclosing`) when the viewer leaves.
        """
        if len(self._news) >= MAX_VIEWERS:
            raise TooMany(f"{MAX_VIEWERS} have this page open already, and more may not: close one")
        viewer, news = object(), asyncio.Event()
        if self._ticking is None:
            self._watched.open()
            self._ticking = asyncio.create_task(self._tick())
        self._news[viewer] = news
        try:
            while True:
                await news.wait()
                if self.closed:
                    return
                news.clear()
                yield self._latest
        finally:
            del self._news[viewer]

    async def close(self) -> None:
        """Stop observing, and end the streams of the viewers."""
        self.closed = True
        for news in self._news.values():
            news.set()
        await cancel(self._ticking)

    async def _tick(self) -> None:
        seen = self._clock()
        try:
            while True:
                await asyncio.sleep(TICK_S)
                if self._news:
                    seen = self._clock()
                elif self._clock() - seen > LINGER_S:
                    return
                try:
                    self._latest = self._encoder.encode(self._watched.tick(len(self._news)))
                except Exception as error:  # a viewer does not disturb scheduling, and may get the next one
                    faults.report("the dashboard", error)
                    continue
                for news in self._news.values():
                    news.set()
        finally:
            self._ticking = None
            self._watched.close()
