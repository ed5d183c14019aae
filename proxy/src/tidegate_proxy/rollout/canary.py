"""Canary: schedules requests for a fraction of the time, bypasses them otherwise, and compares both.

It is a switchback experiment: on the same GPUs both groups would disturb each other, so they alternate in randomly
drawn blocks of time. Requests that cannot be scheduled are bypassed in any case, and not compared. Streams are compared
by their first response, and sequences by the first response to their first request: they stay where they begin.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Final

import msgspec
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tidegate.api import Batch, Request
from tidegate.observation import OutcomeListener, StartStage
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.settings import SettingsHolder
from tidegate_proxy.messages.request import InferenceRequest
from tidegate_proxy.rollout import comparison
from tidegate_proxy.rollout.comparison import NO_TRAFFIC, Comparison, ModelComparison, TrafficGroup
from tidegate_proxy.tritons.catalog import CurrentCatalog, unscheduled_slos

log = logging.getLogger(__name__)

FOLD_EVERY_S: Final = 1.0
SAY_EVERY: Final = 60
"""Number of folds between two log lines."""
MAX_DRAWN: Final = 200_000
"""Largest number of requests between two folds; further ones are served, but not compared."""


class Canary(OutcomeListener, Collector):
    """Canary: schedules requests for a fraction of the time.

    Call only from the event loop, except `schedules` and `collect`.
    """

    def __init__(
        self, config: ServeConfig, in_force: SettingsHolder, directory: CurrentCatalog, decides: Callable[[], str]
    ) -> None:
        """Create the canary. `decides`: returns a description of the current policy."""
        self._policy = config.policy
        self._models = config.models
        self._decides = decides
        self._decided = decides()
        """Policy that scheduled when the comparison began."""
        self._in_force = in_force
        self._directory = directory
        self._seed = config.seed
        self._draw = -1, 0.0, False
        """The present block of time, its share, and whether it is scheduled: one value, since threads may change it."""
        self._comparison = Comparison()
        self._share: float | None = config.canary
        """Fraction when the comparison began."""
        self._drawn: list[tuple[int, str, bool]] = []
        self._compared: list[ModelComparison] = []
        self._responded: set[int] = set()
        """Ids of scheduled requests in slots that had their first response, which is compared, and have not ended."""

    @property
    def is_on(self) -> bool:
        """Whether requests are scheduled for a fraction of the time only."""
        return self.share is not None

    @property
    def share(self) -> float | None:
        """Fraction of the time in which requests are scheduled; None: no canary."""
        return self._in_force.settings.canary

    @property
    def policy(self) -> str:
        """Name of the current policy, or of the fallback where it failed."""
        return self._decides()

    @property
    def compared(self) -> Sequence[ModelComparison]:
        """Comparison for each model."""
        return self._compared

    def schedules(self, envelope: InferenceRequest) -> bool:
        """Return whether to schedule a request that could be; always true without a canary."""
        share = self.share
        if share is None:
            return True
        now_ns = time.monotonic_ns()
        block = now_ns // comparison.BLOCK_NS
        drawn_for, drawn_share, scheduled = self._draw
        if (drawn_for, drawn_share) != (block, share):
            scheduled = Random(f"{self._seed}/{block}").random() < share
            self._draw = block, share, scheduled
        if len(self._drawn) < MAX_DRAWN:
            self._drawn.append((now_ns, envelope.model, scheduled))
        return scheduled

    def first_response(self, effect: StartStage, requests: Sequence[Request], started_ns: int, now_ns: int) -> None:
        """Record the first response to a scheduled stream, whose end may come after its block has settled."""
        self._responded.update(request.id for request in requests)
        self._record(effect.batch.model, requests, now_ns)

    def answered(self, batch: Batch, requests: Sequence[Request], ended_ns: int) -> None:
        """Record the responses to scheduled requests."""
        if self._responded:
            fresh = [request for request in requests if request.id not in self._responded]
            self._responded.difference_update(request.id for request in requests)
            requests = fresh
        self._record(batch.model, requests, ended_ns)

    def failed(self, now_ns: int, request: Request, reason: str) -> None:
        """Forget a request."""
        self._responded.discard(request.id)

    def cancelled(self, now_ns: int, request: Request) -> None:
        """Forget a request."""
        self._responded.discard(request.id)

    def _record(self, name: str, requests: Sequence[Request], ended_ns: int) -> None:
        if self.is_on:
            slo_ns = self._slo_ns(name)
            for request in requests:
                came_ns, model = request.arrival_ns, request.model
                self._comparison.answered(came_ns, model, ended_ns - came_ns, slo_ns, scheduled=True)

    def passed(self, model: str, sent_ns: int, took_ns: int, ok: bool) -> None:
        """Record the response to a bypassed request.

        `sent_ns`: instant of sending; `took_ns`: its latency; `ok`: whether it succeeded.
        """
        if self.is_on and ok:
            self._comparison.answered(sent_ns, model, took_ns, self._slo_ns(model), scheduled=False)

    def document(self) -> dict[str, Any]:
        """Return the comparison as JSON for GET /canary."""
        return {
            "share": self.share,
            "policy": self.policy,
            "compared": msgspec.to_builtins(self._compared),
        }

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the comparison as Prometheus metrics."""
        return gauges(self._compared if self.is_on else ())

    def follow(self, config: ServeConfig) -> None:
        """Restart the comparison if the policy is another one, and report on these models."""
        self._models = config.models
        if config.policy != self._policy:
            self._policy = config.policy
            self._begin_anew()

    async def run(self) -> None:
        """Run forever: fold recorded requests, and log the comparison periodically."""
        folds = 0
        while True:
            await asyncio.sleep(FOLD_EVERY_S)
            if self.fold(time.monotonic_ns()):
                await self._compare()
            folds += 1
            if self.is_on and folds % SAY_EVERY == 0:
                for compared in self._compared:
                    log.info("canary comparison", extra={"detail": describe(self.policy, compared)})

    def fold(self, now_ns: int) -> bool:
        """Fold the requests recorded since the last call; return whether the comparison changed."""
        drawn, self._drawn = self._drawn, []
        if (self._share, self._decided) != (self.share, self.policy):
            self._begin_anew()
            return False  # what was drawn meanwhile may be of either
        for at_ns, model, scheduled in drawn:
            self._comparison.drew(at_ns, model, scheduled=scheduled)
        return self.is_on and self._comparison.settle(now_ns)

    async def _compare(self) -> None:
        """Compare model by model; between two of them requests have their turn."""
        begun, compared = self._comparison, []
        share = 0.5 if self.share is None else self.share
        for name in begun.models:
            if model := self._directory.catalog.models.get(name):
                compared.append(begun.of(name, has_slo=model.slo_ns is not None, share=share))
            await asyncio.sleep(0)
        for name, why in unscheduled_slos(self._directory.catalog, self._models).items():
            compared.append(
                ModelComparison(name, NO_TRAFFIC, NO_TRAFFIC, None, f"its requests are not scheduled: {why}")
            )
        if begun is self._comparison:  # it did not begin again meanwhile
            self._compared = compared

    def _begin_anew(self) -> None:
        """From the next block of time on: answers of this one may be of requests that were not drawn for it."""
        self._share, self._decided = self.share, self.policy
        self._comparison, self._compared = Comparison(time.monotonic_ns()), []

    def _slo_ns(self, name: str) -> int | None:
        model = self._directory.catalog.models.get(name)
        return model.slo_ns if model else None


def gauges(compared: Sequence[ModelComparison]) -> Iterator[GaugeMetricFamily]:
    """Yield a comparison as metrics."""
    attainment = GaugeMetricFamily(
        "tidegate_canary_attainment",
        "Fraction of requests on time in the latest ten minutes: while all were scheduled (treatment), while all "
        "bypassed the scheduler (control).",
        labels=["model", "group"],
    )
    gain = GaugeMetricFamily(
        "tidegate_canary_gain",
        "What scheduling adds to the attainment: the bounds of the 95 % interval. Absent where nothing is said.",
        labels=["model", "bound"],
    )
    latency = GaugeMetricFamily(
        "tidegate_canary_request_duration_seconds",
        "Latency quantiles while all were scheduled (treatment), while all bypassed the scheduler (control).",
        labels=["model", "group", "quantile"],
    )
    for each in compared:
        for group, side in (("treatment", each.scheduled), ("control", each.passed)):
            if side.attainment is not None:
                attainment.add_metric([each.model, group], side.attainment)
            for quantile, value_ms in (("0.5", side.p50_ms), ("0.99", side.p99_ms)):
                if value_ms is not None:
                    latency.add_metric([each.model, group, quantile], value_ms / 1000)
        for bound, value in zip(("low", "high"), each.gain or (), strict=False):
            gain.add_metric([each.model, bound], value)
    yield from (attainment, gain, latency)


def describe(policy: str, compared: ModelComparison) -> str:
    """Describe a comparison in one line."""
    if compared.scheduled is NO_TRAFFIC:
        return f"{compared.model}: not compared: {compared.why}"
    scheduled, passed = _words_of(compared.scheduled), _words_of(compared.passed)
    both = f"{compared.model}: by {policy} {scheduled}; passed unmodified {passed}"
    if compared.passed.others:
        both += f" (and {compared.passed.others} that could not be scheduled)"
    if compared.gain is None:
        return f"{both}; what {policy} gains is not said: {compared.why}"
    low, high = (100 * bound for bound in compared.gain)
    return f"{both}; gained {low:+.1f} to {high:+.1f} percentage points"


def _words_of(side: TrafficGroup) -> str:
    text = f"{side.requests} requests"
    if side.attainment is not None:
        text += f", {100 * side.attainment:.1f} % on time"
    if side.p50_ms is not None:
        text += f", p50 {side.p50_ms:.1f} and p99 {side.p99_ms:.1f} ms"
    return text
