"""Headroom for urgent requests: how many workers long batches leave to others.

A batch *blocks* a queue while it lasts longer than a request of that queue can wait: its SLO minus its stand-alone
latency.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, sqrt

from tidegate_symphony.natural_batching import ArrivalEstimate

MAX_BLOCKING_PROBABILITY = 0.0002
"""Maximum fraction of a queue's requests that find all workers blocked before others must leave room."""
SPARE_WORKERS_FACTOR = 0.3
"""Spare workers: a load of A gets `A + SPARE_WORKERS_FACTOR * sqrt(A)` workers, rounded up, and one more.

Without the extra worker three tiers of models lose three times as many requests on six workers.
"""
WAIT_SLO_FRACTION = 0.25
"""Fraction of the SLO whose arrivals form a batch that waits for room."""
OVERLOAD_FACTOR = 1.15
"""Overload: batches of the arrivals in each SLO need this many times the workers.

Waiting for a spare worker then only makes every batch late. Rates are estimates, so the factor is above 1.
"""


@dataclass(frozen=True, slots=True)
class WorkerHeadroom:
    """Number of workers that must be idle, or become idle in time, for requests that can wait this long."""

    wait_ns: int
    workers: int


def rooms_for(arrivals: Sequence[ArrivalEstimate], workers: int, cycle_ns: float | None) -> tuple[WorkerHeadroom, ...]:
    """Return the headroom for each queue whose requests would find all workers blocked too often, the least wait first.

    `arrivals`: estimate of the arrivals of each queue; `workers`: number of workers. Blocking follows Erlang's loss
    formula for batches of what arrives in `cycle_ns`; None: in the SLO of each. The headroom is what the load of that
    queue, and of more urgent ones, needs in batches of what arrives while it can wait: at most half of the workers, and
    no more than its blockers can spare. Overloaded workers leave no room: batches that wait for it would all start too
    late. With 20 and more queues that cost up to 17 percentage points of attainment.
    """
    bounded = [(arrival, arrival.outlook.slo_ns) for arrival in arrivals if arrival.outlook.slo_ns is not None]
    if (
        cycle_ns is None
        and sum(arrival.asked_in_cycles_of(slo_ns) for arrival, slo_ns in bounded) > OVERLOAD_FACTOR * workers
    ):
        return ()
    judged = [(arrival, slo_ns) for arrival, slo_ns in bounded if arrival.rows_per_ns]
    waits = sorted(
        ((slo_ns - arrival.outlook.profile.upper_ns(arrival.request_rows), arrival) for arrival, slo_ns in judged),
        key=lambda entry: entry[0],
    )
    unbounded = [arrival for arrival in arrivals if arrival.outlook.slo_ns is None]
    merged = _Lasting(arrival.batches_in_cycles_of(cycle_ns or slo_ns) for arrival, slo_ns in bounded)
    grown = _Lasting(
        (_alone_ns(arrival), arrival.asked_in_cycles_of(WAIT_SLO_FRACTION * slo_ns)) for arrival, slo_ns in bounded
    )
    rooms: list[WorkerHeadroom] = []
    asked = 0.0
    for wait_ns, arrival in waits:
        if wait_ns <= 0:
            continue
        asked += arrival.asked_in_cycles_of(wait_ns)
        own_ns = arrival.outlook.slo_ns or wait_ns
        blocked = merged.excess(wait_ns) - arrival.blocked_in_cycles_of(cycle_ns or own_ns, wait_ns)
        blocked += sum(each.blocked_in_cycles_of(cycle_ns or wait_ns, wait_ns) for each in unbounded)
        if _lost(workers, blocked) <= MAX_BLOCKING_PROBABILITY:
            continue
        blocking = grown.weight(wait_ns)
        if _alone_ns(arrival) > wait_ns:
            blocking -= arrival.asked_in_cycles_of(WAIT_SLO_FRACTION * own_ns)
        blocking += sum(
            each.asked_in_cycles_of(WAIT_SLO_FRACTION * wait_ns) for each in unbounded if _alone_ns(each) > wait_ns
        )
        most = min(workers // 2, max(1, round(workers - blocking)))
        rooms.append(WorkerHeadroom(wait_ns, min(ceil(asked + SPARE_WORKERS_FACTOR * sqrt(asked)) + 1, most)))
    return tuple(rooms)


class _Lasting:
    """Sums over the queues whose batches last longer than a given time, each in logarithmic time."""

    def __init__(self, batches: Iterable[tuple[int, float]]) -> None:
        """`batches`: duration of a batch of each queue, in ns, and its weight in a sum."""
        longest_first = sorted(batches, reverse=True)
        self._lasts_ns = [lasts_ns for lasts_ns, _ in reversed(longest_first)]
        self._weights = [*accumulate((weight for _, weight in longest_first), initial=0.0)]
        self._weighted_ns = [*accumulate((lasts_ns * weight for lasts_ns, weight in longest_first), initial=0.0)]

    def weight(self, wait_ns: int) -> float:
        """Return the sum of the weights of batches that last longer than `wait_ns`."""
        return self._weights[self._longer(wait_ns)]

    def excess(self, wait_ns: int) -> float:
        """Return the weighted sum of the times, in ns, by which batches last longer than `wait_ns`."""
        longer = self._longer(wait_ns)
        return self._weighted_ns[longer] - wait_ns * self._weights[longer]

    def _longer(self, wait_ns: int) -> int:
        return len(self._lasts_ns) - bisect_right(self._lasts_ns, wait_ns)


def _alone_ns(arrival: ArrivalEstimate) -> int:
    """How long a batch of a single request lasts."""
    return arrival.outlook.profile.expected_ns(arrival.request_rows)


def _lost(workers: int, offered: float) -> float:
    """Return the fraction of arrivals that find all of this many workers busy (Erlang B)."""
    lost = 1.0
    for number in range(1, workers + 1):
        lost = offered * lost / (number + offered * lost)
    return lost
