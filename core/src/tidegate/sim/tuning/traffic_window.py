"""Window of traffic that a tuner looks at: requests that ended, with their outcomes; the fingerprint of a load."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance
from typing import Final

import msgspec

from tidegate.api import Request, Setup
from tidegate.engine import Engine
from tidegate.observation import EngineSettings
from tidegate.sim.recent_traffic import RecentTraffic

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


MIN_REQUESTS: Final = 200
ENOUGH_REQUESTS: Final = 2_000
"""More requests are simulated only if they arrive within `SLOS_OF_WINDOW` SLOs."""
MAX_REQUESTS: Final = 20_000
SLOS_OF_WINDOW: Final = 20
MAX_OPEN_NS: Final = 5_000_000_000
"""Requests that arrived after one that has not ended are left out, unless that waits longer than this."""


@dataclass(frozen=True)
class TrafficWindow:
    """The requests that arrived in an interval and ended, with everything else that a simulation needs."""

    now_ns: int
    since_ns: int
    until_ns: int
    requests: Sequence[Request]
    on_time: Sequence[bool]
    setup: Setup
    settings: EngineSettings
    factors: Sequence[float]
    """Ratios of actual to expected stage latency."""

    @property
    def attainment(self) -> float:
        """Fraction of the requests on time; 1 where there are none."""
        return sum(self.on_time) / len(self.on_time) if self.on_time else 1.0

    def since(self, since_ns: int) -> "TrafficWindow":
        """Return the part of this window from an instant on."""
        kept = [
            (request, on_time)
            for request, on_time in zip(self.requests, self.on_time, strict=True)
            if request.arrival_ns >= since_ns
        ]
        requests, on_time = [request for request, _ in kept], [on_time for _, on_time in kept]
        return TrafficWindow(
            self.now_ns, since_ns, self.until_ns, requests, on_time, self.setup, self.settings, self.factors
        )


def window_of(traffic: RecentTraffic, engine: Engine, since_ns: int, now_ns: int) -> TrafficWindow:
    """Return the window from `since_ns` to now: at most the latest requests that a comparison needs."""
    setup = engine.current_setup
    oldest_ns = min((request.arrival_ns for request in engine.reducer.open.values()), default=now_ns)
    until_ns = max(since_ns, oldest_ns, now_ns - MAX_OPEN_NS)
    ended = traffic.requests(since_ns, until_ns)
    slo_ns = max((model.slo_ns for model in setup.models if model.slo_ns is not None), default=0)
    in_slos = sum(request.arrival_ns >= until_ns - SLOS_OF_WINDOW * slo_ns for request, _ in ended)
    wanted = max(ENOUGH_REQUESTS, in_slos)
    if len(ended) > wanted or traffic.is_full:
        ended = ended[-wanted:]
        since_ns = ended[0][0].arrival_ns if ended else since_ns
    factors = traffic.factors(setup.profiles, setup.workers)
    return TrafficWindow(
        now_ns,
        since_ns,
        until_ns,
        [request for request, _ in ended],
        [on_time for _, on_time in ended],
        setup,
        engine.settings,
        [factor for of_key in factors.values() for factor in of_key],
    )
