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


def rooms_for(kinds: Sequence[ArrivalEstimate], workers: int, cycle_ns: float | None) -> tuple[WorkerHeadroom, ...]:
    """Return the headroom for each queue whose requests would find all workers blocked too often, the least wait first.

    `kinds`: arrivals of each queue; `workers`: number of workers. Blocking follows Erlang's loss formula for batches of
    what arrives in `cycle_ns`; None: in the SLO of each. The headroom is what the load of that queue, and of more
    urgent ones, needs in batches of what arrives while it can wait: at most half of the workers, and no more than its
    blockers can spare. Overloaded workers leave no room: batches that wait for it would all start too late. With 20 and
    more queues that cost up to 17 percentage points of attainment.
    """
    bounded = [(kind, kind.outlook.slo_ns) for kind in kinds if kind.outlook.slo_ns is not None]
    if (
        cycle_ns is None
        and sum(kind.asked_in_cycles_of(slo_ns) for kind, slo_ns in bounded) > OVERLOAD_FACTOR * workers
    ):
        return ()
    judged = [(kind, slo_ns) for kind, slo_ns in bounded if kind.rows_per_ns]
    waits = sorted(
        ((slo_ns - kind.outlook.profile.upper_ns(kind.request_rows), kind) for kind, slo_ns in judged),
        key=lambda entry: entry[0],
    )
    unbounded = [kind for kind in kinds if kind.outlook.slo_ns is None]
    merged = _Lasting(kind.batches_in_cycles_of(cycle_ns or slo_ns) for kind, slo_ns in bounded)
    grown = _Lasting((_alone_ns(kind), kind.asked_in_cycles_of(WAIT_SLO_FRACTION * slo_ns)) for kind, slo_ns in bounded)
    rooms: list[WorkerHeadroom] = []
    asked = 0.0
    for wait_ns, kind in waits:
        if wait_ns <= 0:
            continue
        asked += kind.asked_in_cycles_of(wait_ns)
        own_ns = kind.outlook.slo_ns or wait_ns
        blocked = merged.excess(wait_ns) - kind.blocked_in_cycles_of(cycle_ns or own_ns, wait_ns)
        blocked += sum(each.blocked_in_cycles_of(cycle_ns or wait_ns, wait_ns) for each in unbounded)
        if _lost(workers, blocked) <= MAX_BLOCKING_PROBABILITY:
            continue
        blocking = grown.weight(wait_ns)
        if _alone_ns(kind) > wait_ns:
            blocking -= kind.asked_in_cycles_of(WAIT_SLO_FRACTION * own_ns)
        blocking += sum(
            each.asked_in_cycles_of(WAIT_SLO_FRACTION * wait_ns) for each in unbounded if _alone_ns(each) > wait_ns
        )
        most = min(workers // 2, max(1, round(workers - blocking)))
        rooms.append(WorkerHeadroom(wait_ns, min(ceil(asked + SPARE_WORKERS_FACTOR * sqrt(asked)) + 1, most)))
    return tuple(rooms)


class _Lasting:
    """Sums over those of many kinds whose batches last longer than a given time, each in logarithmic time."""

    def __init__(self, batches: Iterable[tuple[int, float]]) -> None:
        """`batches`: of each kind, how long its batch lasts, in ns, and the weight that it has in a sum."""
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


def _alone_ns(kind: ArrivalEstimate) -> int:
    """How long a batch of a single request lasts."""
    return kind.outlook.profile.expected_ns(kind.request_rows)


def _lost(workers: int, offered: float) -> float:
    """The share of arrivals that find all of so many workers busy (Erlang B)."""
    lost = 1.0
    for number in range(1, workers + 1):
        lost = offered * lost / (number + offered * lost)
    return lost
