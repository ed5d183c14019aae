"""Tuning of the policy while serving: on if the configured policy is one that is tuned, such as `auto`."""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidegate.control.settings import TuningOptions
from tidegate.host import Plugins
from tidegate.observation import PolicyTuned
from tidegate_proxy.base.tasks import cancel
from tidegate_proxy.configuration.config import PolicyChoice
from tidegate_proxy.scheduling.driver import Driver

if TYPE_CHECKING:
    from tidegate_proxy.app.tuning.live_tuning import LiveTuning


class PolicyTuning(Collector):
    """Supervisor of the policy's tuner, which runs while the policy is one that is tuned.

    Call only from the event loop, except `collect`.
    """

    def __init__(self, driver: Driver, plugins: Plugins, policy: PolicyChoice) -> None:
        self._driver = driver
        self._plugins = plugins
        self._task: asyncio.Task[None] | None = None
        self._latest: PolicyTuned | None = None
        self._cpu_s = 0.0
        self.live: LiveTuning | None = None
        """The tuner; None: the policy is not tuned."""
        self.follow(policy)

    @property
    def sentence(self) -> str:
        """The latest verdict for people; "" if the policy is not tuned."""
        if self.live is None:
            return ""
        verdict = self.live.tuner.verdict
        return f"Policy {verdict.verdict}: {verdict.reason}"

    def follow(self, policy: PolicyChoice) -> None:
        """Tune this policy from now on, if it is one that is tuned."""
        if self._task is not None:
            self._task.cancel()
            self._task = self.live = self._latest = None
        if issubclass(self._plugins.policy(policy.name).policy.Options, TuningOptions):
            from tidegate_proxy.app.tuning.live_tuning import LiveTuning  # noqa: PLC0415 - off by default

            self.live = LiveTuning(self._driver, policy, self._plugins, self._on_answer)
            self._task = asyncio.create_task(self.live.run())

    async def close(self) -> None:
        """Stop tuning."""
        await cancel(self._task)

    def collect(self) -> Iterator[Metric]:
        """Yield the latest verdict as Prometheus metrics."""
        if self.live is not None:
            yield from metrics_of(self._latest.gain if self._latest else None, self._cpu_s)

    def _on_answer(self, verdict: PolicyTuned, cpu_s: float) -> None:
        self._latest = verdict
        self._cpu_s += cpu_s


def metrics_of(gain: tuple[float, float] | None, cpu_s: float) -> Iterator[Metric]:
    """Yield a verdict's gain and the CPU time so far as metrics."""
    bounds = GaugeMetricFamily(
        "tidegate_tuning_gain",
        "Attainment that the policy of the latest verdict gains: the bounds of the 95 % interval. Absent where nothing "
        "is said.",
        labels=["bound"],
    )
    for bound, value in zip(("low", "high"), gain or (), strict=False):
        bounds.add_metric([bound], value)
    cpu = CounterMetricFamily("tidegate_tuning_cpu_seconds", "CPU time of simulations that compare policies.")
    cpu.add_metric([], cpu_s)
    yield from (bounds, cpu)
