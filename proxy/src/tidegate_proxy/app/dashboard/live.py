"""Dashboard source for a running Tidegate; it collects data only while a viewer is connected."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from typing import Any, Final

from tidegate.api import NS_PER_MS, Setup, Worker
from tidegate.engine import FIRST_LEAD_NS
from tidegate.observation import EngineSettings
from tidegate.sim.what_if import WhatIfQuestion
from tidegate.toolkit import FirstComeFirstServed
from tidegate_proxy.app.dashboard.decisions import latest_decisions
from tidegate_proxy.app.dashboard.event_buffer import EventBuffer
from tidegate_proxy.app.dashboard.figures import RollingFigures
from tidegate_proxy.app.dashboard.history import History, HistoryRing
from tidegate_proxy.app.dashboard.latency_explanation import LatencyExplanation
from tidegate_proxy.app.dashboard.snapshot import (
    DashboardSnapshot,
    PageHello,
    RolloutRow,
    RolloutSection,
    RolloutSide,
    TenantRow,
    cut,
)
from tidegate_proxy.app.dashboard.tick_buffer import TickBuffer
from tidegate_proxy.app.dashboard.timeline_builder import build_timeline, build_timeline_steps
from tidegate_proxy.app.dashboard.what_if import what_if
from tidegate_proxy.app.tuning.policy_tuning import PolicyTuning
from tidegate_proxy.observability.accounts import costs_of
from tidegate_proxy.observability.metrics import Metrics
from tidegate_proxy.rollout.canary import Canary
from tidegate_proxy.rollout.comparison import ModelComparison, TrafficGroup
from tidegate_proxy.rollout.mode import RolloutMode
from tidegate_proxy.rollout.shadow import Shadow, own_batching
from tidegate_proxy.scheduling.driver import Driver
from tidegate_proxy.service.discovery import Discovery
from tidegate_proxy.service.passthrough import bypassed_in_words
from tidegate_proxy.tritons.catalog import CurrentCatalog
from tidegate_proxy.tritons.restrictions import restriction_warnings

MAX_MOMENTS: Final = 100_000
"""Number of buffered stimuli: some 40 MB; at 1,000 requests per second about the last 40 s."""
MAX_NS: Final = 60_000_000_000
MAX_TENANT_ROWS: Final = 50
"""Number of tenants that the page shows, the most worker time first."""
MAX_AT_A_TICK: Final = 2_000
"""Number of stimuli searched for decisions per tick, the latest."""


@dataclass(eq=False, repr=False)
class LiveView:
    """Observer of one engine from `open` to `close`, without cost otherwise. Use it only in the event loop."""

    _driver: Driver
    _directory: CurrentCatalog
    _discovery: Discovery
    _rollout: RolloutMode
    _tuning: PolicyTuning
    _history: HistoryRing

    def __post_init__(self) -> None:
        self._recent = TickBuffer()
        self._moments = EventBuffer(most=MAX_MOMENTS, longest_ns=MAX_NS)
        self._figures = RollingFigures(0)
        self._seen = self._answers = 0
        """How many moments, and answers of the policy, there were at the tick before."""
        self._cost_ns = 0
        self._ticks_since_ns = 0
        self._is_open = False

    def hello(self) -> PageHello:
        """Return the first message to the page."""
        return PageHello("live", self._driver.engine.decides, version("tidegate-proxy"))

    def open(self) -> None:
        """Begin to observe. Raises ValueError if the engine has a trace observer already."""
        self._moments = EventBuffer(most=MAX_MOMENTS, longest_ns=MAX_NS)
        self._driver.engine.attach(self._moments)
        self._recent = TickBuffer()
        self._driver.engine.reducer.add_listener(self._recent)
        self._figures = RollingFigures(time.monotonic_ns())
        self._seen = self._answers = self._cost_ns = 0
        self._ticks_since_ns = time.monotonic_ns()
        self._is_open = True

    def close(self) -> None:
        """Stop observing, and drop the collected data."""
        if self._is_open:
            self._is_open = False
            self._driver.engine.detach(self._moments)
            self._driver.engine.reducer.remove_listener(self._recent)
            self._moments = EventBuffer(most=1, longest_ns=MAX_NS)
            self._recent = TickBuffer()

    def tick(self, viewers: int) -> DashboardSnapshot:
        """Return the events since the last tick."""
        began_ns = time.thread_time_ns()
        now_ns = time.monotonic_ns()
        notes = self._recent.take()  # first of all: whatever breaks below, it does not pile up
        figures, moments, catalog = self._figures, self._moments, self._directory.catalog
        reducer = self._driver.engine.reducer
        moments.trim(now_ns)
        workers = self._workers()
        figures.know(worker for worker, _ in workers)
        stages = figures.take(notes, now_ns)
        slos_ms = {model.name: _in_ms(model.slo_ns) for model in catalog.models.values()}
        models, more_models = figures.models(
            slos_ms, reducer.waiting(), self._driver.observability.metrics.gaps_on_time()
        )
        worker_rows, more_workers = figures.workers(workers, reducer.sent)
        new = islice(reversed(moments.latest), min(moments.count - self._seen, MAX_AT_A_TICK))
        names = {worker.id: worker.name for worker, _ in workers}
        decisions, more_decisions = latest_decisions(new, moments.answers - self._answers, figures.ms, names)
        self._seen, self._answers = moments.count, moments.answers
        snapshot = DashboardSnapshot(
            figures.ms(now_ns),
            figures.window_ns / 1e9,
            models,
            more_models,
            worker_rows,
            more_workers,
            figures.shapes(),
            stages.names,
            stages.bars,
            stages.more,
            decisions,
            more_decisions,
            figures.worst(),
            viewers,
            round(self._cost_ns / max(1, now_ns - self._ticks_since_ns) * 1000, 3),
            section_of(self._rollout),
            self._driver.engine.decides,
            [*self._bypassed(), *self._restrictions(), *self._rollout.versions.sentences()],
            self._tuning.sentence,
            tenant_rows(self._driver.observability.metrics),
        )
        self._cost_ns += time.thread_time_ns() - began_ns
        return snapshot

    def _bypassed(self) -> Iterator[str]:
        if said := bypassed_in_words(self._driver.observability.metrics.counts.bypassed):
            yield f"Requests that bypassed the scheduler: {said}"

    def _restrictions(self) -> Iterator[str]:
        for backend in self._discovery.backends:
            yield from (words for words, _ in restriction_warnings(backend))

    async def timeline(self, request_id: int) -> LatencyExplanation | None:
        """Return the timeline of a request, or None if it is unknown or forgotten."""
        catalog = self._directory.catalog
        models, workers = list(catalog.models.values()), [worker for worker, _ in self._workers()]
        return await build_timeline(
            build_timeline_steps(request_id, list(self._moments.latest), models, workers, self._figures.ms)
        )

    async def what_if(self, at_ms: int | None) -> object:
        """Simulate the latest requests with other settings. Raises ValueError if that is impossible."""
        del at_ms  # it is now
        engine = self._driver.engine
        question = WhatIfQuestion(
            setup=self._setup(),
            policy="fifs" if type(engine.policy) is FirstComeFirstServed else engine.name,  # which broke
            options=engine.policy.options.model_dump(mode="json"),
            settings=EngineSettings(
                learn=True,
                max_tries=engine.max_tries,
                first_lead_ns=FIRST_LEAD_NS,
                priority_floors=engine.settings.priority_floors,
            ),
            requests=(),
            batcher=own_batching(self._directory.catalog),
        )
        return await what_if(question, list(self._moments.latest), learned=True)

    def at(self, at_ms: int) -> object:
        """Raise ValueError: a running Tidegate has no other instants."""
        raise ValueError("this one runs: only a recording has other instants")

    def history(self, since: int) -> History:
        """Return the points of the last hour from number `since` on."""
        return self._history.history(since)

    def _setup(self) -> Setup:
        """Current models, workers and expectations."""
        catalog = self._directory.catalog
        engine = self._driver.engine
        before = engine.policy.setup
        return Setup(
            models=tuple(catalog.models.values()),
            workers=tuple(worker for worker, state in self._workers() if state != "away"),
            profiles=tuple(engine.expectations.profiles.values()),
            seed=before.seed,
            timer_latency_ns=before.timer_latency_ns,
            network=catalog.network,
            no_slo_max_deferral_ns=before.no_slo_max_deferral_ns,
        )

    def _workers(self) -> list[tuple[Worker, str]]:
        catalog = self._directory.catalog
        ejections = self._driver.outliers.ejections(self._discovery.backends)
        found = []
        for worker in catalog.workers:
            backend = catalog.backend_of[worker.id]
            is_out = ejections.get(backend.address, (0, False))[1]
            found.append((worker, "away" if not backend.alive else "ejected" if is_out else "up"))
        return found


def tenant_rows(metrics: Metrics) -> list[TenantRow]:
    """Return the accounts of the tenants, the most worker time first; empty without tenants."""
    gpu_ns, rejections = metrics.accounts.gpu_ns, metrics.rejections()
    of_tenant, costs = Counter[str](), dict[str, float]()
    for (_, tenant, _), duration_ns in gpu_ns.items():
        of_tenant[tenant] += duration_ns
    for (_, tenant), cost in costs_of(gpu_ns, metrics.prices).items():
        costs[tenant] = costs.get(tenant, 0.0) + cost
    names = {*of_tenant, *rejections} - {""}
    total = sum(of_tenant.values()) or 1
    rows = [
        TenantRow(
            cut(name),
            of_tenant[name] / 1e9,
            of_tenant[name] / total,
            costs.get(name, 0.0) if metrics.prices else None,
            rejections.get(name, 0),
        )
        for name in names
    ]
    return sorted(rows, key=lambda row: (-row.gpu_s, row.name))[:MAX_TENANT_ROWS]


def _in_ms(ns: int | None) -> float | None:
    return None if ns is None else ns / NS_PER_MS


MAX_SHOWN_MODELS: Final = 30
"""Number of models shown."""


def section_of(rollout: RolloutMode) -> RolloutSection | None:
    """Return the section; None if every model is scheduled that can be."""
    if rollout.shadow.is_on:
        return _of_shadow(rollout.shadow)
    return _of_canary(rollout.canary) if rollout.canary.is_on else None


def _of_shadow(shadow: Shadow) -> RolloutSection:
    document = shadow.document()
    report = document["report"] or {"window_s": None, "unsimulated": 0, "estimates": []}
    rows = [_estimate(each, shadow.policy) for each in report["estimates"]]
    left_out = document["left_out"]
    notes = [
        f"{left_out} requests were left out, as the simulator did not keep up." if left_out else "",
        report["estimates"][0]["doubt"] if report["estimates"] else "",
        f"{document['why'][:1].upper()}{document['why'][1:]}." if document["why"] else "",
    ]
    note = " ".join(filter(None, notes))
    return RolloutSection(
        "shadow", shadow.policy, 0.0, report["window_s"], rows[:MAX_SHOWN_MODELS], len(rows[MAX_SHOWN_MODELS:]), note
    )


def _estimate(estimate: dict[str, Any], policy: str) -> RolloutRow:
    gain = estimate["gain"]
    sides = [
        RolloutSide("as it passes", estimate["requests"], estimate["measured"]),
        RolloutSide("Triton's batcher, simulated", None, estimate["batcher"]),
        RolloutSide("Triton's batcher tuned, simulated", None, estimate["tuned"]),
        RolloutSide(f"{policy}, simulated", None, estimate["policy"]),
    ]
    return RolloutRow(cut(estimate["model"]), sides, tuple(gain) if gain else None, cut(estimate["why"]))


def _of_canary(canary: Canary) -> RolloutSection:
    rows = [_compared(each, canary.policy) for each in canary.compared[:MAX_SHOWN_MODELS]]
    return RolloutSection(
        "canary", canary.policy, canary.share or 0.0, None, rows, len(canary.compared[MAX_SHOWN_MODELS:]), ""
    )


def _compared(compared: ModelComparison, policy: str) -> RolloutRow:
    sides = [_side("as it passes", compared.passed), _side(f"scheduled by {policy}", compared.scheduled)]
    return RolloutRow(cut(compared.model), sides, compared.gain, cut(compared.why))


def _side(name: str, side: TrafficGroup) -> RolloutSide:
    return RolloutSide(name, side.requests, side.attainment, side.p50_ms, side.p99_ms)
