"""Calls back at an instant. A thread of its own: event loops wake in whole milliseconds, batches start in tenths."""

import threading
import time
from collections.abc import Callable

from tidegate_proxy.faults import faults
from tidegate_proxy.liveness import BEAT_S


class Alarm:
    """One instant at a time, set anew as often as one likes, from any thread."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._at_ns: int | None = None
        self._sleeps_until_ns: int | None = None
        """None: without end; what the thread was last told."""
        self._changed = threading.Condition()
        self._closed = False
        self.seen_ns = time.monotonic_ns()
        """The thread's last sign of life."""
        self._thread = threading.Thread(target=self._run, name="alarm", daemon=True)
        self._thread.start()

    def set(self, at_ns: int | None) -> None:
        """Ring at this instant of the monotonic clock instead of the one set before; None: not at all."""
        if at_ns == self._at_ns:
            return
        with self._changed:
            self._at_ns = at_ns
            # A sleeper that would wake too early is left alone: it looks at the clock and goes on sleeping.
            if at_ns is not None and (self._sleeps_until_ns is None or at_ns < self._sleeps_until_ns):
                self._changed.notify()

    def close(self) -> None:
        """Stop; does not ring any more afterwards."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while self._wait():
            try:
                self._ring()
            except Exception as error:  # there is a next time
                faults.report("the alarm", error)

    def _wait(self) -> bool:
        with self._changed:
            while not self._closed:
                self.seen_ns = time.monotonic_ns()
                self._sleeps_until_ns = self._at_ns
                left_ns = None if self._at_ns is None else self._at_ns - time.monotonic_ns()
                if left_ns is not None and left_ns <= 0:
                    self._at_ns = None
                    self._sleeps_until_ns = 0  # awake: it looks again before it sleeps
                    return True
                self._changed.wait(BEAT_S if left_ns is None else min(BEAT_S, left_ns / 1e9))
        return False
