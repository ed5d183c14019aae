"""Counts the outcomes of requests, batches and workers, and writes traces.

The engine's reducer tells of requests and stages, the driver of clients. All of it is called on the hot path, raises
nothing, and is kept in three accounts: `Metrics` (what `metrics_registry` turns into Prometheus'), `ModelStatistics`
(the numbers that Triton keeps per model and version: a Triton counts the merged batches it runs, clients expect one
success per request of theirs, so these take the place of the Tritons' own) and spans (`tracing`).
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
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
from tidegate_proxy.messages.padding import PaddingPlan
from tidegate_proxy.messages.request import Client
from tidegate_proxy.observability.tracing import BatchSpan, RequestTracer

P = ParamSpec("P")
R = TypeVar("R")


def isolated(method: Callable[P, R]) -> Callable[P, R | None]:
    """A method of those who look on: what it raises is reported as a fault, and None its result."""

    @wraps(method)
    def quiet(*arguments: P.args, **options: P.kwargs) -> R | None:
        try:
            return method(*arguments, **options)
        except Exception as error:
            faults.report(f"observability ({method.__name__})", error)
            return None

    return quiet


FAILURE_REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
"""Triton's: refused or timed out in the queue, cancelled by the client, the model failed, anything else."""


@dataclass(slots=True)
class RequestCounts:
    """Counts of clients' requests to one model version. Sums of durations cover the successes."""

    rows: int = 0
    """The rows of the successes: Triton's inference_count."""
    executions: int = 0
    last_ms: int = 0
    """When the last one was answered, in milliseconds since the epoch; 0: never."""
    successes: int = 0
    success_ns: int = 0
    queue_ns: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """How many failed, by one of FAILURE_REASONS."""
    failure_ns: int = 0


class ModelStatistics:
    """Counts requests to the scheduled models.

    A request to a model or version that was not declared is not counted: its Triton counts it, or refuses it.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], RequestCounts] = {}
        self._versions: dict[str, tuple[str, ...]] = {}
        """The latest declaration of each model, most recent last."""
        self._members: dict[str, tuple[tuple[str, str], ...]] = {}

    def declare(self, model: str, versions: Iterable[str]) -> None:
        """Say which versions of a scheduled model are loaded; those that were before keep their counts."""
        loaded, before = tuple(sorted(versions, key=by_number)), self._versions.get(model, ())
        if loaded == before:
            return
        self._versions[model] = loaded
        for version in before:
            if version not in loaded:
                del self._counts[model, version]
        for version in loaded:
            self._counts.setdefault((model, version), RequestCounts())

    def declare_ensemble(self, model: str, members: Iterable[tuple[str, str]]) -> None:
        """Say which models (name, version, "" for the latest) a request to an ensemble runs inside Triton.

        perf_analyzer wants the counts of all of them to move. How long each took only Triton knows: their times stay
        with the ensemble.
        """
        self._members[model] = tuple(members)

    def latest(self, model: str) -> str | None:
        """The version that answers where a request names none; None for a model that was not declared."""
        versions = self._versions.get(model)
        return versions[-1] if versions else None

    def answered(
        self,
        model: str,
        version: str,
        rows: int,
        *,
        requests: int = 1,
        at_ms: int,
        total_ns: int,
        queue_ns: int,
        infer_ns: int,
        input_ns: int = 0,
        output_ns: int = 0,
    ) -> None:
        """Requests, one or those of a batch, were answered `at_ms` since the epoch; rows and durations are their sums.

        From its arrival each took `total_ns`, waited `queue_ns`; its batch took `input_ns` to gather, `infer_ns` on
        Triton, `output_ns` to divide.
        """
        if (counts := self._find(model, version)) is None:
            return
        counts.rows += rows
        counts.last_ms = max(counts.last_ms, at_ms)
        counts.successes += requests
        counts.success_ns += total_ns
        counts.queue_ns += queue_ns
        counts.input_ns += input_ns
        counts.infer_ns += infer_ns
        counts.output_ns += output_ns

    def failed(self, model: str, version: str, reason: str, total_ns: int) -> None:
        """A request was refused, or failed; `reason` is one of FAILURE_REASONS."""
        if counts := self._find(model, version):
            counts.failures[reason] += 1
            counts.failure_ns += total_ns

    def executed(self, model: str, version: str) -> None:
        """A Triton ran a batch, or refused it."""
        if counts := self._find(model, version):
            counts.executions += 1

    def passed_through(self, model: str, version: str, *, ok: bool, at_ms: int, total_ns: int, rows: int = 1) -> None:
        """A request went to Triton as it was and is answered: all of its time counts as inference."""
        self.executed(model, version)
        if not ok:
            self.failed(model, version, "BACKEND", total_ns)
            return
        self.answered(model, version, rows, at_ms=at_ms, total_ns=total_ns, queue_ns=0, infer_ns=total_ns)
        for member, of_version in self._members.get(model, ()):
            self.passed_through(member, of_version, ok=True, at_ms=at_ms, total_ns=0, rows=rows)

    def snapshot(self) -> dict[tuple[str, str], RequestCounts]:
        """The numbers now, by (model, version)."""
        return {key: replace(counts, failures=counts.failures.copy()) for key, counts in self._counts.items()}

    def _find(self, model: str, version: str) -> RequestCounts | None:
        return self._counts.get((model, version or self.latest(model) or ""))


def by_number(version: str) -> tuple[int, str]:
    """To sort versions by: 10 comes after 9."""
    return (int(version) if version.isdecimal() else -1, version)


LATENCY_BOUNDS_NS = tuple(
    map(
        ms_to_ns, (0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 750, 1000, 2000, 5000, 10_000)
    )
)
"""Upper ends of the classes of queue times and latencies; dense where SLOs are."""
SLACK_BOUNDS_NS = tuple(map(ms_to_ns, (0, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 50, 100, 200, 500, 1000, 5000)))
"""Upper ends of the classes of slack; what is below zero is late as planned."""
_OF_WORKERS = frozenset({WorkerJoined, WorkerLost, TopologyChanged})
DECISION_BOUNDS_NS = tuple(map(ms_to_ns, (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 100)))
MAX_REASONS = 32
OTHER_REASONS = "other"
"""Reason under which drops are counted once a policy has given too many reasons: each is a time series."""


MAX_SHAPES = 32
OTHER_SHAPES = "other"
"""Shape under which requests are counted once a model has had too many shapes: clients choose them."""


class DurationHistogram:
    """Histogram of durations in seconds."""

    __slots__ = ("bounds_ns", "counts", "sum_ns")

    def __init__(self, bounds_ns: Sequence[int]) -> None:
        self.bounds_ns = bounds_ns
        self.counts = [0] * (len(bounds_ns) + 1)
        """The last: above every bound."""
        self.sum_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds_ns, duration_ns)] += 1
        self.sum_ns += duration_ns

    def copy(self) -> "DurationHistogram":
        """The same numbers, which stay as they are."""
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
    """How long before the first deadline of its requests a batch was planned to end."""
    stages: dict[str, StageTimes] = field(default_factory=dict)
    """Latency of stages by shape; empty if nothing varies."""
    queued: DurationHistogram = field(default_factory=lambda: DurationHistogram(LATENCY_BOUNDS_NS))
    """From arrival until the first stage starts; once more for a request that is tried again."""
    answered: DurationHistogram = field(default_factory=lambda: DurationHistogram(LATENCY_BOUNDS_NS))
    """From arrival to the end of the last stage."""
    batch_rows: Counter[int] = field(default_factory=Counter)
    batch_requests: Counter[int] = field(default_factory=Counter)
    rows: Counter[int] = field(default_factory=Counter)
    """How many requests of how many rows were answered."""
    on_time: int = 0
    late: int = 0
    failed: int = 0
    cancelled: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """How many were dropped, by reason."""
    padded_rows: int = 0
    """Rows of requests that ran padded; once more for one that is tried again."""
    sent_elements: int = 0
    """How many elements their padded inputs had as they came."""
    added_elements: int = 0
    """How many were added to them."""
    shapes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """How many were answered, and the sum of their latencies in ns, by what varies in tensors, where anything does."""

    def answered_of(self, shape: str, requests: int, sum_ns: int) -> None:
        """Count requests of one shape that were answered, with the sum of their latencies."""
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

    def copy(self) -> "ModelCounts":
        """The same numbers, which stay as they are."""
        return ModelCounts(
            self.slo_ns,
            self.slack.copy(),
            {shape: StageTimes(each.count, each.upper_ns, each.taken_ns) for shape, each in self.stages.items()},
            self.queued.copy(),
            self.answered.copy(),
            self.batch_rows.copy(),
            self.batch_requests.copy(),
            self.rows.copy(),
            self.on_time,
            self.late,
            self.failed,
            self.cancelled,
            self.dropped.copy(),
            self.padded_rows,
            self.sent_elements,
            self.added_elements,
            self.shapes.copy(),
        )


@dataclass(slots=True)
class WorkerCounts:
    """One worker, by its name."""

    name: str
    up: bool = True
    busy_ns: int = 0
    """How long its stages ran, also those that failed."""


@dataclass(slots=True)
class ChangeTimes:
    """Durations of the layout changes with one outcome."""

    count: int = 0
    sum_ns: int = 0


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """The numbers at one instant."""

    models: dict[str, ModelCounts]
    waiting: Counter[str]
    """Requests that wait, by model: for a batch, or between two stages for the next worker."""
    workers: list[WorkerCounts]
    decisions: DurationHistogram
    advised: int
    """Workers to add; below zero: to release."""
    advised_at_ns: int | None
    policies_replaced: int
    policies_restored: int
    refused: Counter[tuple[str, str]]
    verified: Counter[tuple[str, str]]
    observers_removed: int
    engine_restarts: int
    changes: Counter[str]
    """How many changes of the layout have reached which state; a state that begins a change among them."""
    change_times: dict[str, ChangeTimes]
    """From their beginning, by how they ended: done or undone."""
    layout_gpus: float | None
    """How many GPUs the layout in force takes; None: nobody said so."""


class Metrics(OutcomeListener):
    """Follows one engine: its reducer tells of requests and stages, and its driver calls `handled` after
    `Engine.handle`.

    What is told by the reducer is taken in quietly: a broken metric must not break an engine.
    """

    def __init__(self, setup: Setup, reducer: Reducer, layout_gpus: float | None = None) -> None:
        """`reducer`: the engine's own, so that nothing is kept twice. `layout_gpus`: what the first layout takes."""
        self._models = {model.name: ModelCounts(model.slo_ns) for model in setup.models}
        self._workers = {worker.id: WorkerCounts(worker.name) for worker in setup.workers}
        self._reducer = reducer
        reducer.add_listener(self)
        self.refused: Counter[tuple[str, str]] = Counter()
        """Requests that found the queues full, by model and by what they were full of."""
        self.verified: Counter[tuple[str, str]] = Counter()
        """Verified batches, by model and result."""
        self._decisions = DurationHistogram(DECISION_BOUNDS_NS)
        self._advised = 0
        self._advised_at_ns: int | None = None
        self._policies_replaced = 0
        self._policies_restored = 0
        self._observers_removed = 0
        self._engine_restarts = 0
        self._changes: Counter[str] = Counter()
        self._change_times: dict[str, ChangeTimes] = {}
        self._change_began_ns = 0
        self.layout_gpus = layout_gpus
        """How many GPUs the layout in force takes; None: it is not known."""

    def handled(self, event: AnyStimulus, effects: Sequence[AnyEffect], decision_ns: int) -> None:
        """Count what happened and what the engine made of it; `decision_ns` is the time that `handle` took."""
        self._decisions.add(decision_ns)
        if type(event) in _OF_WORKERS:
            self._take_in_workers(event)
        for effect in effects:
            if type(effect) is not StartStage:
                self._take_in_effect(effect)

    def padded(self, model: str, rows: int, padded: PaddingPlan) -> None:
        """A request of a model begins to run, padded."""
        counts = self._of(model)
        counts.padded_rows += rows
        counts.sent_elements += padded.sent
        counts.added_elements += padded.added

    def sent_ns(self, batch_id: int) -> int | None:
        """When the stage of a batch that runs was sent, as all figures have it; None for a batch of which none runs."""
        sent = self._reducer.sent.get(batch_id)
        return sent.sent_ns if sent else None

    def on_time(self) -> dict[str, tuple[int, int]]:
        """How many requests of each model were answered on time, and how many were to be."""
        return {
            name: (counts.on_time, counts.on_time + counts.late + counts.failed + counts.dropped.total())
            for name, counts in self._models.items()
        }

    def snapshot(self) -> MetricsSnapshot:
        """A copy of all numbers. Call it under the lock; it takes some microseconds per model and open request."""
        return MetricsSnapshot(
            models={name: counts.copy() for name, counts in self._models.items()},
            waiting=self._reducer.waiting(),
            workers=[WorkerCounts(worker.name, worker.up, worker.busy_ns) for worker in self._workers.values()],
            decisions=self._decisions.copy(),
            advised=self._advised,
            advised_at_ns=self._advised_at_ns,
            policies_replaced=self._policies_replaced,
            policies_restored=self._policies_restored,
            refused=self.refused.copy(),
            verified=self.verified.copy(),
            observers_removed=self._observers_removed,
            engine_restarts=self._engine_restarts,
            changes=self._changes.copy(),
            change_times={state: ChangeTimes(each.count, each.sum_ns) for state, each in self._change_times.items()},
            layout_gpus=self.layout_gpus,
        )

    # Requests and stages, as the reducer tells of them ---------------------------------------------------------------

    @isolated
    def joined(self, now_ns: int, effect: StartStage, requests: Sequence[Request]) -> None:
        """A batch began."""
        model = self._of(effect.batch.model)
        model.batch_rows[effect.rows] += 1
        model.batch_requests[len(effect.batch.request_ids)] += 1
        add, first_ns = model.queued.add, NEVER_NS
        for request in requests:
            add(now_ns - request.arrival_ns)
            first_ns = min(first_ns, request.deadline_ns)
        if first_ns != NEVER_NS:
            model.slack.add(first_ns - effect.batch.stages[-1].end_ns)

    @isolated
    def stage_ran(self, effect: StartStage, started_ns: int, ended_ns: int) -> None:
        """A stage is over."""
        stage = effect.batch.stages[effect.stage]
        if worker := self._workers.get(stage.worker_id):
            worker.busy_ns += ended_ns - started_ns
        self._of(effect.batch.model).stage_ran(effect.shape, stage.duration_ns, ended_ns - started_ns)

    @isolated
    def answered(self, batch: Batch, requests: Sequence[Request], ended_ns: int) -> None:
        """A batch is answered."""
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
        """A request was given up."""
        dropped = self._of(request.model).dropped
        known = reason in dropped or len(dropped) < MAX_REASONS
        dropped[reason if known else OTHER_REASONS] += 1

    @isolated
    def failed(self, now_ns: int, request: Request, reason: str) -> None:
        """A request has no answer."""
        self._of(request.model).failed += 1

    @isolated
    def cancelled(self, now_ns: int, request: Request) -> None:
        """A client left."""
        self._of(request.model).cancelled += 1

    @isolated
    def advised(self, now_ns: int, advice: Advise) -> None:
        """The policy wants more workers, or fewer."""
        self._advised, self._advised_at_ns = advice.workers, now_ns

    @isolated
    def change_progressed(self, event: ChangeProgressed) -> None:
        """A change of the layout reached a state."""
        self._changes[event.state] += 1
        self.layout_gpus = event.gpus
        if event.state == "starting":
            self._change_began_ns = event.now_ns
        elif event.state in {"done", "undone"}:
            times = self._change_times.setdefault(event.state, ChangeTimes())
            times.count += 1
            times.sum_ns += event.now_ns - self._change_began_ns

    def _of(self, model: str) -> ModelCounts:
        """The counts of a model; also of one that no worker hosts: the engine has refused the request."""
        counts = self._models.get(model)
        if counts is None:
            counts = self._models[model] = ModelCounts()
        return counts

    # Workers and the engine itself ---------------------------------------------------------------------------------

    def _take_in_workers(self, event: AnyStimulus) -> None:
        match event:
            case WorkerJoined():
                self._join(event.worker)
            case WorkerLost():
                if worker := self._workers.get(event.worker_id):
                    worker.up = False
            case TopologyChanged():
                self._change_plan(event)

    def _change_plan(self, event: TopologyChanged) -> None:
        for model in event.models:
            self._models.setdefault(model.name, ModelCounts()).slo_ns = model.slo_ns
        wanted = {worker.id for worker in event.workers}
        for worker_id, worker in self._workers.items():
            worker.up = worker.up and worker_id in wanted
        for each in event.workers:
            self._join(each)

    def _join(self, worker: Worker) -> None:
        known = self._workers.setdefault(worker.id, WorkerCounts(worker.name))
        known.name, known.up = worker.name, True

    def _take_in_effect(self, effect: AnyEffect) -> None:
        match effect:
            case PolicyReplaced():
                self._policies_replaced += 1
            case PolicyRestored():
                self._policies_restored += 1
            case ObserverRemoved():
                self._observers_removed += 1
            case EngineRestarted():
                self._engine_restarts += 1


PassedWatcher = Callable[[str, int, int, bool], None]
"""Called for each answer to a request that was not scheduled: model, when it was sent, how long it took, whether it
went well."""


class Observability:
    """Called on the hot path. Its methods raise nothing."""

    def __init__(
        self,
        setup: Setup,
        reducer: Reducer,
        tracing: RequestTracer | None = None,
        watchers: Sequence[PassedWatcher] = (),
        layout_gpus: float | None = None,
    ) -> None:
        """`reducer`: the engine's own. `watchers`: see `replace_watchers`. `layout_gpus`: GPUs of the first layout."""
        self.metrics = Metrics(setup, reducer, layout_gpus)
        self.statistics = ModelStatistics()
        self._watchers = tuple(watchers)
        self.traces = tracing is not None
        """Whether it wants to know of requests as they come."""
        self._tracing = tracing

    def replace_watchers(self, watchers: Sequence[PassedWatcher]) -> None:
        """Call others from now on for each answer to a request that was not scheduled."""
        self._watchers = tuple(watchers)

    @isolated
    def arrived(self, client: Client) -> None:
        """A request is to be scheduled; its metadata may continue a trace."""
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
    def batch_started(self, clients: Sequence[Client], effect: StartStage, worker: str, at_ns: int) -> BatchSpan | None:
        """A stage of a batch goes to a Triton; what it returns is given back to `batch_ended`."""
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
        """A batch is over that is traced."""
        if self._tracing:
            self._tracing.execution_ended(execution, at_ns=at_ns, error=error)

    @isolated
    def answered(self, clients: Sequence[Client], execution: BatchSpan | None, output_ns: int) -> None:
        """The clients of a batch have their answers; dividing the batch's took `output_ns`."""
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

    def _trace_answer(self, tracing: RequestTracer, client: Client, now_ns: int, execution: BatchSpan | None) -> None:
        if client.span is not None:
            outcome = "on_time" if client.ended_ns <= client.due_ns else "late"
            queue_ns = client.started_ns - client.arrival_ns
            tracing.request_ended(client.span, outcome, at_ns=now_ns, queue_ns=queue_ns, execution=execution)

    @isolated
    def failed(self, client: Client, reason: str, outcome: str) -> None:
        """A client got an error, or left. `reason`: one of FAILURE_REASONS; `outcome`: the trace's words for it."""
        heading, now_ns = client.envelope.heading, time.monotonic_ns()
        self.statistics.failed(heading.model, heading.version, reason, now_ns - client.arrival_ns)
        if self._tracing and client.span is not None:
            self._tracing.request_ended(client.span, outcome, at_ns=now_ns)

    @isolated
    def passed_through(self, model: str, version: str, *, rows: int, sent_ns: int, ok: bool) -> None:
        """A request that could not be scheduled has its answer."""
        total_ns = time.monotonic_ns() - sent_ns
        self.statistics.passed_through(
            model, version, ok=ok, at_ms=time.time_ns() // 1_000_000, total_ns=total_ns, rows=rows
        )
        for watcher in self._watchers:
            watcher(model, sent_ns, total_ns, ok)

    @isolated
    def passed_on(self, client: Client) -> None:
        """A request that was to be scheduled was answered by a Triton as it was."""
        if self._tracing and client.span is not None:
            self._tracing.request_ended(client.span, "passed_through", at_ns=time.monotonic_ns())

    @isolated
    def close(self) -> None:
        """Send what is left of the traces."""
        if self._tracing:
            self._tracing.close()
