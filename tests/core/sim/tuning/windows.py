"""Windows of traffic for tests."""

from collections.abc import Sequence

from tidegate.api import NS_PER_MS, Model, Profile, Request, Setup, Worker
from tidegate.observation import EngineSettings
from tidegate.sim.tuning.traffic_window import TrafficWindow

S = 1_000_000_000
SETUP = Setup(
    (Model("m", 8, slo_ns=100 * NS_PER_MS),),
    (Worker(0, "w0", ("m",)),),
    (Profile.linear("m", alpha_ms=2, beta_ms=10, max_rows=8),),
)


def arrivals(since_ns: int, until_ns: int, rate_rps: float) -> list[Request]:
    """Requests at an even rate."""
    count = int((until_ns - since_ns) * rate_rps / S)
    at_ns = [since_ns + round(number * S / rate_rps) for number in range(count)]
    return [Request(number, "m", 1, each, each + 100 * NS_PER_MS) for number, each in enumerate(at_ns)]


def window(requests: Sequence[Request], since_ns: int, until_ns: int, attainment: float) -> TrafficWindow:
    """These requests, of which so many were on time."""
    on_time = [number < attainment * len(requests) for number in range(len(requests))]
    return TrafficWindow(
        until_ns, since_ns, until_ns, requests, on_time, SETUP, EngineSettings(learn=True, max_tries=2), ()
    )
