"""Simulation of one model's requests on its slices under ELSA: the rate that they sustain."""

from collections.abc import Mapping, Sequence
from heapq import heapreplace
from itertools import accumulate
from random import Random

from tidegate_paris_elsa.problem import MigModel
from tidegate_paris_elsa.slices import SliceSpeed

LATE_FRACTION = 0.05
"""Fraction of requests that may be late or dropped, as for the paper's 95th percentile."""
RATE_PRECISION = 0.01
"""Relative precision of the sustained rate."""
MAX_SIMULATED_SLICES = 300
"""Number of slices from which a layout is simulated in proportion."""


class SliceSimulation:
    """Random requests of one model, the same for all slices that are compared."""

    def __init__(self, model: MigModel, speeds: Sequence[SliceSpeed], requests: int, seed: int) -> None:
        """Draw the requests.

        `model`: it has an SLO. `speeds`: latencies by kind of slice, slowest first. `requests`: their number; `seed`:
        of sizes and arrivals.
        """
        assert model.slo_ms is not None, "without one nothing is late"
        rng = Random(seed)
        rows = rng.choices(list(model.shares), list(model.shares.values()), k=requests)
        self._slo_s = model.slo_ms / 1000
        self._arrivals = list(accumulate(rng.expovariate(1.0) for _ in range(requests)))
        """Arrivals at one request per second."""
        self._kinds = [speed.kind for speed in speeds]
        tables = [_rising_s(speed, sorted(model.shares)) for speed in speeds]
        self._works_s = [[table[each] for table in tables] for each in rows]
        """Latency of each request in seconds, by position of the kind."""
        self._mean_s = [sum(works) / requests for works in zip(*self._works_s, strict=True)]

    def sustained_rps(self, slices: Mapping[int, int]) -> float:
        """Return the highest rate at which at most `LATE_FRACTION` of the requests are late or dropped.

        `slices`: number by kind of slice.
        """
        total = sum(slices.values())
        scale = min(1.0, MAX_SIMULATED_SLICES / total)
        counts = [max(1, round(scale * slices[kind])) if slices.get(kind) else 0 for kind in self._kinds]
        scale = sum(counts) / total
        low_rps, high_rps = 0.0, 2 * sum(count / mean_s for count, mean_s in zip(counts, self._mean_s, strict=True))
        while high_rps - low_rps > RATE_PRECISION * high_rps:
            rate_rps = (low_rps + high_rps) / 2
            if self._late_fraction(counts, rate_rps) <= LATE_FRACTION:
                low_rps = rate_rps
            else:
                high_rps = rate_rps
        return low_rps / scale

    def _late_fraction(self, counts: Sequence[int], rate_rps: float) -> float:
        """ELSA: the smallest slice on which a request is on time, else none."""
        pools = [(place, [0.0] * count) for place, count in enumerate(counts) if count]
        slo_s, late, most = self._slo_s, 0, LATE_FRACTION * len(self._arrivals)
        for arrival, works_s in zip(self._arrivals, self._works_s, strict=True):
            now_s = arrival / rate_rps
            for place, free_s in pools:
                ends_s = max(now_s, free_s[0]) + works_s[place]
                if ends_s <= now_s + slo_s:
                    heapreplace(free_s, ends_s)
                    break
            else:
                late += 1
                if late > most:
                    break
        return late / len(self._arrivals)


def _rising_s(speed: SliceSpeed, sizes: Sequence[int]) -> dict[int, float]:
    """Latency in seconds by rows; more rows never take less."""
    return dict(zip(sizes, accumulate((speed.latency_ms(rows) / 1000 for rows in sizes), max), strict=True))
