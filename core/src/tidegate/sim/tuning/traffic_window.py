"""Window of traffic that a tuner looks at: requests that ended, their outcomes, and input to simulate them again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.api import Request, Setup
from tidegate.engine import Engine
from tidegate.observation import EngineSettings
from tidegate.sim.recent_traffic import RecentTraffic

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
