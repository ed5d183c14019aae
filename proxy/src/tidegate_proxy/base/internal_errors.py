"""Internal errors: unexpected exceptions in Tidegate itself. Each is logged with its place, and counted.

The code that catches one ends what it concerns (a call, a stage, an effect) and continues; this module only reports it.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

QUIET_S = 60.0
"""Seconds for which the same error at the same place is only counted after it was logged."""


class InternalErrors:
    """Internal errors of this process."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._logged_at_s: dict[tuple[str, type[BaseException]], float] = {}
        self._lock = threading.Lock()

    def report(self, place: str, error: BaseException) -> None:
        """Log and count `error`, raised in `place`, a few words that name a part of Tidegate. Never raises."""
        now_s = time.monotonic()
        with self._lock:
            self._counts[place] += 1
            logged_at_s = self._logged_at_s.get((place, type(error)))
            again = logged_at_s is not None and now_s - logged_at_s < QUIET_S
            if not again:
                self._logged_at_s[place, type(error)] = now_s
        if not again:
            log.error("internal error", exc_info=error, extra={"place": place})

    @contextmanager
    def contained(self, place: str) -> Iterator[None]:
        """Report an exception of the block, and continue after it."""
        try:
            yield
        except Exception as error:
            self.report(place, error)

    def counts(self) -> dict[str, int]:
        """Return the number of errors by place."""
        with self._lock:
            return dict(self._counts)


faults = InternalErrors()
"""The only instance in the process, as there is one log."""
