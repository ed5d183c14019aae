"""Tidegate's own faults: exceptions that nobody expected. Each is logged with where it came from, and counted.

Whoever catches one ends what it concerns (a call, a stage, an effect) and goes on; here is only the telling of it.
"""

import logging
import threading
import time
from collections import Counter

log = logging.getLogger(__name__)

QUIET_S = 60.0
"""How long the same fault, at the same place, is counted only once it was logged."""


class InternalErrors:
    """The faults of this process."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._logged_at_s: dict[tuple[str, type[BaseException]], float] = {}
        self._lock = threading.Lock()

    def report(self, place: str, error: BaseException) -> None:
        """Say that `error` was raised in `place`, a few words that name a part of Tidegate. Never raises."""
        now_s = time.monotonic()
        with self._lock:
            self._counts[place] += 1
            logged_at_s = self._logged_at_s.get((place, type(error)))
            again = logged_at_s is not None and now_s - logged_at_s < QUIET_S
            if not again:
                self._logged_at_s[place, type(error)] = now_s
        if not again:
            log.error("internal error", exc_info=error, extra={"place": place})

    def counts(self) -> dict[str, int]:
        """How many there were, by place."""
        with self._lock:
            return dict(self._counts)


faults = InternalErrors()
"""The only one of the process, as there is one log."""
