"""Rolling figures of the last seconds, from the notes of each tick."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tidegate.api import NEVER_NS, NS_PER_MS, Worker
from tidegate.observation.reducer import SentStage
from tidegate_proxy.app.dashboard.snapshot import BadRequestRow, ModelRow, ShapeRow, StageBar, WorkerRow, cut
from tidegate_proxy.app.dashboard.tick_buffer import EndSort, Outcome, TickNotes

NS_PER_S: Final = 1_000_000_000
NS_PER_US: Final = 1_000
WINDOW_NS: Final = 10 * NS_PER_S
"""Length of the window of models' and workers' figures, in ns."""
SHAPES_NS: Final = 60 * NS_PER_S
BUCKET_NS: Final = 10 * NS_PER_S
"""Length of the buckets in which shapes are counted."""
WORST_NS: Final = 60 * NS_PER_S
MAX_SHAPES: Final = 200
"""Number of shapes counted separately per bucket, because clients choose shapes."""
SHOWN_SHAPES, SHOWN_WORST, SHOWN_STAGES, SHOWN_MODELS, SHOWN_WORKERS = 40, 20, 1000, 100, 100
_ShapeKey = tuple[str, str, str, str, int]
"""Model, partition, shape, device class, rows."""
_SEVERITY: Final[dict[Outcome, float]] = {"answered": 0.0, "dropped": 2.0, "failed": 3.0, "cancelled": -10.0}
"""How bad it is that a request ends so; 1: it was answered late."""
Latencies = npt.NDArray[np.int64]


class FinishedStages(NamedTuple):
    """Stages that ended within the window."""

    names: list[str]
    """Names of their models."""
    bars: list[StageBar]
    more: int
    """Number of stages that are not shown."""


@dataclass(slots=True)
class _OfModel:
    """Outcomes of a model's requests between two ticks."""

    ended: Counter[str] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)
    latencies_ns: Latencies = field(default_factory=lambda: np.empty(0, dtype=np.int64))


@dataclass(slots=True)
class _OfShape:
    stages: int = 0
    upper_ns: int = 0
    took_ns: int = 0
    over: int = 0

    def add(self, stages: int, upper_ns: int, took_ns: int, over: int) -> None:
        self.stages += stages
        self.upper_ns += upper_ns
        self.took_ns += took_ns
        self.over += over


@dataclass(slots=True)
class _Tick:
    """Stages and requests that ended between two ticks."""

    at_ns: int
    models: dict[str, _OfModel] = field(default_factory=dict)
    busy_ns: dict[int, int] = field(default_factory=dict)
    """How long each worker was busy, by its id."""

    def of(self, model: str) -> _OfModel:
        known = self.models.get(model)
        if known is None:
            known = self.models[model] = _OfModel()
        return known


class RollingFigures:
    """Rolling figures, updated from the notes of each tick, over the window that ends with it."""

    def __init__(self, base_ns: int) -> None:
        """Create empty figures. `base_ns`: instant from which milliseconds count; earlier data does not exist."""
        self._base_ns = base_ns
        self._ticks: deque[_Tick] = deque()
        self._shapes: deque[tuple[int, dict[_ShapeKey, _OfShape]]] = deque()
        """Since when a piece counts, and what is in it."""
        self._worst: deque[tuple[int, list[tuple[float, BadRequestRow]]]] = deque()
        self._now_ns = base_ns
        self._kinds: dict[int, str] = {}
        """The kind of each worker, by id."""
        self._lanes: dict[int, int] = {}
        """The id under which each worker is shown, by its id: a plan that changes what it hosts gives it another."""
        self._lane_named: dict[str, int] = {}

    def ms(self, at_ns: int) -> float:
        """Convert an instant to milliseconds since the base."""
        return round((at_ns - self._base_ns) / NS_PER_MS, 3)

    def know(self, workers: Iterable[Worker]) -> None:
        """Set the current workers; earlier ones may still have stages in the window."""
        for worker in workers:
            self._kinds[worker.id] = worker.device_class
            self._lanes[worker.id] = self._lane_named.setdefault(worker.name, worker.id)

    def _lane(self, worker_id: int) -> int:
        return self._lanes.get(worker_id, worker_id)

    def take(self, notes: TickNotes, now_ns: int) -> FinishedStages:
        """Add the notes taken since the last call to the figures; return their finished stages.

        `notes`: outcomes and stages; `now_ns`: time of this tick.
        """
        tick = _Tick(now_ns)
        self._count_stages(tick, notes, now_ns)
        self._count_ends(tick, notes)
        self._worst.append((now_ns, self._worst_of(notes)))
        self._ticks.append(tick)
        self._now_ns = now_ns
        self._forget(now_ns)
        return self._bars(notes)

    def _count_stages(self, tick: _Tick, notes: TickNotes, now_ns: int) -> None:
        shapes, stages, of_sort = self._shapes_now(now_ns), notes.stages, notes.stages["sort"]
        took_ns = stages["ended_ns"] - stages["started_ns"]
        sums = (
            np.bincount(of_sort, weights, len(notes.stage_sorts)).astype(np.int64).tolist()
            for weights in (None, stages["upper_ns"], took_ns, took_ns > stages["upper_ns"])
        )
        for sort, count, upper_ns, took, over in zip(notes.stage_sorts, *sums, strict=True):
            lane = self._lane(sort.worker_id)
            tick.busy_ns[lane] = tick.busy_ns.get(lane, 0) + took
            if not sort.stage:
                tick.of(sort.model).sizes[sort.rows] += count
            key = (sort.model, sort.partition, sort.shape, self._kinds.get(sort.worker_id, ""), sort.rows)
            if key in shapes or len(shapes) < MAX_SHAPES:
                shapes.setdefault(key, _OfShape()).add(count, upper_ns, took, over)

    def _count_ends(self, tick: _Tick, notes: TickNotes) -> None:
        of_sort = notes.ends["sort"]
        ends = notes.ends[np.argsort(of_sort, kind="stable")]
        until = np.bincount(of_sort, minlength=len(notes.end_sorts)).cumsum()
        for sort, those in zip(notes.end_sorts, np.split(ends, until), strict=False):
            of_model = tick.of(sort.model)
            if sort.outcome == "answered":
                of_model.latencies_ns = those["ended_ns"] - those["arrival_ns"]
                late = int(np.count_nonzero(those["ended_ns"] > those["deadline_ns"]))
                of_model.ended.update({"late": late, "on time": len(those) - late})
            else:
                of_model.ended[sort.outcome] += len(those)

    def _bars(self, notes: TickNotes) -> FinishedStages:
        first = max(0, len(notes.stages) - SHOWN_STAGES)
        stages, names = notes.stages[first:], dict[str, int]()
        lanes = [self._lane(sort.worker_id) for sort in notes.stage_sorts]
        models = [names.setdefault(sort.model, len(names)) for sort in notes.stage_sorts]
        rows = [sort.rows for sort in notes.stage_sorts]
        of_sort = np.array([lanes, models, rows], dtype=np.int64)[:, stages["sort"]]
        columns = (
            of_sort[0],
            of_sort[1],
            (stages["started_ns"] - self._base_ns) // NS_PER_US,
            (stages["ended_ns"] - stages["started_ns"]) // NS_PER_US,
            stages["upper_ns"] // NS_PER_US,
            of_sort[2],
            stages["requests"],
            stages["batch"],
            stages["request"],
        )
        bars = map(StageBar._make, np.column_stack(columns).tolist())
        return FinishedStages([cut(name) for name in names], list(bars), first)

    def _worst_of(self, notes: TickNotes) -> list[tuple[float, BadRequestRow]]:
        """The requests that ended worst, with how bad that is.

        Failed is worse than dropped, that than late, and that than on time; then how much of its time one took counts,
        from 0 to 1 for ever, and half of that is all of it. Cancelled ones have not ended badly.
        """
        ends = notes.ends
        latency_ns = (ends["ended_ns"] - ends["arrival_ns"]).astype(np.float64)
        timed = ends["deadline_ns"] != NEVER_NS
        allowed_ns = np.where(timed, ends["deadline_ns"] - ends["arrival_ns"], WORST_NS)
        severity = np.array([_SEVERITY[sort.outcome] for sort in notes.end_sorts], dtype=np.float64)[ends["sort"]]
        severity[(severity == 0.0) & (ends["ended_ns"] > ends["deadline_ns"])] = 1.0
        badness = severity + latency_ns / np.maximum(1.0, latency_ns + allowed_ns)
        worst = np.argsort(-badness, kind="stable")[:SHOWN_WORST].tolist()
        return [
            (float(badness[place]), self._bad(ends[place], notes.end_sorts[ends["sort"][place]]))
            for place in worst
            if badness[place] >= 0.0
        ]

    def _bad(self, end: np.void, sort: EndSort) -> BadRequestRow:
        request_id, arrival_ns, deadline_ns, ended_ns = end.tolist()[1:]
        answered = sort.outcome == "answered"
        return BadRequestRow(
            request_id,
            cut(sort.model),
            sort.outcome if not answered else "late" if ended_ns > deadline_ns else "on time",
            self.ms(ended_ns),
            round((ended_ns - arrival_ns) / NS_PER_MS, 3),
            round((ended_ns - deadline_ns) / NS_PER_MS, 3) if answered and deadline_ns != NEVER_NS else None,
            cut(sort.reason),
        )

    def _shapes_now(self, now_ns: int) -> dict[_ShapeKey, _OfShape]:
        if not self._shapes or now_ns - self._shapes[-1][0] >= BUCKET_NS:
            self._shapes.append((now_ns, {}))
        return self._shapes[-1][1]

    def _forget(self, now_ns: int) -> None:
        while self._ticks and self._ticks[0].at_ns <= now_ns - WINDOW_NS:
            self._ticks.popleft()
        while self._shapes and self._shapes[0][0] <= now_ns - SHAPES_NS:
            self._shapes.popleft()
        while self._worst and self._worst[0][0] <= now_ns - WORST_NS:
            self._worst.popleft()

    # What is shown ------------------------------------------------------------------------------------------------

    @property
    def window_ns(self) -> int:
        """Length of the window: full, or less shortly after the first viewer came."""
        return max(1, min(WINDOW_NS, self._now_ns - self._base_ns))

    def models(
        self,
        slos_ms: Mapping[str, float | None],
        waiting: Mapping[str, int],
        gaps_on_time: Mapping[str, float] = MappingProxyType({}),
    ) -> tuple[list[ModelRow], int]:
        """Return a row for each model that is known or was requested, the busiest ones, and how many are left out.

        `slos_ms`: SLOs by model; `waiting`: queued requests by model; `gaps_on_time`: fraction of streams that met the
        SLO of the time between their responses, by model.
        """
        ticks: dict[str, list[_OfModel]] = {name: [] for name in slos_ms}
        for tick in self._ticks:
            for name, counted in tick.models.items():
                ticks.setdefault(name, []).append(counted)
        chosen = nlargest(SHOWN_MODELS, ticks, key=lambda name: sum(each.ended.total() for each in ticks[name]))
        rows = [
            msgspec.structs.replace(
                self._model(name, ticks[name], slos_ms.get(name), waiting.get(name, 0)),
                gaps_on_time=gaps_on_time.get(name),
            )
            for name in sorted(chosen)
        ]
        return rows, len(ticks) - len(rows)

    def _model(self, name: str, ticks: Sequence[_OfModel], slo_ms: float | None, waiting: int) -> ModelRow:
        ended, sizes = Counter[str](), Counter[int]()
        for each in ticks:
            ended.update(each.ended)
            sizes.update(each.sizes)
        counted, batches = ended.total() - ended["cancelled"], sizes.total()
        p50_ms = p99_ms = None
        if ended["on time"] or ended["late"]:
            ns = np.concatenate([each.latencies_ns for each in ticks])
            p50_ms, p99_ms = (round(float(each) / NS_PER_MS, 3) for each in np.percentile(ns, (50, 99)))
        return ModelRow(
            name=cut(name),
            slo_ms=slo_ms,
            rate_rps=round(ended.total() / self.window_ns * NS_PER_S, 2),
            on_time=ended["on time"] / counted if counted else None,
            late=ended["late"],
            dropped=ended["dropped"],
            failed=ended["failed"],
            waiting=waiting,
            p50_ms=p50_ms,
            p99_ms=p99_ms,
            mean_rows=sum(rows * count for rows, count in sizes.items()) / batches if batches else None,
            sizes=dict(sorted(sizes.items())),
        )

    def workers(
        self, workers: Sequence[tuple[Worker, str]], sent: Mapping[int, SentStage]
    ) -> tuple[list[WorkerRow], int]:
        """Return a row for each worker. `workers`: with their states; `sent`: the stages that run or were sent."""
        busy_ns: Counter[int] = Counter()
        for tick in self._ticks:
            busy_ns.update(tick.busy_ns)
        running: Counter[int] = Counter()
        for stage in sent.values():
            lane = self._lane(stage.worker_id)
            if not running[lane]:
                busy_ns[lane] += min(self._now_ns - stage.sent_ns, self.window_ns)
            running[lane] += 1
        rows = [
            WorkerRow(
                lane,
                cut(worker.name),
                cut(worker.device_class),
                state,
                round(min(1.0, busy_ns[lane] / self.window_ns), 4),
                running[lane],
            )
            for worker, state in workers[:SHOWN_WORKERS]
            for lane in [self._lane(worker.id)]
        ]
        return rows, len(workers) - len(rows)

    def shapes(self) -> list[ShapeRow]:
        """Return predicted against actual latency, of the most frequent shapes and batch sizes."""
        together: dict[_ShapeKey, _OfShape] = {}
        for _, piece in self._shapes:
            for key, counted in piece.items():
                total = together.setdefault(key, _OfShape())
                total.add(counted.stages, counted.upper_ns, counted.took_ns, counted.over)
        return [
            ShapeRow(
                cut(model),
                cut(partition),
                cut(shape),
                cut(kind),
                rows,
                total.stages,
                round(total.upper_ns / total.stages / NS_PER_MS, 3),
                round(total.took_ns / total.stages / NS_PER_MS, 3),
                round(total.over / total.stages, 4),
            )
            for model, partition, shape, kind, rows in sorted(
                nlargest(SHOWN_SHAPES, together, key=lambda key: together[key].stages)
            )
            for total in [together[model, partition, shape, kind, rows]]
        ]

    def worst(self) -> list[BadRequestRow]:
        """Return the requests of the last minute with the worst outcome."""
        found = (each for _, of_tick in self._worst for each in of_tick)
        return [bad for _, bad in nlargest(SHOWN_WORST, found, key=lambda each: each[0])]
