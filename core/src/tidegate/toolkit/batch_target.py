"""Batch size that the load needs: the staggered optimum at the observed rate (Symphony, section 3.3)."""

from bisect import bisect_left
from math import exp

from tidegate.api import NEVER_NS, Profile

MEMORY_NS = 1_000_000_000
"""Time constant of the rate's exponential average in ns: smooths a Poisson process and follows the course of a day."""
MIN_MASS_NS = MEMORY_NS // 10
"""Assumed time in ns without arrivals before the first request."""
REFRESH_NS = 10_000_000
"""Time in ns for which a target is reused."""


class ArrivalRate:
    """Arrival rate of one queue in rows per ns, as an exponentially weighted average, with the sizes of requests."""

    __slots__ = ("_at_ns", "_least", "_mass_ns", "_of_size", "_requests", "_rows", "_since_ns")

    def __init__(self, now_ns: int) -> None:
        self._at_ns = now_ns
        self._rows = 0.0
        self._requests = 0.0
        self._mass_ns = 0.0
        self._of_size = [0.0]
        """The rows that came in requests of 0, 1, 2 to 3, 4 to 7 rows and so on."""
        self._least = (NEVER_NS, NEVER_NS)
        """The rows of the smallest request of the current interval of `MEMORY_NS`, and of the one before."""
        self._since_ns = now_ns
        """The start of the current interval."""

    def observe(self, now_ns: int, rows: int) -> None:
        """Count the arrival of a request of `rows` rows."""
        fade = exp(-(now_ns - self._at_ns) / MEMORY_NS)
        self._mass_ns = self._mass_ns * fade + MEMORY_NS * (1 - fade)
        self._rows = self._rows * fade + rows
        self._requests = self._requests * fade + 1
        size = rows.bit_length()
        self._of_size = [fade * each for each in self._of_size]
        self._of_size += [0.0] * (size + 1 - len(self._of_size))
        self._of_size[size] += rows
        self._at_ns = now_ns
        if now_ns - self._since_ns > MEMORY_NS:
            self._least, self._since_ns = (NEVER_NS, self._least[0]), now_ns
        if rows < self._least[0]:
            self._least = rows, self._least[1]

    @property
    def least_rows(self) -> int:
        """Rows of the smallest recent request; 1 before any arrived."""
        least = min(self._least)
        return 1 if least == NEVER_NS else least

    def rows_per_ns_joining(self, free_rows: int) -> float:
        """Return the rate, in rows per ns at the last arrival, of requests that fit into about `free_rows` rows."""
        joining = sum(self._of_size[: free_rows.bit_length() + 1])
        return joining / self._mass_ns if self._mass_ns > 0 else 0.0

    @property
    def rows_per_request(self) -> float:
        """Mean rows of a request; 1 before any arrived."""
        return self._rows / self._requests if self._requests else 1.0

    @property
    def rows_per_ns(self) -> float:
        """Rate in rows per ns at the last arrival; 0 before any arrived."""
        return self._rows / self._mass_ns if self._mass_ns > 0 else 0.0

    def rows_per_ns_at(self, now_ns: int) -> float:
        """Return the rate in rows per ns at `now_ns`, even if nothing arrived since; the first arrivals count
        little.
        """
        rows, mass_ns = self._faded(now_ns)
        return rows / max(mass_ns, MIN_MASS_NS)

    def _faded(self, now_ns: int) -> tuple[float, float]:
        """Return the decayed sum of rows and the decayed time: their ratio is a rate without the bias of a short
        history."""
        fade = exp(-(now_ns - self._at_ns) / MEMORY_NS)
        return self._rows * fade, self._mass_ns * fade + MEMORY_NS * (1 - fade)


class BatchTarget:
    """Target batch size of one model, recomputed every few milliseconds."""

    __slots__ = ("_computed_ns", "_rows", "rate")

    def __init__(self, rate: ArrivalRate) -> None:
        """Create the target of one model. `rate`: arrival rate of its rows, which several targets may share."""
        self.rate = rate
        self.forget()

    def forget(self) -> None:
        """Discard the cached target after a change of profile or workers."""
        self._rows, self._computed_ns = 1, -REFRESH_NS

    def rows(self, now_ns: int, profile: Profile, slo_ns: int, workers: int) -> int:
        """Return the target in rows at `now_ns`, at least 1.

        `slo_ns`: time from arrival to deadline in ns; `workers`: number of workers that host the model.
        """
        if now_ns - self._computed_ns >= REFRESH_NS:
            self._rows = staggered_target(profile, slo_ns, self.rate.rows_per_ns, workers)
            self._computed_ns = now_ns
        return self._rows


def staggered_target(profile: Profile, slo_ns: int, rows_per_ns: float, workers: int) -> int:
    """Return the largest batch size whose oldest request is on time with evenly staggered workers; at least 1.

    The condition is `l(b) + wait <= SLO`: a batch waits until its rows have arrived (b/rate) or, under overload, until
    the next worker is free (l(b)/N). This is equation 1 with the number of workers that the load needs, at most
    `workers`. `slo_ns`: SLO in ns; `rows_per_ns`: arrival rate in rows per ns.
    """

    def too_large(rows: int) -> bool:
        latency_ns = profile.upper_ns(rows)
        gathering_ns = rows / rows_per_ns if rows_per_ns > 0 else slo_ns
        return latency_ns + max(gathering_ns, latency_ns / workers) > slo_ns

    # Neither term falls as rows grow: what is too large for some is too large for all above.
    return max(1, bisect_left(range(1, profile.max_rows + 1), True, key=too_large))
