"""Page shared by all readers: rendered for one at a time, at a limited rate."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

MAX_BURST_PAGES: Final = 8
"""Number of pages that may be rendered back to back after some idle seconds."""
PER_S: Final = 1.0
"""Sustained number of pages per second."""
PageT = TypeVar("PageT")


class SharedPage(Generic[PageT]):
    """Latest page, and the task that renders the next. Use it only in one event loop."""

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
