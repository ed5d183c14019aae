"""Rate limits of a tenant: token buckets for requests and rows, of the proxy and of the simulator."""

from math import ceil
from typing import Final

NS_PER_S: Final = 1_000_000_000


class TokenBucket:
    """Token bucket that keeps one instant: the time at which it will be full (generic cell rate algorithm)."""

    __slots__ = ("_burst_ns", "_full_ns", "_token_ns")

    def __init__(self, rate_per_s: float, burst_s: float) -> None:
        """Create a full bucket.

        `rate_per_s`: tokens per second. `burst_s`: seconds of that rate that may be taken at once; one token always
        may.
        """
        self._full_ns = 0
        self._token_ns = NS_PER_S / rate_per_s
        self._burst_ns = max(burst_s * NS_PER_S, self._token_ns)

    def wait_ns(self, now_ns: int, tokens: int) -> int:
        """Return the time in ns until this many tokens can be taken; 0: now. More than a burst need a full bucket."""
        cost_ns = tokens * self._token_ns
        ready_ns = max(self._full_ns, now_ns) + cost_ns - max(self._burst_ns, cost_ns)
        return max(0, ceil(ready_ns - now_ns))

    def take(self, now_ns: int, tokens: int) -> None:
        """Take tokens, which need not be there."""
        self._full_ns = round(max(self._full_ns, now_ns) + tokens * self._token_ns)


class RateLimit:
    """Limits on requests and rows per second, which a request must meet both."""

    __slots__ = ("_requests", "_rows")

    def __init__(self, requests_per_s: float | None, rows_per_s: float | None, burst_s: float) -> None:
        """Create the limits; None: no limit. `burst_s`: seconds of each rate that may be used at once."""
        self._requests = TokenBucket(requests_per_s, burst_s) if requests_per_s else None
        self._rows = TokenBucket(rows_per_s, burst_s) if rows_per_s else None

    def follow(self, before: "RateLimit") -> None:
        """Take over the usage counted under the former limits."""
        for mine, theirs in ((self._requests, before._requests), (self._rows, before._rows)):
            if mine and theirs:
                mine._full_ns = theirs._full_ns

    def take(self, now_ns: int, rows: int) -> int:
        """Count a request; return 0, or, without counting it, the time in ns after which to try again."""
        requests, of_rows = self._requests, self._rows
        wait_ns = max(requests.wait_ns(now_ns, 1) if requests else 0, of_rows.wait_ns(now_ns, rows) if of_rows else 0)
        if not wait_ns:
            if requests:
                requests.take(now_ns, 1)
            if of_rows:
                of_rows.take(now_ns, rows)
        return wait_ns
