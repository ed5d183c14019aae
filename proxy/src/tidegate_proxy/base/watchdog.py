"""Watchdog of the event loop: reports what blocks it, such as a policy that never returns.

It uses the interpreter's own watchdog, which needs neither the event loop nor the GIL.
"""

import asyncio
import faulthandler
from collections.abc import Callable
from typing import Final

_STDERR: Final = 2


class Watchdog:
    """Watchdog that prints the stacks of all threads to stderr when the event loop is blocked for too long.

    Create it in that loop, once per process.
    """

    def __init__(self, limit_s: Callable[[], float]) -> None:
        """Start watching. `limit_s`: returns the time limit in seconds, which may change."""
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._beat()

    def close(self) -> None:
        """Stop watching."""
        self._timer.cancel()
        faulthandler.cancel_dump_traceback_later()

    def _beat(self) -> None:
        limit_s = self._limit_s()
        faulthandler.dump_traceback_later(limit_s, file=_STDERR)
        self._timer = self._loop.call_later(limit_s / 4, self._beat)
