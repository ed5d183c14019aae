"""How large batches have to be for the workers to bear the load: waiting for larger ones buys nothing."""

from collections.abc import Iterable, Sequence
from math import inf, sqrt

from tidegate_symphony.eager_merging import merges_by_itself
from tidegate_symphony.kind_load import KindLoad
from tidegate_symphony.outlook import Outlook

ROOM = 0.3
"""N workers are loaded up to `N / (1 + ROOM / sqrt(N))`: so many of them have to be spare for chance (square-root
staffing, Halfin and Whitt 1981)."""
REFRESH_NS = 10_000_000
"""How long the sizes hold."""
LOADS_PER_REFRESH = 32
"""They hold so much longer for each such number of loads, as looking at them takes that much longer."""
ROWS_PER_REFRESH = 8
"""They hold until so many rows have arrived, too, but no more than `SELDOM` times as long: few say little of the load,
and each lone request would wait for the sizes to be looked at anew, which takes as long as all else that is decided."""
SELDOM = 10
WIDER = 4.0
"""The factor by which the multiplier is looked for outside of what is known."""
PRECISION = 1.1
"""The multiplier is found to so large a factor: batch sizes, which are whole, follow its square root."""
LEAST = 1.0
"""The least multiplier where batches of one do not bear the load. Bursts need the room that it leaves: without it up
to nine points of attainment were lost to them, and hardly anything was gained elsewhere."""


class BatchNeed:
    """The smallest batch sizes that carry the load of all kinds that share workers.

    If batches of one row do, or what merges where no batch waits (`merges_by_itself`), nobody needs more. Else batches
    of b rows let a kind's requests wait `b / 2` in sum per time, and take `rate * beta / b` of fixed costs: with mu as
    what workers' time is worth in waiting, the least of `b / 2 + mu * rate * beta / b` is at `b = sqrt(2 * mu * rate *
    beta)`. There is one mu for all kinds, the smallest with which the workers bear the load, and at least 1: where time
    is short, nobody's waiting is worth more than it.
    """

    def __init__(self, workers: int, loads: Iterable[KindLoad] = ()) -> None:
        """`workers`: how many the kinds share, at least 1; all count as if they were as fast as the fastest."""
        self.loads = list(loads)
        self._workers = workers
        self._capacity = workers / (1 + ROOM / sqrt(workers))
        self._multiplier = LEAST
        """Where the next search begins."""
        self._computed_ns: int | None = None
        self._arrived = 0
        """The rows that arrived since then."""

    def refresh(self, now_ns: int, rows: int) -> None:
        """Some rows arrived: say of each load what it needs, unless that was done a moment ago."""
        self._arrived += rows
        holds_ns = REFRESH_NS * (1 + len(self.loads) // LOADS_PER_REFRESH)
        if self._arrived < ROWS_PER_REFRESH:
            holds_ns *= SELDOM
        if self._computed_ns is not None and now_ns - self._computed_ns < holds_ns:
            return
        self._computed_ns, self._arrived = now_ns, 0
        known = [(load, load.outlook) for load in self.loads if load.outlook]
        rates = [(outlook, load.rate.rows_per_ns_at(now_ns)) for load, outlook in known]
        if self._bears(rates, 0.0) or merges_by_itself(rates, self._workers):
            multiplier = 0.0
        elif self._bears(rates, inf):
            multiplier = self._multiplier = self._smallest(rates)
        else:
            multiplier = inf
        for (load, _), (outlook, rate) in zip(known, rates, strict=True):
            load.needed_rows = inf if multiplier == inf else _rows(outlook, rate, multiplier)

    def _smallest(self, rates: Sequence[tuple[Outlook, float]]) -> float:
        """The smallest multiplier that the workers bear, or slightly more; 0 is too small, and some are not."""
        at = self._multiplier
        too_small, enough = 0.0, inf
        while enough > PRECISION * too_small and enough > LEAST:
            if self._bears(rates, at):
                enough = at
            else:
                too_small = at
            if enough == inf:
                at = WIDER * too_small
            elif too_small == 0:
                at = enough / WIDER
            else:
                at = sqrt(too_small * enough)
        return enough

    def _bears(self, rates: Iterable[tuple[Outlook, float]], multiplier: float) -> bool:
        """Whether the workers bear the load in batches of the sizes that follow from the multiplier."""
        asked = 0.0
        for outlook, rate in rates:
            rows = _rows(outlook, rate, multiplier)
            asked += rate * outlook.profile.expected_ns(rows) / rows
        return asked <= self._capacity


def _rows(outlook: Outlook, rate: float, multiplier: float) -> int:
    """The batch size of a kind, at least 1. `rate`: its rows per nanosecond."""
    if not outlook.fixed_cost_ns:
        return 1  # waiting spares nothing, as far as is known, however much the workers lack
    if multiplier == inf:
        return outlook.most_rows
    return max(1, int(min(outlook.most_rows, sqrt(2 * multiplier * rate * outlook.fixed_cost_ns))))
