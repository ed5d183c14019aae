"""One page for all who ask for it: rendered for one reader at a time, and not often, however many there are."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

MAX_BURST_PAGES: Final = 8
"""Pages that may be rendered at once, one after the other, after some seconds in which none was."""
PER_S: Final = 1.0
"""Pages per second that may be rendered beyond that."""
PageT = TypeVar("PageT")


class SharedPage(Generic[PageT]):
    """The latest page, and who renders the next. Lives in an event loop."""

    def __init__(self, render: Callable[[], Awaitable[PageT]]) -> None:
        self._render = render
        self._rendering: asyncio.Future[PageT] | None = None
        self._credit, self._credited_s = float(MAX_BURST_PAGES), 0.0

    async def read(self) -> PageT:
        """Return the page being rendered, a new one, or, after too many, the latest. Raises as `render`."""
        now_s = asyncio.get_running_loop().time()
        self._credit = min(MAX_BURST_PAGES, self._credit + (now_s - self._credited_s) * PER_S)
        self._credited_s = now_s
        if self._rendering is None or (self._rendering.done() and self._credit >= 1):
            self._credit -= 1
            self._rendering = asyncio.ensure_future(self._render())
        return await asyncio.shield(self._rendering)
