"""Required batch size: how large batches must be for the workers to sustain the load; larger ones are not worth
waiting.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import Self

from tidegate.toolkit import ArrivalRate, BatchTarget
from tidegate_symphony.applications import SimilarRequests
from tidegate_symphony.latency_bounds import QueueOutlook
from tidegate_symphony.natural_batching import ArrivalEstimate, merges_by_itself, shortest_cycle_ns
from tidegate_symphony.worker_headroom import WorkerHeadroom, rooms_for

MAX_KEYS = 64
"""Maximum number of merge keys with known rates, the latest ones; for others no arrivals are expected."""


@dataclass(slots=True)
class QueueLoad:
    """Arrivals of one queue (model and shape), and their cost."""

    rate: ArrivalRate
    target: BatchTarget
    """Target batch size at this rate."""
    outlook: QueueOutlook | None = None
    """Latency outlook; None: no worker hosts the model, or it was not needed since a change of workers or profiles."""
    needed_rows: float = 1.0
    """Rows that its batches need; infinite if no size sustains the load."""
    rates_of_keys: OrderedDict[str, ArrivalRate] = field(default_factory=OrderedDict)
    """Rates by merge key, that of the latest request last; requests with other keys join no batch."""
    alike: tuple[SimilarRequests, ...] = ()
    """Groups of its requests by latency, the last one all; computed together with the outlook."""

    @classmethod
    def of(cls, rate: ArrivalRate, *, needed_rows: float = 1.0) -> Self:
        """Create the load of a queue with a given rate; its latency outlook is computed later.

        `needed_rows`: initial batch size.
        """
        return cls(rate, BatchTarget(rate), needed_rows=needed_rows)

    def rate_of_key(self, merge_key: str, now_ns: int) -> ArrivalRate:
        """Return the rate of a merge key at the arrival of a request; only few are kept, because clients choose
        keys.
        """
        rates = self.rates_of_keys
        rate = rates.get(merge_key)
        if rate is None:
            if len(rates) == MAX_KEYS:
                rates.popitem(last=False)
            rate = rates[merge_key] = ArrivalRate(now_ns)
        else:
            rates.move_to_end(merge_key)
        return rate

    def forget_plans(self) -> None:
        """Discard the target after a change of workers or profiles."""
        self.outlook, self.alike = None, ()
        self.target.forget()


SPARE_WORKERS_FACTOR = 0.3
"""Spare workers for fluctuations: N workers are loaded up to `N / (1 + SPARE_WORKERS_FACTOR / sqrt(N))`.

This is square-root staffing (Halfin and Whitt 1981).
"""
REFRESH_NS = 10_000_000
"""Time in ns for which the sizes are reused."""
LOADS_PER_REFRESH = 32
"""Number of loads for each of which the sizes are reused that much longer, because computing them takes longer."""
ROWS_PER_REFRESH = 8
"""Rows that must arrive before the sizes are computed again, within `MIN_ARRIVALS_FOR_BATCHING` times the usual period.

Few arrivals say little about the load, and computing the sizes takes as long as all other decisions for a request.
"""
MIN_ARRIVALS_FOR_BATCHING = 10
SEARCH_WIDENING_FACTOR = 4.0
"""Factor by which the search for the multiplier goes beyond the known range."""
MULTIPLIER_PRECISION = 1.1
"""Relative precision of the multiplier: batch sizes, which are whole, grow with its square root."""
MIN_MULTIPLIER = 1.0
"""Minimum multiplier if batches of one row do not sustain the load.

Bursts need this spare capacity: without it up to nine points of attainment were lost.
"""


class RequiredBatchSize:
    """Smallest batch sizes with which the workers that several queues share sustain their load.

    If batches of one request suffice, or natural batching (`merges_by_itself`), no queue needs more. Otherwise batches
    of b rows, in requests of g rows each, let `b / 2g` requests of a queue wait on average and take `rate * beta / b`
    of fixed cost. With mu as the value of workers' time in waiting, `b / 2g + mu * rate * beta / b` is smallest at `b =
    sqrt(2 * mu * g * rate * beta)`. There is one mu for all queues, the smallest with which the workers sustain the
    load, at least 1.
    """

    def __init__(self, workers: int, loads: Iterable[QueueLoad] = ()) -> None:
        """Create the sizes of some loads.

        `workers`: number of workers that they share, at least 1; all count as fast as the fastest.
        """
        self.loads = list(loads)
        self._workers = workers
        self.rooms: tuple[WorkerHeadroom, ...] = ()
        """Headroom that long batches leave to other requests."""
        self._capacity = workers / (1 + SPARE_WORKERS_FACTOR / sqrt(workers))
        self._multiplier = MIN_MULTIPLIER
        """Where the next search begins."""
        self._computed_ns: int | None = None
        self._arrived = 0
        """The rows that arrived since then."""

    def refresh(self, now_ns: int, rows: int) -> None:
        """Compute the required batch size of each load again, unless that was done recently. `rows`: arrived rows."""
        self._arrived += rows
        holds_ns = REFRESH_NS * (1 + len(self.loads) // LOADS_PER_REFRESH)
        if self._arrived < ROWS_PER_REFRESH:
            holds_ns *= MIN_ARRIVALS_FOR_BATCHING
        if self._computed_ns is not None and now_ns - self._computed_ns < holds_ns:
            return
        self._computed_ns, self._arrived = now_ns, 0
        known = [(load, load.outlook) for load in self.loads if load.outlook]
        rates = [
            ArrivalEstimate(outlook, load.rate.rows_per_ns_at(now_ns), load.rate.rows_per_request)
            for load, outlook in known
        ]
        cycle_ns = shortest_cycle_ns(rates, self._workers)
        self.rooms = rooms_for(rates, self._workers, cycle_ns) if len(rates) > 1 else ()
        if self._bears(rates, 0.0) or merges_by_itself(rates, cycle_ns):
            multiplier = 0.0
        elif self._bears(rates, inf):
            multiplier = self._multiplier = self._smallest(rates)
        else:
            multiplier = inf
        for (load, _), arriving in zip(known, rates, strict=True):
            rows = _rows(arriving, multiplier)
            load.needed_rows = inf if multiplier == inf else rows if rows > arriving.request_rows else 1

    def _smallest(self, rates: Sequence[ArrivalEstimate]) -> float:
        """The smallest multiplier that the workers bear, or slightly more; 0 is too small, and some are not."""
        at = self._multiplier
        too_small, enough = 0.0, inf
        while enough > MULTIPLIER_PRECISION * too_small and enough > MIN_MULTIPLIER:
            if self._bears(rates, at):
                enough = at
            else:
                too_small = at
            if enough == inf:
                at = SEARCH_WIDENING_FACTOR * too_small
            elif too_small == 0:
                at = enough / SEARCH_WIDENING_FACTOR
            else:
                at = sqrt(too_small * enough)
        return enough

    def _bears(self, rates: Iterable[ArrivalEstimate], multiplier: float) -> bool:
        """Whether the workers bear the load in batches of the sizes that follow from the multiplier."""
        asked = 0.0
        for arriving in rates:
            asked += arriving.asked_in_batches_of(_rows(arriving, multiplier))
        return asked <= self._capacity


def _rows(arriving: ArrivalEstimate, multiplier: float) -> int:
    outlook = arriving.outlook
    if not outlook.fixed_cost_ns:
        return arriving.request_rows  # waiting spares nothing, as far as is known, however much the workers lack
    if multiplier == inf:
        return outlook.most_rows
    balanced = sqrt(2 * multiplier * arriving.rows_per_request * arriving.rows_per_ns * outlook.fixed_cost_ns)
    return max(arriving.request_rows, int(min(outlook.most_rows, balanced)))
