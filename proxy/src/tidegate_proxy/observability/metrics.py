"""What became of requests, batches and workers: plain numbers, counted on the hot path, read when somebody asks.

Nothing here knows Prometheus: `metrics_registry` turns a snapshot of these numbers into metrics, so that an event costs
a few additions and no look-up of labels.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tidegate.api import (
    Advise,
    AnyEvent,
    BatchFailed,
    ClockAdvanced,
    Drop,
    LegFinished,
    PlanChanged,
    Request,
    RequestArrived,
    RequestCancelled,
    Setup,
    Worker,
    WorkerJoined,
    WorkerLost,
    ms_to_ns,
)
from tidegate.engine import AnyEffect, EngineRestarted, Fail, ObserverRemoved, PolicyReplaced, StartLeg

LATENCY_BOUNDS_NS = tuple(
    map(
        ms_to_ns, (0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 750, 1000, 2000, 5000, 10_000)
    )
)
"""Upper ends of the classes of queue times and latencies; dense where SLOs are."""
DECISION_BOUNDS_NS = tuple(map(ms_to_ns, (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 100)))
MAX_REASONS = 32
OTHER_REASONS = "other"
"""What drops are counted as once a policy has given more reasons than that: each is a time series."""


MAX_SHAPES = 32
OTHER_SHAPES = "other"
"""What requests are counted as once those of a model have had more shapes than that: clients choose them."""


class Times:
    """Durations, counted in classes."""

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

    def copy(self) -> "Times":
        """The same numbers, which stay as they are."""
        same = Times(self.bounds_ns)
        same.counts, same.sum_ns = self.counts.copy(), self.sum_ns
        return same


@dataclass(slots=True)
class ModelCounts:
    """What became of the requests of one model."""

    queued: Times = field(default_factory=lambda: Times(LATENCY_BOUNDS_NS))
    """From arrival until the first leg starts; once more for a request that is tried again."""
    answered: Times = field(default_factory=lambda: Times(LATENCY_BOUNDS_NS))
    """From arrival to the end of the last leg."""
    batch_rows: Counter[int] = field(default_factory=Counter)
    batch_requests: Counter[int] = field(default_factory=Counter)
    in_time: int = 0
    late: int = 0
    failed: int = 0
    cancelled: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """By reason."""
    shapes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By what varies in the tensors of requests, where anything does: how many were answered, and the sum of their
    latencies in nanoseconds."""

    def answered_of(self, shape: str, requests: int, sum_ns: int) -> None:
        """Count requests of one shape that were answered, with the sum of their latencies."""
        if shape not in self.shapes and len(self.shapes) >= MAX_SHAPES:
            shape = OTHER_SHAPES
        before, before_ns = self.shapes.get(shape, (0, 0))
        self.shapes[shape] = before + requests, before_ns + sum_ns

    def copy(self) -> "ModelCounts":
        """The same numbers, which stay as they are."""
        return ModelCounts(
            self.queued.copy(),
            self.answered.copy(),
            self.batch_rows.copy(),
            self.batch_requests.copy(),
            self.in_time,
            self.late,
            self.failed,
            self.cancelled,
            self.dropped.copy(),
            self.shapes.copy(),
        )


@dataclass(slots=True)
class WorkerCounts:
    """One worker, by its name."""

    name: str
    up: bool = True
    busy_ns: int = 0
    until_ns: int = 0
    """When the latest leg ended."""

    def ran(self, started_ns: int, ended_ns: int) -> None:
        """A leg was sent and ended; where it waited for another, it ran when that had ended."""
        self.busy_ns += max(0, ended_ns - max(started_ns, self.until_ns))
        self.until_ns = max(ended_ns, self.until_ns)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The numbers at one instant."""

    models: dict[str, ModelCounts]
    waiting: Counter[str]
    """Requests that wait, by model: for a batch, or between two legs for the next worker."""
    workers: list[WorkerCounts]
    decisions: Times
    advised: int
    """Workers to add; below zero: to release."""
    advised_at_ns: int | None
    policies_replaced: int
    refused: Counter[tuple[str, str]]
    observers_removed: int
    engine_restarts: int


class Metrics:
    """Follows one engine. Its driver calls `handled` after every `Engine.handle`."""

    def __init__(self, setup: Setup) -> None:
        self._models = {model.name: ModelCounts() for model in setup.models}
        self._workers = {worker.id: WorkerCounts(worker.name) for worker in setup.workers}
        self._open: dict[int, Request] = {}
        self._running: dict[int, StartLeg] = {}
        """By batch."""
        self.refused: Counter[tuple[str, str]] = Counter()
        """Requests that found the queues full, by model and by what they were full of."""
        self._decisions = Times(DECISION_BOUNDS_NS)
        self._advised = 0
        self._advised_at_ns: int | None = None
        self._policies_replaced = 0
        self._observers_removed = 0
        self._engine_restarts = 0

    def handled(self, event: AnyEvent, effects: Iterable[AnyEffect], decision_ns: int) -> None:
        """Count what happened and what the engine made of it; `decision_ns` is the time that `handle` took."""
        self._decisions.add(decision_ns)
        kind = type(event)
        if kind is RequestArrived:
            self._open[event.request.id] = event.request  # type: ignore[union-attr]  # a match costs more
        elif kind is LegFinished:
            self._finish_leg(event)  # type: ignore[arg-type]
        elif kind is not ClockAdvanced:
            self._take_in_rare(event)
        for effect in effects:
            if type(effect) is StartLeg:
                self._start_leg(effect, event.now_ns)
            else:
                self._take_in_effect(effect, event.now_ns)

    def snapshot(self) -> Snapshot:
        """A copy of all numbers. Call it under the lock; it takes some microseconds per model and open request."""
        underway = {request_id for start in self._running.values() for request_id in start.batch.request_ids}
        return Snapshot(
            models={name: counts.copy() for name, counts in self._models.items()},
            waiting=Counter(request.model for request in self._open.values() if request.id not in underway),
            workers=[WorkerCounts(worker.name, worker.up, worker.busy_ns) for worker in self._workers.values()],
            decisions=self._decisions.copy(),
            advised=self._advised,
            advised_at_ns=self._advised_at_ns,
            policies_replaced=self._policies_replaced,
            refused=self.refused.copy(),
            observers_removed=self._observers_removed,
            engine_restarts=self._engine_restarts,
        )

    def _start_leg(self, effect: StartLeg, now_ns: int) -> None:
        batch = effect.batch
        self._running[batch.id] = effect
        if effect.leg:
            return
        model = self._models[batch.model]
        model.batch_rows[effect.rows] += 1
        model.batch_requests[len(batch.request_ids)] += 1
        add, requests = model.queued.add, self._open
        for request_id in batch.request_ids:
            if request := requests.get(request_id):
                add(now_ns - request.arrival_ns)

    def _finish_leg(self, event: LegFinished) -> None:
        start = self._running.get(event.batch_id)
        if start is None or start.leg != event.leg:
            return  # a straggler of a batch that was given up
        del self._running[event.batch_id]
        ended_ns = event.ended_ns
        self._workers[event.worker_id].ran(event.started_ns, ended_ns)
        batch = start.batch
        if event.leg + 1 == len(batch.legs):
            self._answer(self._models[batch.model], batch.request_ids, ended_ns)

    def _answer(self, model: ModelCounts, request_ids: Iterable[int], ended_ns: int) -> None:
        add, take = model.answered.add, self._open.pop
        late = answered = sum_ns = 0
        shape = ""  # equal for all requests of a batch
        for request_id in request_ids:
            if request := take(request_id, None):
                latency_ns = ended_ns - request.arrival_ns
                add(latency_ns)
                answered += 1
                late += ended_ns > request.deadline_ns
                sum_ns += latency_ns
                shape = request.shape
        model.late += late
        model.in_time += answered - late
        if shape:
            model.answered_of(shape, answered, sum_ns)

    def _take_in_rare(self, event: AnyEvent) -> None:
        match event:
            case RequestCancelled():
                if request := self._open.pop(event.request_id, None):
                    self._models[request.model].cancelled += 1
            case BatchFailed():
                self._running.pop(event.batch_id, None)
            case WorkerJoined():
                self._lose(event.worker.id)  # it was away, though nobody noticed
                self._join(event.worker)
            case WorkerLost():
                self._lose(event.worker_id)
            case PlanChanged():
                self._change_plan(event)

    def _change_plan(self, event: PlanChanged) -> None:
        for model in event.models:
            self._models.setdefault(model.name, ModelCounts())
        wanted = {worker.id for worker in event.workers}
        for worker_id, worker in self._workers.items():
            worker.up = worker.up and worker_id in wanted
        for each in event.workers:
            self._join(each)

    def _join(self, worker: Worker) -> None:
        known = self._workers.setdefault(worker.id, WorkerCounts(worker.name))
        known.name, known.up = worker.name, True

    def _lose(self, worker_id: int) -> None:
        if worker := self._workers.get(worker_id):
            worker.up = False
        self._running = {
            batch_id: start
            for batch_id, start in self._running.items()
            if start.batch.legs[start.leg].worker_id != worker_id
        }

    def _take_in_effect(self, effect: AnyEffect, now_ns: int) -> None:
        match effect:
            case Drop():
                if request := self._open.pop(effect.request_id, None):
                    dropped = self._models[request.model].dropped
                    known = effect.reason in dropped or len(dropped) < MAX_REASONS
                    dropped[effect.reason if known else OTHER_REASONS] += 1
            case Fail():
                if request := self._open.pop(effect.request_id, None):
                    # A driver may hand in what no worker hosts and the engine refuses.
                    self._models.setdefault(request.model, ModelCounts()).failed += 1
            case Advise():
                self._advised, self._advised_at_ns = effect.workers, now_ns
            case PolicyReplaced():
                self._policies_replaced += 1
            case ObserverRemoved():
                self._observers_removed += 1
            case EngineRestarted():
                self._engine_restarts += 1
                for request in self._open.values():
                    self._models.setdefault(request.model, ModelCounts()).failed += 1
                self._open, self._running = {}, {}
