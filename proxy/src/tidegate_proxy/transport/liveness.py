"""Whether Tidegate lives: the parts that work for others without being asked give signs of life.

Who is asked answers in the event loop. While that is held, by a policy that never returns, say, there is no answer at
all, which a probe takes for the same; `watchdog` then has the log tell by whom.
"""

import time
from collections.abc import Callable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidegate_proxy.configuration.settings import InForce

BEAT_S = 0.5
"""How often a part that has nothing to do gives a sign of life."""


class Liveness(Collector):
    """The parts, and when each last gave a sign of life.

    As a Prometheus collector it tells how long each has been silent.
    """

    def __init__(self, in_force: InForce) -> None:
        self._in_force = in_force
        self._signs: dict[str, Callable[[], int]] = {}

    def watch(self, part: str, last_sign_ns: Callable[[], int]) -> None:
        """One more part; `last_sign_ns` is the instant of its last sign, and may be asked from any thread."""
        self._signs[part] = last_sign_ns

    def liveness_timeout_s(self) -> dict[str, float]:
        """For how long each part has been silent."""
        now_ns = time.monotonic_ns()
        return {part: max(0, now_ns - last_ns()) / 1e9 for part, last_ns in self._signs.items()}

    def complaint(self) -> str:
        """Return the parts that have been silent too long, as text; "" if Tidegate is live."""
        limit_s = self._in_force.settings.liveness_timeout_s
        silent = {
            part: liveness_timeout_s
            for part, liveness_timeout_s in self.liveness_timeout_s().items()
            if liveness_timeout_s > limit_s
        }
        return ", ".join(
            f"no sign of life from the {part} for {liveness_timeout_s:.1f} s"
            for part, liveness_timeout_s in silent.items()
        )

    def describe(self) -> list[Metric]:
        """Nothing: or the registry would collect once when it is made."""
        return []

    def collect(self) -> list[Metric]:
        """How long each part has been silent, and whether all live."""
        liveness_timeout_s = self.liveness_timeout_s()
        silent = GaugeMetricFamily(
            "tidegate_heartbeat_age_seconds",
            "Since when a part of Tidegate has given no sign of life.",
            labels=("part",),
        )
        for part, part_silence_s in liveness_timeout_s.items():
            silent.add_metric((part,), part_silence_s)
        live = GaugeMetricFamily("tidegate_healthy", "1 while health says that Tidegate lives, else 0.")
        live.add_metric(
            (), int(max(liveness_timeout_s.values(), default=0.0) <= self._in_force.settings.liveness_timeout_s)
        )
        return [silent, live]
