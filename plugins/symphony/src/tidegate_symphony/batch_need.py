"""How large batches have to be for the workers to bear the load: waiting for larger ones buys nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, sqrt

from tidegate.api import Profile
from tidegate.toolkit import ArrivalRate

ROOM = 0.3
"""N workers are loaded up to `N / (1 + ROOM / sqrt(N))`: so many of them have to be spare for chance (square-root
staffing, Halfin and Whitt 1981)."""
REFRESH_NS = 10_000_000
"""How long the sizes hold."""
LOADS_PER_REFRESH = 32
"""They hold so much longer for each such number of loads, as looking at them takes that much longer."""
WIDER = 4.0
"""By what factor the multiplier is looked for outside of what is known."""
PRECISION = 1.1


@dataclass(slots=True)
class KindLoad:
    """What arrives of one kind, and what that costs."""

    rate: ArrivalRate
    profile: Profile
    fixed_cost_ns: float
    """What a batch costs besides its rows: beta."""
    most_rows: int
    """The largest batch that is worth forming."""
    needed_rows: float = 1.0
    """The size that its batches need; inf: no size carries the load."""


class BatchNeed:
    """The smallest batch sizes that carry the load of all kinds that share workers.

    If batches of one row do, nobody needs more. Else what waiting costs grows with `rows / rate`, and what it spares
    with `rate * beta / rows`: they balance at `sqrt(2 * mu * rate * beta)`, with one multiplier mu for all kinds, the
    smallest that the workers can bear.
    """

    def __init__(self, workers: int) -> None:
        """`workers`: how many the kinds share, at least 1; all count as if they were as fast as the fastest."""
        self.loads: list[KindLoad] = []
        self._capacity = workers / (1 + ROOM / sqrt(workers))
        self._multiplier_ns = 1.0
        """Where the next search begins."""
        self._computed_ns: int | None = None

    def refresh(self, now_ns: int) -> None:
        """Say of each load what it needs, unless that was done a moment ago."""
        holds_ns = REFRESH_NS * (1 + len(self.loads) // LOADS_PER_REFRESH)
        if self._computed_ns is not None and now_ns - self._computed_ns < holds_ns:
            return
        self._computed_ns = now_ns
        rates = [(load, load.rate.rows_per_ns_at(now_ns)) for load in self.loads]
        if self._bears(rates, 0.0):
            multiplier_ns = 0.0
        elif self._bears(rates, inf):
            multiplier_ns = self._multiplier_ns = self._smallest(rates)
        else:
            multiplier_ns = inf
        for load, rate in rates:
            load.needed_rows = inf if multiplier_ns == inf else _rows(load, rate, multiplier_ns)

    def _smallest(self, rates: Sequence[tuple[KindLoad, float]]) -> float:
        """The smallest multiplier that the workers bear, or slightly more; 0 is too small, and some are not."""
        at_ns = self._multiplier_ns
        too_small_ns, enough_ns = 0.0, inf
        while enough_ns > PRECISION * too_small_ns and enough_ns > 1.0:
            if self._bears(rates, at_ns):
                enough_ns = at_ns
            else:
                too_small_ns = at_ns
            if enough_ns == inf:
                at_ns = WIDER * too_small_ns
            elif too_small_ns == 0:
                at_ns = enough_ns / WIDER
            else:
                at_ns = sqrt(too_small_ns * enough_ns)
        return enough_ns

    def _bears(self, rates: Iterable[tuple[KindLoad, float]], multiplier_ns: float) -> bool:
        """Whether the workers bear the load in batches of the sizes that follow from the multiplier."""
        asked = 0.0
        for load, rate in rates:
            rows = _rows(load, rate, multiplier_ns)
            asked += rate * load.profile.expected_ns(rows) / rows
        return asked <= self._capacity


def _rows(load: KindLoad, rate: float, multiplier_ns: float) -> int:
    """The batch size of a load, at least 1. `rate`: its rows per nanosecond."""
    if multiplier_ns == inf:
        return load.most_rows
    return max(1, min(load.most_rows, int(sqrt(2 * multiplier_ns * rate * load.fixed_cost_ns))))
