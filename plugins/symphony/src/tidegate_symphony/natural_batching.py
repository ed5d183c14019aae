"""Whether requests merge enough where no batch waits: while all workers are busy, a queue grows by itself."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from tidegate_symphony.latency_bounds import QueueOutlook

SPARE_FRACTION = 0.3
"""The share of the workers' time that has to be left: chance needs it. With 0.2 the goodput of InceptionResNetV2, with
0.05 that of ResNet50, too, was 3 to 8 % less, as batches started where waiting was due."""
BISECTION_STEPS = 12
"""The cycle is found to so many bits of the longest SLO."""


@dataclass(frozen=True, slots=True)
class ArrivalEstimate:
    """Arrival rate of one queue, and the latency bounds of its workers."""

    outlook: QueueOutlook
    rows_per_ns: float
    rows_per_request: float
    """The mean rows of a request; at least 1."""
    request_rows: int = field(init=False)
    """The smallest batch: of one request, in whole rows."""

    def __post_init__(self) -> None:
        """Round them once: they are asked for at every size that is tried."""
        rows = min(ceil(self.rows_per_request), self.outlook.profile.max_rows)
        object.__setattr__(self, "request_rows", rows)

    def asked_in_batches_of(self, rows: int) -> float:
        """Return the number of workers that are always busy with batches of `rows` rows."""
        return self.rows_per_ns * self.outlook.profile.expected_ns(rows) / rows

    def rows_in(self, cycle_ns: float) -> int:
        """Return the rows that arrive in a cycle: whole requests, at least one, at most an efficient batch."""
        return max(self.request_rows, min(self.outlook.most_rows, ceil(self.rows_per_ns * cycle_ns)))

    def asked_in_cycles_of(self, cycle_ns: float) -> float:
        """Return the number of workers that are always busy with the batches of a cycle."""
        return self.blocked_in_cycles_of(cycle_ns, 0)

    def blocked_in_cycles_of(self, cycle_ns: float, wait_ns: int) -> float:
        """Return the mean number of workers whose batch lasts longer than `wait_ns` from a random time on."""
        lasts_ns, per_ns = self.batches_in_cycles_of(cycle_ns)
        return per_ns * max(0, lasts_ns - wait_ns)

    def batches_in_cycles_of(self, cycle_ns: float) -> tuple[int, float]:
        """Return the latency of a cycle's batch in ns, and the batches that start per ns."""
        rows = self.rows_in(cycle_ns)
        filled = max(self.rows_per_request, min(rows, self.rows_per_ns * cycle_ns))
        return self.outlook.profile.expected_ns(rows), self.rows_per_ns / filled


def shortest_cycle_ns(kinds: Sequence[ArrivalEstimate], workers: int) -> float | None:
    """Return the shortest cycle with which the workers bear the load, each kind being served once in it.

    None where even the longest SLO is too short, or there is none.
    """
    cycle_ns = float(max((kind.outlook.slo_ns or 0 for kind in kinds if kind.rows_per_ns), default=0))
    borne = (1 - SPARE_FRACTION) * workers

    def is_borne(cycle_ns: float) -> bool:
        return sum(kind.asked_in_cycles_of(cycle_ns) for kind in kinds) <= borne

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


def merges_by_itself(kinds: Sequence[ArrivalEstimate], cycle_ns: float | None) -> bool:
    """Tell whether all are on time if every batch starts as soon as a worker is idle.

    Each kind is then served once per cycle (`shortest_cycle_ns`), in batches of what arrived meanwhile. Even who has
    waited for a whole one has to be on time by what may be promised.
    """
    return cycle_ns is not None and all(
        cycle_ns + kind.outlook.profile.upper_ns(kind.rows_in(cycle_ns)) <= kind.outlook.slo_ns
        for kind in kinds
        if kind.rows_per_ns and kind.outlook.slo_ns is not None
    )
