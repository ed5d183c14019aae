"""Natural batching: whether requests form large enough batches without waiting, because queues grow while workers are
busy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from tidegate_symphony.latency_bounds import QueueOutlook

SPARE_FRACTION = 0.3
"""Minimum idle fraction of workers for natural batching, against fluctuations.

With 0.2 the goodput of InceptionResNetV2, with 0.05 also that of ResNet50, was 3 to 8 % lower.
"""
BISECTION_STEPS = 12
"""Number of bisection steps for the cycle, from the longest SLO."""


@dataclass(frozen=True, slots=True)
class ArrivalEstimate:
    """Arrival rate of one queue, and the latency bounds of its workers."""

    outlook: QueueOutlook
    rows_per_ns: float
    rows_per_request: float
    """Mean rows of a request; at least 1."""
    request_rows: int = field(init=False)
    """Rows of the smallest batch: one request, rounded up."""

    def __post_init__(self) -> None:
        """Round them once: they are asked for at every size that is tried."""
        rows = min(ceil(self.rows_per_request), self.outlook.profile.max_rows)
        object.__setattr__(self, "request_rows", rows)

    def asked_in_batches_of(self, rows: int) -> float:
        """Return the number of workers that are always busy with batches of `rows` rows."""
        return self.rows_per_ns * self.outlook.profile.expected_ns(rows) / rows

    def rows_in(self, cycle_ns: float) -> int:
        """Return the rows that arrive in a cycle of `cycle_ns`: whole requests, at least one, at most an efficient
        batch.
        """
        return max(self.request_rows, min(self.outlook.most_rows, ceil(self.rows_per_ns * cycle_ns)))

    def asked_in_cycles_of(self, cycle_ns: float) -> float:
        """Return the mean number of workers that are busy with the batches of a cycle of `cycle_ns`."""
        return self.blocked_in_cycles_of(cycle_ns, 0)

    def blocked_in_cycles_of(self, cycle_ns: float, wait_ns: int) -> float:
        """Return the mean number of workers whose batch lasts longer than `wait_ns` from a random time on.

        `cycle_ns`: length of a cycle in ns.
        """
        lasts_ns, per_ns = self.batches_in_cycles_of(cycle_ns)
        return per_ns * max(0, lasts_ns - wait_ns)

    def batches_in_cycles_of(self, cycle_ns: float) -> tuple[int, float]:
        """Return the latency of a cycle's batch in ns, and the batches that start per ns; `cycle_ns`: length of a
        cycle.
        """
        rows = self.rows_in(cycle_ns)
        filled = max(self.rows_per_request, min(rows, self.rows_per_ns * cycle_ns))
        return self.outlook.profile.expected_ns(rows), self.rows_per_ns / filled


def shortest_cycle_ns(arrivals: Sequence[ArrivalEstimate], workers: int) -> float | None:
    """Return the shortest cycle in ns with which the workers sustain the load, each queue being served once in it.

    None if even the longest SLO is too short, or there is none. `arrivals`: estimate of the arrivals of each queue.
    """
    cycle_ns = float(max((arrival.outlook.slo_ns or 0 for arrival in arrivals if arrival.rows_per_ns), default=0))
    sustained = (1 - SPARE_FRACTION) * workers

    def is_borne(cycle_ns: float) -> bool:
        return sum(arrival.asked_in_cycles_of(cycle_ns) for arrival in arrivals) <= sustained

    if not cycle_ns or not is_borne(cycle_ns):
        return None
    shortest_ns = 0.0
    for _ in range(BISECTION_STEPS):
        middle_ns = (shortest_ns + cycle_ns) / 2
        if is_borne(middle_ns):
            cycle_ns = middle_ns
        else:
            shortest_ns = middle_ns
    return cycle_ns


def merges_by_itself(arrivals: Sequence[ArrivalEstimate], cycle_ns: float | None) -> bool:
    """Return whether all requests are on time if every batch starts as soon as a worker is idle.

    Each queue is then served once per cycle (`shortest_cycle_ns`), in batches of the requests that arrived meanwhile. A
    request that waited for a whole cycle must be on time by the upper latency.
    """
    return cycle_ns is not None and all(
        cycle_ns + arrival.outlook.profile.upper_ns(arrival.rows_in(cycle_ns)) <= arrival.outlook.slo_ns
        for arrival in arrivals
        if arrival.rows_per_ns and arrival.outlook.slo_ns is not None
    )
