"""Liveness of Tidegate: background parts give signs of life.

Parts that answer requests do so in the event loop. If that is blocked, by a policy that never returns, say, there is no
response at all, which a probe treats the same; `watchdog` then logs what blocks it.
"""

import time
from collections.abc import Callable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidegate_proxy.configuration.settings import SettingsHolder


class Liveness(Collector):
    """Parts of Tidegate with their last signs of life; as a Prometheus collector it exports the silence of each."""

    def __init__(self, in_force: SettingsHolder) -> None:
        self._in_force = in_force
        self._signs: dict[str, Callable[[], int]] = {}

    def watch(self, part: str, last_sign_ns: Callable[[], int]) -> None:
        """Add a part; `last_sign_ns` returns the instant of its last sign, and may be called from any thread."""
        self._signs[part] = last_sign_ns

    def liveness_timeout_s(self) -> dict[str, float]:
        """Return the seconds for which each part has been silent."""
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

    def collect(self) -> list[Metric]:
        """Return the silence of each part, and whether all are live."""
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
