"""Result of a run: one row per request, and the summary."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tidegate.api import NS_PER_MS, ms_to_ns
from tidegate.workload.arrivals import NS_PER_S
from tidegate.workload.tenants import RATE_LIMITED

OK_STATUS = "OK"
"""Status of an answered request; others are gRPC's names of failures, CLIENT_TIMEOUT, and DROP_STATUSES."""
CLIENT_TIMEOUT = "CLIENT_TIMEOUT"
"""Status of a request without a response within the client's timeout."""
CONNECTION_LOST = "CONNECTION_LOST"
"""Status of a request whose connection broke before a response."""
_BROKEN_CONNECTION = re.compile(
    "Stream removed|Socket closed|Broken pipe|[Cc]onnection reset|[Cc]onnection refused|failed to connect|GOAWAY"
)
LOST_STATUSES = (CLIENT_TIMEOUT, CONNECTION_LOST)
MAX_LOST_FRACTION = 0.01
"""Fraction of lost answers from which a p99 is unknown."""
DROP_STATUSES = {
    "Request timeout expired": "timeout",
    "Exceeds maximum queue size": "queue full",
    "Exceeds the rate limit of tenant": RATE_LIMITED,
}
"""Messages with which Triton or Tidegate drops a request, and the status that each becomes."""


def status_of(message: str, otherwise: str) -> str:
    """Return the status of a request that failed with this message: one of DROP_STATUSES, CONNECTION_LOST, or else
    `otherwise`."""
    found = next((drop for words, drop in DROP_STATUSES.items() if words in message), None)
    if found is None and otherwise == "UNAVAILABLE" and _BROKEN_CONNECTION.search(message):
        found = CONNECTION_LOST
    return found or otherwise


@dataclass(frozen=True)
class Summary:
    """Summary of one run; latency counts from the scheduled arrival."""

    issued: int
    offered_rps: float
    """Requests scheduled per second of the window, as drawn, which may differ from the requested rate."""
    failed: Mapping[str, int]
    """Number of requests without an answer, by status."""
    attainment: float
    """Fraction of issued requests answered within the SLO. A failure or a drop is a miss."""
    goodput_rps: float
    """Responses within the SLO per second of the window."""


@dataclass(frozen=True, eq=False)
class RunResult:
    """Requests of the measured window in the order of their schedule, as arrays of one length.

    Instants are nanoseconds from the start of the window; the last responses may come after its end.
    """

    window_ns: int
    began_ns: int
    """Start of the window on the machine's monotonic clock, which a Tidegate on it uses for its events."""
    scheduled_ns: NDArray[np.int64]
    """Instants at which requests were due."""
    issued_ns: NDArray[np.int64]
    """Instants at which requests were sent."""
    finished_ns: NDArray[np.int64]
    """Instants at which responses or failures arrived."""
    status: NDArray[np.str_]
    """Statuses: `OK`, one of DROP_STATUSES, the name of a gRPC status, or `CLIENT_TIMEOUT`."""
    messages: Mapping[str, str] = field(default_factory=dict)
    """First message of each status."""
    lateness_limit_ms: float = 5.0
    """Limit in ms of the 99th percentile of lateness; above it the generator fell behind."""
    streams: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Instant of the last response to each stream, whose `finished_ns` is the first, and their number, by request."""

    @property
    def ok(self) -> NDArray[np.bool_]:
        """Mask of the answered requests."""
        return np.equal(self.status, OK_STATUS)

    @property
    def latency_ns(self) -> NDArray[np.int64]:
        """Latency from the schedule, not from sending: a stalled generator must not hide the delay that it caused."""
        return self.finished_ns - self.scheduled_ns

    @property
    def lateness_ns(self) -> NDArray[np.int64]:
        """Delay of each request from scheduled to sent."""
        return self.issued_ns - self.scheduled_ns

    @property
    def not_measured(self) -> str:
        """Return why the run does not measure the server; "": it does."""
        if self.fell_behind:
            late_ms = float(np.percentile(self.lateness_ns, 99)) / NS_PER_MS
            return f"the load generator fell behind its schedule (p99 {late_ms:.1f} ms late)"
        lost = int(np.count_nonzero(np.isin(self.status, LOST_STATUSES)))
        if lost > MAX_LOST_FRACTION * len(self.status):
            return f"{lost:,} of {len(self.status):,} answers were lost"
        return ""

    @property
    def fell_behind(self) -> bool:
        """Whether the run measures the generator rather than the server."""
        return float(np.percentile(self.lateness_ns, 99)) > self.lateness_limit_ms * NS_PER_MS

    def summary(self, slo_ms: float) -> Summary:
        """Summarize the run with an SLO of `slo_ms` milliseconds after each scheduled arrival."""
        ok, window_s = self.ok, self.window_ns / NS_PER_S
        on_time = int(np.count_nonzero(ok & (self.latency_ns <= ms_to_ns(slo_ms))))
        names, counts = np.unique(self.status[~ok], return_counts=True)
        return Summary(
            issued=len(ok),
            offered_rps=len(ok) / window_s,
            failed=dict(zip(names.tolist(), counts.tolist(), strict=True)),
            attainment=on_time / len(ok),
            goodput_rps=on_time / window_s,
        )
