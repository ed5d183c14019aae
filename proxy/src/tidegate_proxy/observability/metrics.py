"""Counters of an engine's requests, batches and workers, and the observer that feeds them, statistics and traces.

The driver reports clients to `Observability`, the engine's reducer reports requests and stages to `Metrics`. Both are
on the hot path and never raise. `metrics_registry` exports the counters.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import ParamSpec, TypeVar

from tidegate.api import NEVER_NS, Advise, Batch, Request, Setup, Worker, WorkerJoined, WorkerLost, ms_to_ns
from tidegate.observation import (
    AnyEffect,
    AnyStimulus,
    ChangeProgressed,
    EngineRestarted,
    ObserverRemoved,
    OutcomeListener,
    PolicyReplaced,
    PolicyRestored,
    Reducer,
    StartStage,
    TopologyChanged,
)
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.outcome import RequestFailed
from tidegate_proxy.messages.padding import PaddingPlan
from tidegate_proxy.messages.request import PendingRequest
from tidegate_proxy.observability.accounts import GpuTime, TenantAccounts, costs_of
from tidegate_proxy.observability.model_statistics import ModelStatistics
from tidegate_proxy.observability.tracing import BatchSpan, RequestTracer

P = ParamSpec("P")
R = TypeVar("R")


def isolated(method: Callable[P, R]) -> Callable[P, R | None]:
    """Decorate an observer's method: log and count its exceptions as internal errors, and return None."""

    @wraps(method)
    def quiet(*arguments: P.args, **options: P.kwargs) -> R | None:
        try:
            return method(*arguments, **options)
        except Exception as error:
            faults.report(f"observability ({method.__name__})", error)
            return None

    return quiet


LATENCY_BOUNDS_NS = tuple(
    map(ms_to_ns, (0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 750, 1000, 2000, 5000, 10000))
)
"""Bucket bounds of queue times and latencies in ns; dense where SLOs are."""
SLACK_BOUNDS_NS = tuple(map(ms_to_ns, (0, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 50, 100, 200, 500, 1000, 5000)))
"""Bucket bounds of slack in ns; below zero the batch was predicted to be late."""
_OF_WORKERS = frozenset({WorkerJoined, WorkerLost, TopologyChanged})
FAILURE_EFFECTS = frozenset({PolicyReplaced, PolicyRestored, ObserverRemoved, EngineRestarted})
"""Effects that are counted by their names."""
DECISION_BOUNDS_NS = tuple(map(ms_to_ns, (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 100)))
MAX_REASONS = 32
OTHER_REASONS = "other"
"""Reason under which drops are counted once a policy has given too many reasons: each is a time series."""
MAX_SHAPES = 32
OTHER_SHAPES = "other"
"""Shape under which requests are counted once a model has had too many shapes: clients choose them."""


class DurationHistogram:
    """Histogram of durations, in buckets."""

    __slots__ = ("bounds_ns", "counts", "sum_ns")

    def __init__(self, bounds_ns: Sequence[int]) -> None:
        self.bounds_ns = bounds_ns
        self.counts = [0] * (len(bounds_ns) + 1)
        """Counts by bucket; the last one is above every bound."""
        self.sum_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count a duration."""
        self.counts[bisect_left(self.bounds_ns, duration_ns)] += 1
        self.sum_ns += duration_ns

    def copy(self) -> "DurationHistogram":
        """Return an independent copy."""
        same = DurationHistogram(self.bounds_ns)
        same.counts, same.sum_ns = self.counts.copy(), self.sum_ns
        return same


@dataclass(slots=True)
class StageTimes:
    """Predicted and actual latency of stages."""

    count: int = 0
    upper_ns: int = 0
    taken_ns: int = 0


@dataclass(slots=True)
class ModelCounts:
    """Outcomes of the requests of one model."""

    slo_ns: int | None = None
    slack: DurationHistogram = field(default_factory=lambda: DurationHistogram(SLACK_BOUNDS_NS))
    """Predicted slack of batches: time from their end to the first deadline of their requests."""
    stages: dict[str, StageTimes] = field(default_factory=dict)
    """Latency of stages by shape; empty if nothing varies."""
    queued: DurationHistogram = field(default_factory=lambda: DurationHistogram(LATENCY_BOUNDS_NS))
    """Time from arrival to the start of the first stage; counted again for each retry."""
    answered: DurationHistogram = field(default_factory=lambda: DurationHistogram(LATENCY_BOUNDS_NS))
    """Time from arrival to the end of the last stage."""
    batch_rows: Counter[int] = field(default_factory=Counter)
    batch_requests: Counter[int] = field(default_factory=Counter)
    rows: Counter[int] = field(default_factory=Counter)
    """Number of answered requests by rows."""
    on_time: int = 0
    late: int = 0
    failed: int = 0
    cancelled: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of dropped requests by reason."""
    padded_rows: int = 0
    """Rows of requests that ran padded; counted again for each retry."""
    sent_elements: int = 0
    """Number of elements of padded inputs before padding."""
    added_elements: int = 0
    """Number of elements added by padding."""
    shapes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Number of answered requests and the sum of their latencies in ns, by shape."""
    gaps: DurationHistogram = field(default_factory=lambda: DurationHistogram(LATENCY_BOUNDS_NS))
    """Time between responses of streams."""
    slo_gap_ns: int | None = None
    gaps_on_time: int = 0
    """Number of streams whose mean time between responses met the SLO."""
    gaps_late: int = 0

    def answered_of(self, shape: str, requests: int, sum_ns: int) -> None:
        """Count answered requests of one shape, with the sum of their latencies."""
        if shape not in self.shapes and len(self.shapes) >= MAX_SHAPES:
            shape = OTHER_SHAPES
        before, before_ns = self.shapes.get(shape, (0, 0))
        self.shapes[shape] = before + requests, before_ns + sum_ns

    def stage_ran(self, shape: str, upper_ns: int, taken_ns: int) -> None:
        """Count a stage of requests of one shape."""
        times = self.stages.get(shape)
        if times is None:
            times = self.stages.setdefault(shape if len(self.stages) < MAX_SHAPES else OTHER_SHAPES, StageTimes())
        times.count += 1
        times.upper_ns += upper_ns
        times.taken_ns += taken_ns

    def drop(self, reason: str) -> None:
        """Count a rejected request."""
        known = reason in self.dropped or len(self.dropped) < MAX_REASONS
        self.dropped[reason if known else OTHER_REASONS] += 1

    def copy(self) -> "ModelCounts":
        """Return an independent copy."""
        return replace(
            self,
            slack=self.slack.copy(),
            stages={shape: replace(times) for shape, times in self.stages.items()},
            queued=self.queued.copy(),
            answered=self.answered.copy(),
            batch_rows=self.batch_rows.copy(),
            batch_requests=self.batch_requests.copy(),
            rows=self.rows.copy(),
            dropped=self.dropped.copy(),
            shapes=self.shapes.copy(),
            gaps=self.gaps.copy(),
        )


@dataclass(slots=True)
class WorkerCounts:
    """Counts of one worker, by its name."""

    name: str
    up: bool = True
    busy_ns: int = 0
    """Total time of its stages, failed ones included."""


@dataclass(slots=True)
class ChangeTimes:
    """Durations of the layout changes with one outcome."""

    count: int = 0
    sum_ns: int = 0


@dataclass(slots=True)
class EngineCounts:
    """Numbers of one engine and of what its requests went through."""

    models: dict[str, ModelCounts]
    workers: dict[int, WorkerCounts]
    """Workers by id, those that are gone included."""
    layout_gpus: float | None = None
    """Number of GPUs in the current layout; None if unknown."""
    decisions: DurationHistogram = field(default_factory=lambda: DurationHistogram(DECISION_BOUNDS_NS))
    advised: int = 0
    """Number of workers to add; below zero: to release."""
    advised_at_ns: int | None = None
    failures: Counter[str] = field(default_factory=Counter)
    """Failures of a policy, an observer or the engine, and restored policies, by the name of their effect."""
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Requests rejected because a queue was full, by model and by the limit that was reached."""
    verified: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Verified batches, by model and result."""
    bypassed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Requests that bypassed the scheduler, by model and outcome."""
    changes: Counter[str] = field(default_factory=Counter)
    """Number of layout changes that have reached each state."""
    change_times: dict[str, ChangeTimes] = field(default_factory=dict)
    """Durations of layout changes, by outcome: done or undone."""


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """Copy of all numbers at one instant."""

    counts: EngineCounts
    waiting: Counter[str]
    """Queued requests by model: for a batch, or between two stages for the next worker."""
    gpu_ns: GpuTime
    costs: Mapping[tuple[str, str], float]
    """Cost of worker time by model and tenant; empty without prices."""
    rejections: Mapping[str, int]
    """Number of requests that rate limits rejected, by tenant."""


class Metrics(OutcomeListener):
    """Metrics of one engine: its reducer reports requests and stages, and its driver calls `handled`.

    Exceptions in reports of the reducer are caught: a broken metric must not break the engine.
    """

    def __init__(self, setup: Setup, reducer: Reducer, layout_gpus: float | None = None) -> None:
        """Create empty metrics. `reducer`: the engine's own. `layout_gpus`: GPUs of the first layout."""
        models = {model.name: ModelCounts(model.slo_ns, slo_gap_ns=model.slo_gap_ns) for model in setup.models}
        self.counts = EngineCounts(models, {each.id: WorkerCounts(each.name) for each in setup.workers}, layout_gpus)
        """Current numbers; they change."""
        self._reducer = reducer
        reducer.add_listener(self)
        self._change_began_ns = 0
        self._streaming: set[int] = set()
        """Batches that had their first response, and are not over."""
        self.accounts = TenantAccounts(setup.workers)
        self.prices: Mapping[str, float] = {}
        """Price of a worker's hour, by device class."""
        self.rejections: Callable[[], Mapping[str, int]] = dict
        """Returns the number of requests that rate limits rejected, by tenant."""

    def handled(self, event: AnyStimulus, effects: Sequence[AnyEffect], decision_ns: int) -> None:
        """Count a stimulus and its effects; `decision_ns`: duration of `Engine.handle`."""
        self.counts.decisions.add(decision_ns)
        if type(event) in _OF_WORKERS:
            self._take_in_workers(event)
        for effect in effects:
            if type(effect) in FAILURE_EFFECTS:
                self.counts.failures[type(effect).__name__] += 1

    def account(self, prices: Mapping[str, float], rejections: Callable[[], Mapping[str, int]]) -> None:
        """Set prices and the source of rejections.

        `prices`: price of a worker's hour by device class. `rejections()` returns the number of requests that rate
        limits rejected, by tenant.
        """
        self.prices, self.rejections = prices, rejections

    def padded(self, model: str, rows: int, padded: PaddingPlan) -> None:
        """Count a request that starts padded."""
        counts = self._of(model)
        counts.padded_rows += rows
        counts.sent_elements += padded.sent
        counts.added_elements += padded.added

    def passed_through(self, model: str, *, ok: bool) -> None:
        """Count a request that bypassed the scheduler; a failed one only if its model has answered others.

        Clients choose the names of models that no Triton has.
        """
        if ok:
            self.counts.bypassed[model, "answered"] += 1
        elif (model, "answered") in self.counts.bypassed:
            self.counts.bypassed[model, "failed"] += 1

    def sent_ns(self, batch_id: int) -> int | None:
        """Return the instant at which the running stage of a batch was sent, or None if none runs."""
        sent = self._reducer.sent.get(batch_id)
        return sent.sent_ns if sent else None

    def on_time(self) -> dict[str, tuple[int, int]]:
        """Return, by model, the number of requests answered on time, and of those with a deadline."""
        return {
            name: (counts.on_time, counts.on_time + counts.late + counts.failed + counts.dropped.total())
            for name, counts in self.counts.models.items()
        }

    def gaps_on_time(self) -> dict[str, float]:
        """Return, by model, the fraction of streams whose mean time between responses met their SLO, if any ended."""
        return {
            name: counts.gaps_on_time / (counts.gaps_on_time + counts.gaps_late)
            for name, counts in self.counts.models.items()
            if counts.gaps_on_time + counts.gaps_late
        }

    def snapshot(self) -> MetricsSnapshot:
        """Return a copy of all numbers. Call it under the lock; it takes microseconds per model and open request."""
        counts = self.counts
        copied = replace(
            counts,
            models={name: each.copy() for name, each in counts.models.items()},
            workers={number: replace(worker) for number, worker in counts.workers.items()},
            decisions=counts.decisions.copy(),
            failures=counts.failures.copy(),
            refused=counts.refused.copy(),
            verified=counts.verified.copy(),
            bypassed=counts.bypassed.copy(),
            changes=counts.changes.copy(),
            change_times={state: replace(times) for state, times in counts.change_times.items()},
        )
        gpu_ns = dict(self.accounts.gpu_ns)
        costs = costs_of(gpu_ns, self.prices) if self.prices else {}
        return MetricsSnapshot(copied, self._reducer.waiting(), gpu_ns, costs, self.rejections())

    # Requests and stages, as the reducer tells of them ---------------------------------------------------------------

    @isolated
    def joined(self, now_ns: int, effect: StartStage, requests: Sequence[Request]) -> None:
        """Count a batch that starts."""
        model = self._of(effect.batch.model)
        model.batch_rows[effect.rows] += 1
        model.batch_requests[len(effect.batch.request_ids)] += 1
        add, first_ns = model.queued.add, NEVER_NS
        for request in requests:
            add(now_ns - request.arrival_ns)
            first_ns = min(first_ns, request.deadline_ns)
        if first_ns != NEVER_NS:
            model.slack.add(first_ns - effect.batch.stages[-1].end_ns)
        if requests and requests[0].tenant:
            self.accounts.joined(effect.batch.id, requests)

    @isolated
    def stage_ran(self, effect: StartStage, started_ns: int, ended_ns: int) -> None:
        """Count a stage that ends."""
        stage = effect.batch.stages[effect.stage]
        if worker := self.counts.workers.get(stage.worker_id):
            worker.busy_ns += ended_ns - started_ns
        if effect.batch.id in self._streaming:
            self._streaming.discard(effect.batch.id)
        else:
            self._of(effect.batch.model).stage_ran(effect.shape, stage.duration_ns, ended_ns - started_ns)
        self.accounts.ran(effect, ended_ns - started_ns)

    @isolated
    def first_response(self, effect: StartStage, requests: Sequence[Request], started_ns: int, now_ns: int) -> None:
        """Count the time to the first response of a stream, which is what was planned."""
        self._streaming.add(effect.batch.id)
        planned_ns = effect.batch.stages[effect.stage].duration_ns
        self._of(effect.batch.model).stage_ran(effect.shape, planned_ns, now_ns - started_ns)

    @isolated
    def responded(self, model: str, gap_ns: int) -> None:
        """Count a further response of a stream, with the time since the one before it in ns."""
        self._of(model).gaps.add(gap_ns)

    @isolated
    def stream_ended(self, model: str, gap_ns: int) -> None:
        """Count a stream by the mean time between its responses in ns, if its model has an SLO for that."""
        counts = self._of(model)
        if counts.slo_gap_ns is not None:
            counts.gaps_late += gap_ns > counts.slo_gap_ns
            counts.gaps_on_time += gap_ns <= counts.slo_gap_ns

    @isolated
    def answered(self, batch: Batch, requests: Sequence[Request], ended_ns: int) -> None:
        """Count an answered batch."""
        model = self._of(batch.model)
        add, rows = model.answered.add, model.rows
        late = sum_ns = 0
        for request in requests:
            latency_ns = ended_ns - request.arrival_ns
            add(latency_ns)
            rows[request.rows] += 1
            sum_ns += latency_ns
            late += ended_ns > request.deadline_ns
        model.late += late
        model.on_time += len(requests) - late
        if requests and (shape := requests[0].shape):  # equal for all requests of a batch
            model.answered_of(shape, len(requests), sum_ns)

    @isolated
    def dropped(self, now_ns: int, request: Request, reason: str) -> None:
        """Count a dropped request."""
        self._of(request.model).drop(reason)

    @isolated
    def failed(self, now_ns: int, request: Request, reason: str) -> None:
        """Count a failed request."""
        self._of(request.model).failed += 1

    @isolated
    def cancelled(self, now_ns: int, request: Request) -> None:
        """Count a cancelled request."""
        self._of(request.model).cancelled += 1

    # Graphs, whose stages are counted as requests of their models ---------------------------------------------------

    def graph_answered(self, model: str, rows: int, latency_ns: int, *, is_late: bool) -> None:
        """Count an answered request of a graph, with its rows and latency; `is_late`: after its deadline."""
        counts = self._of(model)
        counts.answered.add(latency_ns)
        counts.rows[rows] += 1
        counts.late += is_late
        counts.on_time += not is_late

    def graph_failed(self, model: str, refusal: str) -> None:
        """Count a failed request of a graph; `refusal`: why a stage was rejected, "" if it failed."""
        counts = self._of(model)
        if not refusal:
            counts.failed += 1
        else:
            counts.drop(refusal)

    def graph_cancelled(self, model: str) -> None:
        """Count a request of a graph whose client left."""
        self._of(model).cancelled += 1

    @isolated
    def advised(self, now_ns: int, advice: Advise) -> None:
        """Record the policy's advice to add or release workers."""
        self.counts.advised, self.counts.advised_at_ns = advice.workers, now_ns

    @isolated
    def change_progressed(self, event: ChangeProgressed) -> None:
        """Record the progress of a layout change."""
        self.counts.changes[event.state] += 1
        self.counts.layout_gpus = event.gpus
        if event.state == "starting":
            self._change_began_ns = event.now_ns
        elif event.state in {"done", "undone"}:
            times = self.counts.change_times.setdefault(event.state, ChangeTimes())
            times.count += 1
            times.sum_ns += event.now_ns - self._change_began_ns

    def _of(self, model: str) -> ModelCounts:
        """The counts of a model; also of one that no worker hosts: the engine has refused the request."""
        counts = self.counts.models.get(model)
        if counts is None:
            counts = self.counts.models[model] = ModelCounts()
        return counts

    # Workers and the engine itself ---------------------------------------------------------------------------------

    def _take_in_workers(self, event: AnyStimulus) -> None:
        match event:
            case WorkerJoined():
                self._join(event.worker)
            case WorkerLost():
                if worker := self.counts.workers.get(event.worker_id):
                    worker.up = False
            case TopologyChanged():
                self._change_plan(event)

    def _change_plan(self, event: TopologyChanged) -> None:
        for model in event.models:
            counts = self.counts.models.setdefault(model.name, ModelCounts())
            counts.slo_ns, counts.slo_gap_ns = model.slo_ns, model.slo_gap_ns
        wanted = {worker.id for worker in event.workers}
        for worker_id, worker in self.counts.workers.items():
            worker.up = worker.up and worker_id in wanted
        for each in event.workers:
            self._join(each)

    def _join(self, worker: Worker) -> None:
        known = self.counts.workers.setdefault(worker.id, WorkerCounts(worker.name))
        known.name, known.up = worker.name, True
        self.accounts.add_worker(worker)


PassedWatcher = Callable[[str, int, int, bool], None]
"""Callback for each response to an unscheduled request: model, instant sent, duration, success."""


class Observability:
    """Observer of requests for metrics, statistics and traces. On the hot path; its methods never raise."""

    def __init__(
        self,
        setup: Setup,
        reducer: Reducer,
        tracing: RequestTracer | None = None,
        watchers: Sequence[PassedWatcher] = (),
        layout_gpus: float | None = None,
    ) -> None:
        """Create the observability. `reducer`: the engine's own. `watchers`: see `replace_watchers`.

        `layout_gpus`: GPUs of the first layout.
        """
        self.metrics = Metrics(setup, reducer, layout_gpus)
        self.statistics = ModelStatistics()
        self._watchers = tuple(watchers)
        self.traces = tracing is not None
        """Whether it needs to be called for arrivals."""
        self._tracing = tracing

    def replace_watchers(self, watchers: Sequence[PassedWatcher]) -> None:
        """Replace the callbacks for responses to unscheduled requests."""
        self._watchers = tuple(watchers)

    @isolated
    def arrived(self, client: PendingRequest) -> None:
        """Record the arrival of a request to schedule; its metadata may continue a trace."""
        if self._tracing:
            heading = client.envelope.heading
            client.span = self._tracing.request_arrived(
                client.metadata,
                model=heading.model,
                version=heading.version,
                rows=heading.rows,
                at_ns=client.arrival_ns,
            )

    @isolated
    def batch_started(
        self, clients: Sequence[PendingRequest], effect: StartStage, worker: str, at_ns: int
    ) -> BatchSpan | None:
        """Record that a stage is sent to a Triton; pass the result to `batch_ended`.

        `worker`: its name; `at_ns`: instant of sending.
        """
        heading, rows = clients[0].envelope.heading, effect.rows
        if effect.stage == 0:
            started_ns = self.metrics.sent_ns(effect.batch.id) or at_ns
            for client in clients:
                client.started_ns = started_ns
                if padded := client.envelope.heading.padded:
                    self.metrics.padded(heading.model, client.envelope.rows, padded)
            self.statistics.executed(heading.model, heading.version)
        if self._tracing is None:
            return None
        spans = [client.span for client in clients if client.span is not None]
        return self._tracing.execution_started(spans, model=heading.model, rows=rows, worker=worker, at_ns=at_ns)

    @isolated
    def batch_ended(self, execution: BatchSpan, at_ns: int, error: str | None = None) -> None:
        """Record the end of a traced batch.

        `error`: message of a failure, None: it succeeded.
        """
        if self._tracing:
            self._tracing.execution_ended(execution, at_ns=at_ns, error=error)

    @isolated
    def answered(self, clients: Sequence[PendingRequest], execution: BatchSpan | None, output_ns: int) -> None:
        """Record the responses to a batch; splitting them took `output_ns`."""
        heading, now_ns = clients[0].envelope.heading, time.monotonic_ns()
        rows = total_ns = queue_ns = infer_ns = 0
        for client in clients:
            rows += client.envelope.rows
            total_ns += now_ns - client.arrival_ns
            queue_ns += client.started_ns - client.arrival_ns
            infer_ns += client.ended_ns - client.started_ns
        self.statistics.answered(
            heading.model,
            heading.version,
            rows,
            requests=len(clients),
            at_ms=time.time_ns() // 1_000_000,
            total_ns=total_ns,
            queue_ns=queue_ns,
            infer_ns=infer_ns,
            output_ns=output_ns * len(clients),
        )
        if self._tracing:
            for client in clients:
                self._trace_answer(self._tracing, client, now_ns, execution)

    def _trace_answer(
        self, tracing: RequestTracer, client: PendingRequest, now_ns: int, execution: BatchSpan | None
    ) -> None:
        if client.span is not None:
            outcome = "on_time" if client.ended_ns <= client.due_ns else "late"
            queue_ns = client.started_ns - client.arrival_ns
            tracing.request_ended(client.span, outcome, at_ns=now_ns, queue_ns=queue_ns, execution=execution)

    @isolated
    def failed(self, client: PendingRequest, reason: str, outcome: str) -> None:
        """Record a failed or cancelled request. `reason`: one of FAILURE_REASONS; `outcome`: text for the trace."""
        heading, now_ns = client.envelope.heading, time.monotonic_ns()
        self.statistics.failed(heading.model, heading.version, reason, now_ns - client.arrival_ns)
        if self._tracing and client.span is not None:
            self._tracing.request_ended(client.span, outcome, at_ns=now_ns)

    @isolated
    def graph_answered(self, client: PendingRequest) -> None:
        """Record the response to a request whose graph ran in stages, which were counted on their own."""
        heading, now_ns = client.envelope.heading, time.monotonic_ns()
        total_ns = now_ns - client.arrival_ns
        self.metrics.graph_answered(heading.model, heading.rows, total_ns, is_late=now_ns > client.due_ns)
        self.statistics.executed(heading.model, heading.version)
        self.statistics.answered(
            heading.model,
            heading.version,
            heading.rows,
            at_ms=time.time_ns() // 1_000_000,
            total_ns=total_ns,
            queue_ns=0,
            infer_ns=total_ns,
        )
        if self._tracing and client.span is not None:
            outcome = "late" if now_ns > client.due_ns else "on_time"
            self._tracing.request_ended(client.span, outcome, at_ns=now_ns)

    @isolated
    def graph_failed(self, client: PendingRequest, failure: RequestFailed | None) -> None:
        """Record a failed request whose graph ran in stages; `failure`: None if its client left."""
        model = client.envelope.model
        if failure is None:
            self.metrics.graph_cancelled(model)
            self.failed(client, "CANCELED", "cancelled")
        else:
            self.metrics.graph_failed(model, failure.reason)
            self.failed(client, failure.category, failure.outcome)

    @isolated
    def passed_through(
        self,
        model: str,
        version: str,
        *,
        rows: int,
        sent_ns: int,
        ok: bool,
        wanted: Collection[str] = (),
        is_compared: bool = True,
    ) -> None:
        """Record the response to a request that was not scheduled.

        Args:
            model: its model.
            version: its version; "": the latest.
            rows: its rows.
            sent_ns: instant of sending.
            ok: whether it succeeded.
            wanted: outputs that it names.
            is_compared: whether shadow mode and canary compare it.
        """
        total_ns = time.monotonic_ns() - sent_ns
        self.metrics.passed_through(model, ok=ok)
        self.statistics.passed_through(
            model,
            version,
            ok=ok,
            at_ms=time.time_ns() // 1_000_000,
            total_ns=total_ns,
            rows=rows,
            wanted=wanted,
        )
        for watcher in self._watchers if is_compared else ():
            watcher(model, sent_ns, total_ns, ok)

    @isolated
    def passed_on(self, client: PendingRequest) -> None:
        """Record that a request was bypassed after it had been accepted for scheduling."""
        if self._tracing and client.span is not None:
            self._tracing.request_ended(client.span, "passed_through", at_ns=time.monotonic_ns())

    @isolated
    def close(self) -> None:
        """Flush the traces."""
        if self._tracing:
            self._tracing.close()
