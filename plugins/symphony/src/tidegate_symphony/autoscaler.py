"""Autoscaler: number of workers that the load needs (section 3.5), from dropped requests and busy time."""

from math import ceil

from tidegate.api import Advise


class Autoscaler:
    """Autoscaler: recommends a number of workers from the last interval.

    It sets no timer, since idle systems need none.
    """

    def __init__(self, interval_ns: int, tolerated: float) -> None:
        """Create an autoscaler.

        `interval_ns`: period of a recommendation in ns; 0: none. `tolerated`: miss rate, 0 to 1, that needs no more
        workers.
        """
        self._interval_ns = interval_ns
        self._tolerated = tolerated
        self._since_ns: int | None = None
        self._looked_ns = 0
        self._arrived = self._dropped = self._busy_ns = self._had_ns = 0

    def arrived(self) -> None:
        """Count an arrived request."""
        self._arrived += 1

    def dropped(self, count: int) -> None:
        """Count `count` dropped requests."""
        self._dropped += count

    def ran(self, duration_ns: int) -> None:
        """Add `duration_ns` of busy time of a worker."""
        self._busy_ns += duration_ns

    def advice(self, now_ns: int, workers: int) -> list[Advise]:
        """Return the recommendation at this time, at most once an interval, and only if the number should change.

        With a bad rate r above the tolerance the load is 1/(1-r) of the workers' capacity: `N*r/(1-r)` more are needed.
        Otherwise, with idle fraction f, `N*f` can go.
        """
        if self._since_ns is None:
            self._since_ns = self._looked_ns = now_ns
        self._had_ns += (now_ns - self._looked_ns) * workers  # how many there are may change meanwhile
        self._looked_ns = now_ns
        elapsed_ns = now_ns - self._since_ns
        if not self._interval_ns or elapsed_ns < self._interval_ns or not self._arrived or not workers:
            return []
        bad = min(self._dropped / self._arrived, 0.9)  # beyond that it is no estimate any more
        idle = max(0.0, 1 - self._busy_ns / max(1, self._had_ns))
        self._since_ns = now_ns
        self._arrived = self._dropped = self._busy_ns = self._had_ns = 0
        if bad > self._tolerated:
            return [Advise(ceil(workers * bad / (1 - bad)), f"{bad:.1%} of the requests are lost")]
        if spare := int(workers * idle):
            return [Advise(-spare, f"workers are idle {idle:.0%} of the time")]
        return []
