"""What a run measured: one row per request, and the summary that people read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tidegate.api import NS_PER_MS, ms_to_ns
from tidegate.workload.arrivals import NS_PER_S

OK_STATUS = "OK"
"""The status of an answered request; others are gRPC's names for its failures, CLIENT_TIMEOUT, and DROPS."""
CLIENT_TIMEOUT = "CLIENT_TIMEOUT"
"""Nothing came back for as long as the client was ready to wait."""
DROP_STATUSES = {"Request timeout expired": "timeout", "Exceeds maximum queue size": "queue full"}
"""The words with which a scheduler, Triton's or Tidegate's, gives a request up, and the status that they become."""


def status_of(message: str, otherwise: str) -> str:
    """The status of a request that was refused with this message: one of DROPS, or what else is known of it."""
    return next((drop for words, drop in DROP_STATUSES.items() if words in message), otherwise)


@dataclass(frozen=True)
class Summary:
    """One run in numbers. Latency counts from the scheduled arrival; None: nothing was answered."""

    slo_ms: float
    window_s: float
    """Length of the measured window: the span of the scheduled arrivals."""
    issued: int
    offered_rps: float
    """Requests scheduled per second of the window: what was really drawn, not the rate that was asked for."""
    completed: int
    """Answered, in time or late."""
    failed: Mapping[str, int]
    """Not answered, by status."""
    attainment: float
    """Answered within the SLO / issued. A failure or a drop is a miss."""
    throughput_rps: float
    """Answers that came before the window closed, per second."""
    goodput_rps: float
    """Answers within the SLO per second of the window."""
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    lateness_p50_ms: float
    """How much later than scheduled the generator itself issued its requests."""
    lateness_p99_ms: float
    fell_behind: bool
    """The generator was too late too often: the run says more about the client than about the server."""


@dataclass(frozen=True, eq=False)
class RunResult:
    """The requests of the measured window in the order of their schedule, as arrays of one length.

    Instants are nanoseconds from the start of the window; the answers of the last requests may come after its end.
    """

    window_ns: int
    began_ns: int
    """When the window began, on the machine's monotonic clock, by which a Tidegate on it records its events."""
    scheduled_ns: NDArray[np.int64]
    """When the request should have been sent."""
    issued_ns: NDArray[np.int64]
    """When it was sent."""
    finished_ns: NDArray[np.int64]
    """When its answer, or its failure, was back."""
    status: NDArray[np.str_]
    """`OK_STATUS`, one of DROPS, the name of a gRPC status, or `CLIENT_TIMEOUT`."""
    messages: Mapping[str, str] = field(default_factory=dict)
    """The first message that came with each status, to tell a person what went wrong."""
    lateness_limit_ms: float = 5.0
    """The 99th percentile of lateness above which the generator fell behind."""

    @property
    def ok(self) -> NDArray[np.bool_]:
        """Which requests were answered."""
        return np.equal(self.status, OK_STATUS)

    @property
    def latency_ns(self) -> NDArray[np.int64]:
        """From the schedule, not from the sending: a stalled generator must not hide the wait that it caused."""
        return self.finished_ns - self.scheduled_ns

    @property
    def lateness_ns(self) -> NDArray[np.int64]:
        """How much later than scheduled each request was sent."""
        return self.issued_ns - self.scheduled_ns

    @property
    def fell_behind(self) -> bool:
        """Whether the generator, rather than the server, is what this run measured."""
        return float(np.percentile(self.lateness_ns, 99)) > self.lateness_limit_ms * NS_PER_MS

    def summary(self, slo_ms: float) -> Summary:
        """Judge the run by a deadline of `slo_ms` milliseconds after each scheduled arrival."""
        ok = self.ok
        window_s = self.window_ns / NS_PER_S
        on_time = int(np.count_nonzero(ok & (self.latency_ns <= ms_to_ns(slo_ms))))
        names, counts = np.unique(self.status[~ok], return_counts=True)
        latencies_ms = self.latency_ns[ok] / NS_PER_MS
        p50_ms, p95_ms, p99_ms = np.percentile(latencies_ms, [50, 95, 99]).tolist() if ok.any() else (None, None, None)
        lateness_p50_ms, lateness_p99_ms = (np.percentile(self.lateness_ns, [50, 99]) / NS_PER_MS).tolist()
        return Summary(
            slo_ms=slo_ms,
            window_s=window_s,
            issued=len(ok),
            offered_rps=len(ok) / window_s,
            completed=int(np.count_nonzero(ok)),
            failed=dict(zip(names.tolist(), counts.tolist(), strict=True)),
            attainment=on_time / len(ok),
            throughput_rps=int(np.count_nonzero(ok & (self.finished_ns <= self.window_ns))) / window_s,
            goodput_rps=on_time / window_s,
            p50_ms=p50_ms,
            p95_ms=p95_ms,
            p99_ms=p99_ms,
            lateness_p50_ms=lateness_p50_ms,
            lateness_p99_ms=lateness_p99_ms,
            fell_behind=self.fell_behind,
        )
