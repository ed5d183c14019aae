"""Where the event loop is held: who holds it, such as a policy that never returns, keeps everybody from saying so.

The interpreter's own watchdog needs neither the event loop nor the interpreter's lock.
"""

import asyncio
import faulthandler
from collections.abc import Callable
from typing import Final

_STDERR: Final = 2


class Watchdog:
    """Has stderr told what every thread is doing, whenever an event loop has not come round for too long.

    Made in that loop. Of a process there is one.
    """

    def __init__(self, limit_s: Callable[[], float]) -> None:
        """`limit_s`: how long is too long; it may give another number at any time."""
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._beat()

    def close(self) -> None:
        """Watch no more."""
        self._timer.cancel()
        faulthandler.cancel_dump_traceback_later()

    def _beat(self) -> None:
        limit_s = self._limit_s()
        faulthandler.dump_traceback_later(limit_s, file=_STDERR)
        self._timer = self._loop.call_later(limit_s / 4, self._beat)
