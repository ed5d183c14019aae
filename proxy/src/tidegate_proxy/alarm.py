"""Calls back at an instant, in the event loop: loops wake in whole milliseconds, batches start in tenths.

A timer of the kernel (timerfd) that the loop reads like a socket is 0.04 ms late in the median.
"""

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from typing import Final

from tidegate_proxy.faults import faults

_libc: Final = ctypes.CDLL(None, use_errno=True)
_CLOCK_MONOTONIC: Final = 1
_ABSOLUTE: Final = 1
_Spec: Final = ctypes.c_long * 4
"""struct itimerspec: interval and instant, each in seconds and nanoseconds."""
_SECOND_NS: Final = 1_000_000_000


class Alarm:
    """One instant at a time, set anew as often as one likes. It rings in the loop it was made in."""

    def __init__(self, ring: Callable[[], None]) -> None:
        """Raises OSError where the kernel has no timer left."""
        self._ring = ring
        self.at_ns: int | None = None
        """When it rings; None: not at all."""
        self._armed_ns: int | None = None
        """When the kernel wakes the loop; None: not at all."""
        self._loop = asyncio.get_running_loop()
        self._timer = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), f"no timer: {os.strerror(ctypes.get_errno())}")
        self._loop.add_reader(self._timer, self._woken)

    def set(self, at_ns: int | None) -> None:
        """Ring at this instant of the monotonic clock instead of the one set before; None: not at all."""
        self.at_ns = at_ns
        # A timer that wakes the loop too early is left alone: it looks at the clock and is armed again.
        if at_ns is not None and (self._armed_ns is None or at_ns < self._armed_ns):
            self._arm(at_ns)

    def close(self) -> None:
        """Stop; does not ring any more afterwards."""
        timer, self._timer = self._timer, -1
        self.at_ns = None
        if timer >= 0:
            self._loop.remove_reader(timer)
            os.close(timer)

    def _arm(self, at_ns: int) -> None:
        if self._timer >= 0:
            self._armed_ns = at_ns
            seconds, nanoseconds = divmod(max(1, at_ns), _SECOND_NS)
            spec = _Spec(0, 0, seconds, nanoseconds)
            _libc.timerfd_settime(self._timer, _ABSOLUTE, ctypes.byref(spec), None)

    def _woken(self) -> None:
        try:
            os.read(self._timer, 8)
        except BlockingIOError:
            return  # it was armed anew meanwhile
        self._armed_ns = None
        if self.at_ns is None:
            return
        if self.at_ns > time.monotonic_ns():
            self._arm(self.at_ns)
            return
        self.at_ns = None
        try:
            self._ring()
        except Exception as error:  # there is a next time
            faults.report("the alarm", error)
