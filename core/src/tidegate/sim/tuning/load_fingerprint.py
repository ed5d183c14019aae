"""Fingerprint of a load: rate, mix of models, rows and burstiness, by which a load that returns is recognized."""

from collections import Counter
from collections.abc import Sequence
from math import sqrt
from statistics import fmean, variance

import msgspec

from tidegate.api import Request

NS_PER_S = 1_000_000_000
ARRIVAL_BINS = 40
"""Number of intervals in which arrivals are counted."""
MAX_RATE_DRIFT = 0.2
"""Relative difference of rates up to which two loads are alike, beyond chance."""
MAX_SHARE_DRIFT = 0.15
"""Sum of the differences of the models' shares up to which two loads are alike, beyond chance."""
MAX_ROWS_RATIO = 1.3
MAX_BURSTINESS_RATIO = 3.0
CHANCE_DEVIATIONS = 3.0
"""Standard deviations that chance explains."""


class LoadFingerprint(msgspec.Struct, frozen=True):
    """Statistics that characterize the load of a window of traffic."""

    workers: tuple[int, ...]
    """Ids of the current workers."""
    rate_rps: float
    rate_error_rps: float
    """Standard deviation of the rate."""
    shares: dict[str, float]
    """Share of the requests by model."""
    rows: float
    """Mean rows of a request."""
    burstiness: float
    """Index of dispersion of the arrivals: 1 where they are independent, more where they come in bursts."""

    def is_like(self, other: "LoadFingerprint") -> bool:
        """Whether both are the same load, within chance."""
        if self.workers != other.workers:
            return False
        chance_rps = CHANCE_DEVIATIONS * sqrt(self.rate_error_rps**2 + other.rate_error_rps**2)
        higher = max(self.rate_rps, other.rate_rps)
        if abs(self.rate_rps - other.rate_rps) > max(MAX_RATE_DRIFT * higher, chance_rps):
            return False
        names = self.shares.keys() | other.shares.keys()
        drift = sum(abs(self.shares.get(name, 0.0) - other.shares.get(name, 0.0)) for name in names)
        if drift > MAX_SHARE_DRIFT + chance_rps / higher:
            return False
        rows, bursts = sorted((self.rows, other.rows)), sorted((self.burstiness, other.burstiness))
        return rows[1] <= MAX_ROWS_RATIO * rows[0] and bursts[1] <= MAX_BURSTINESS_RATIO * max(1.0, bursts[0])


def fingerprint_of(
    requests: Sequence[Request], since_ns: int, until_ns: int, workers: tuple[int, ...]
) -> LoadFingerprint:
    """Return the fingerprint of requests that arrived in an interval.

    Args:
        requests: at least one request.
        since_ns: start of the interval.
        until_ns: its end.
        workers: ids of the current workers.
    """
    length_ns = max(1, until_ns - since_ns)
    counts = [0] * ARRIVAL_BINS
    for request in requests:
        counts[min(ARRIVAL_BINS - 1, (request.arrival_ns - since_ns) * ARRIVAL_BINS // length_ns)] += 1
    seconds = length_ns / NS_PER_S
    models = Counter(request.model for request in requests)
    return LoadFingerprint(
        workers,
        len(requests) / seconds,
        sqrt(ARRIVAL_BINS * variance(counts)) / seconds,
        {name: count / len(requests) for name, count in models.items()},
        fmean(request.rows for request in requests),
        variance(counts) / fmean(counts),
    )
