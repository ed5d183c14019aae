"""Rolling figures: what happened in the last seconds, from what was noted tick by tick."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tidegate.api import NEVER, NS_PER_MS, Request, Worker
from tidegate.observation.reducer import SentLeg
from tidegate_proxy.live_page.recent import Recent
from tidegate_proxy.live_page.snapshot import Bad, LegBar, ModelRow, ShapeRow, WorkerRow, cut

NS_PER_S: Final = 1_000_000_000
NS_PER_US: Final = 1_000
WINDOW_NS: Final = 10 * NS_PER_S
"""What the figures of models and workers are of."""
SHAPES_NS: Final = 60 * NS_PER_S
BUCKET_NS: Final = 10 * NS_PER_S
"""Shapes are counted in so long pieces."""
WORST_NS: Final = 60 * NS_PER_S
MOST_SHAPES: Final = 200
"""Shapes of a piece beyond that are not counted apart: clients choose them."""
SHOWN_SHAPES, SHOWN_WORST, SHOWN_LEGS, SHOWN_MODELS, SHOWN_WORKERS = 40, 20, 1000, 100, 100
_ShapeKey = tuple[str, str, str, str, int]
"""Model, partition, shape, kind of worker, rows."""
_Ended = tuple[float, Request, str, int, str]
"""How bad it was that a request ended so: its outcome, when that was, and why."""
Latencies = npt.NDArray[np.int64]


class Legs(NamedTuple):
    """Legs that are over."""

    names: list[str]
    """The names of their models."""
    bars: list[LegBar]
    more: int
    """So many more are not shown."""


@dataclass(slots=True)
class _OfModel:
    """What became of a model's requests between two ticks."""

    ended: Counter[str] = field(default_factory=Counter)
    sizes: dict[int, int] = field(default_factory=dict)
    noted_ns: list[int] = field(default_factory=list)
    latencies_ns: Latencies = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """The same, once all of the tick are noted."""


@dataclass(slots=True)
class _OfShape:
    legs: int = 0
    planned_ns: int = 0
    took_ns: int = 0
    over: int = 0


@dataclass(slots=True)
class _Tick:
    """What happened between two ticks."""

    at_ns: int
    models: dict[str, _OfModel] = field(default_factory=dict)
    busy_ns: dict[int, int] = field(default_factory=dict)
    """How long each worker was busy, by its id."""

    def of(self, model: str) -> _OfModel:
        known = self.models.get(model)
        if known is None:
            known = self.models[model] = _OfModel()
        return known


class Figures:
    """Takes in what was noted since the tick before; tells the figures of the window that ends with it."""

    def __init__(self, base_ns: int) -> None:
        """`base_ns`: the instant from which milliseconds count, and before which nobody looked."""
        self._base_ns = base_ns
        self._ticks: deque[_Tick] = deque()
        self._shapes: deque[tuple[int, dict[_ShapeKey, _OfShape]]] = deque()
        """Since when a piece counts, and what is in it."""
        self._worst: deque[tuple[int, list[tuple[float, Bad]]]] = deque()
        self._now_ns = base_ns
        self._kinds: dict[int, str] = {}
        """The kind of each worker, by id."""
        self._lanes: dict[int, int] = {}
        """The id under which each worker is shown, by its id: a plan that changes what it hosts gives it another."""
        self._lane_named: dict[str, int] = {}

    def ms(self, at_ns: int) -> float:
        """An instant, from the base on."""
        return round((at_ns - self._base_ns) / NS_PER_MS, 3)

    def know(self, workers: Iterable[Worker]) -> None:
        """These are the workers now; those that were there before may still have run something of the window."""
        for worker in workers:
            self._kinds[worker.id] = worker.kind
            self._lanes[worker.id] = self._lane_named.setdefault(worker.name, worker.id)

    def _lane(self, worker_id: int) -> int:
        return self._lanes.get(worker_id, worker_id)

    def take(self, recent: Recent, now_ns: int) -> Legs:
        """Take in what was noted until now; the legs of it."""
        tick = _Tick(now_ns)
        legs = self._legs(tick, recent, now_ns)
        self._worst.append((now_ns, self._worst_of(tick, recent)))
        for of_model in tick.models.values():
            of_model.latencies_ns = np.array(of_model.noted_ns, dtype=np.int64)
            of_model.noted_ns = []
        self._ticks.append(tick)
        recent.clear()
        self._now_ns = now_ns
        self._forget(now_ns)
        return legs

    def _legs(self, tick: _Tick, recent: Recent, now_ns: int) -> Legs:
        first = max(0, len(recent.legs) - SHOWN_LEGS)
        bars, names, lanes = [], dict[str, int](), self._lanes
        shapes, kinds, base_ns, busy_ns = self._shapes_now(now_ns), self._kinds, self._base_ns, tick.busy_ns
        for number, (effect, started_ns, ended_ns) in enumerate(recent.legs):
            batch, rows = effect.batch, effect.rows
            leg = batch.legs[effect.leg]
            worker_id, planned_ns, took_ns = leg.worker_id, leg.duration_ns, ended_ns - started_ns
            lane = lanes.get(worker_id, worker_id)
            busy_ns[lane] = busy_ns.get(lane, 0) + took_ns
            if not effect.leg:
                sizes = tick.of(batch.model).sizes
                sizes[rows] = sizes.get(rows, 0) + 1
            key = (batch.model, leg.partition, effect.shape, kinds.get(worker_id, ""), rows)
            of_shape = shapes.get(key)
            if of_shape is None:
                of_shape = _OfShape()
                if len(shapes) < MOST_SHAPES:
                    shapes[key] = of_shape
            of_shape.legs += 1
            of_shape.planned_ns += planned_ns
            of_shape.took_ns += took_ns
            of_shape.over += took_ns > planned_ns
            if number >= first:
                bars.append(
                    LegBar(
                        lane,
                        names.setdefault(batch.model, len(names)),
                        (started_ns - base_ns) // NS_PER_US,
                        took_ns // NS_PER_US,
                        planned_ns // NS_PER_US,
                        rows,
                        len(batch.request_ids),
                        batch.id,
                        batch.request_ids[0],
                    )
                )
        return Legs([cut(name) for name in names], bars, first)

    def _worst_of(self, tick: _Tick, recent: Recent) -> list[tuple[float, Bad]]:
        """The requests that ended worst, with how bad that is; on the way all that ended are counted.

        Failed is worse than dropped, that than late, and that than in time; then how much of its time one took counts.
        """
        ended = [*self._answered(tick, recent), *self._lost(tick, recent)]
        return [(each[0], self._bad(*each[1:])) for each in nlargest(SHOWN_WORST, ended, key=itemgetter(0))]

    def _answered(self, tick: _Tick, recent: Recent) -> Iterator[_Ended]:
        for batch, requests, ended_ns in recent.answered_batches:
            if not requests:
                continue
            of_model = tick.of(batch.model)
            of_model.noted_ns += [ended_ns - request.arrival_ns for request in requests]
            late = [request for request in requests if ended_ns > request.deadline_ns]
            if late:
                of_model.ended["late"] += len(late)
                for request in late[:SHOWN_WORST]:
                    yield 1.0 + _used(request, ended_ns), request, "late", ended_ns, ""
            of_model.ended["in time"] += len(requests) - len(late)
            if not late:  # mostly that which came first is the closest
                yield _used(requests[0], ended_ns), requests[0], "in time", ended_ns, ""

    def _lost(self, tick: _Tick, recent: Recent) -> Iterator[_Ended]:
        for ended_ns, request, how, reason in recent.lost:
            tick.of(request.model).ended[how] += 1
            if how != "cancelled":
                yield (3.0 if how == "failed" else 2.0) + _used(request, ended_ns), request, how, ended_ns, reason

    def _bad(self, request: Request, outcome: str, ended_ns: int, reason: str) -> Bad:
        is_timed = request.deadline_ns != NEVER and outcome in ("late", "in time")
        return Bad(
            request.id,
            cut(request.model),
            outcome,
            self.ms(ended_ns),
            round((ended_ns - request.arrival_ns) / NS_PER_MS, 3),
            round((ended_ns - request.deadline_ns) / NS_PER_MS, 3) if is_timed else None,
            cut(reason),
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
        """How long what is counted took: the window, or less where somebody began to look within it."""
        return max(1, min(WINDOW_NS, self._now_ns - self._base_ns))

    def models(self, slos_ms: Mapping[str, float | None], waiting: Mapping[str, int]) -> tuple[list[ModelRow], int]:
        """A row for each model that is known or was asked for, the busiest of them where there are many; how many more.

        `slos_ms`: the known ones; `waiting`: how many requests of each wait.
        """
        ticks: dict[str, list[_OfModel]] = {name: [] for name in slos_ms}
        for tick in self._ticks:
            for name, counted in tick.models.items():
                ticks.setdefault(name, []).append(counted)
        chosen = nlargest(SHOWN_MODELS, ticks, key=lambda name: sum(each.ended.total() for each in ticks[name]))
        rows = [self._model(name, ticks[name], slos_ms.get(name), waiting.get(name, 0)) for name in sorted(chosen)]
        return rows, len(ticks) - len(rows)

    def _model(self, name: str, ticks: Sequence[_OfModel], slo_ms: float | None, waiting: int) -> ModelRow:
        ended, sizes = Counter[str](), Counter[int]()
        for each in ticks:
            ended.update(each.ended)
            sizes.update(each.sizes)
        counted, batches = ended.total() - ended["cancelled"], sizes.total()
        p50_ms = p99_ms = None
        if ended["in time"] or ended["late"]:
            ns = np.concatenate([each.latencies_ns for each in ticks])
            p50_ms, p99_ms = (round(float(each) / NS_PER_MS, 3) for each in np.percentile(ns, (50, 99)))
        return ModelRow(
            name=cut(name),
            slo_ms=slo_ms,
            rate_rps=round(ended.total() / self.window_ns * NS_PER_S, 2),
            in_time=ended["in time"] / counted if counted else None,
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
        self, workers: Sequence[tuple[Worker, str]], sent: Mapping[int, SentLeg]
    ) -> tuple[list[WorkerRow], int]:
        """A row for each worker, which come with their states; `sent`: the legs that run or are on their way."""
        busy_ns: Counter[int] = Counter()
        for tick in self._ticks:
            busy_ns.update(tick.busy_ns)
        running: Counter[int] = Counter()
        for leg in sent.values():
            lane = self._lane(leg.worker_id)
            if not running[lane]:
                busy_ns[lane] += min(self._now_ns - leg.sent_ns, self.window_ns)
            running[lane] += 1
        rows = [
            WorkerRow(
                lane,
                cut(worker.name),
                cut(worker.kind),
                state,
                round(min(1.0, busy_ns[lane] / self.window_ns), 4),
                running[lane],
            )
            for worker, state in workers[:SHOWN_WORKERS]
            for lane in [self._lane(worker.id)]
        ]
        return rows, len(workers) - len(rows)

    def shapes(self) -> list[ShapeRow]:
        """Planned against actual, of the most frequent shapes and sizes."""
        together: dict[_ShapeKey, _OfShape] = {}
        for _, piece in self._shapes:
            for key, counted in piece.items():
                total = together.setdefault(key, _OfShape())
                total.legs += counted.legs
                total.planned_ns += counted.planned_ns
                total.took_ns += counted.took_ns
                total.over += counted.over
        return [
            ShapeRow(
                cut(model),
                cut(partition),
                cut(shape),
                cut(kind),
                rows,
                total.legs,
                round(total.planned_ns / total.legs / NS_PER_MS, 3),
                round(total.took_ns / total.legs / NS_PER_MS, 3),
                round(total.over / total.legs, 4),
            )
            for model, partition, shape, kind, rows in sorted(
                nlargest(SHOWN_SHAPES, together, key=lambda key: together[key].legs)
            )
            for total in [together[model, partition, shape, kind, rows]]
        ]

    def worst(self) -> list[Bad]:
        """The requests of the last minute that ended worst."""
        found = (each for _, of_tick in self._worst for each in of_tick)
        return [bad for _, bad in nlargest(SHOWN_WORST, found, key=lambda each: each[0])]


def _used(request: Request, ended_ns: int) -> float:
    """How much of its time a request took, from 0 to 1 for ever; half of that is all of it."""
    latency_ns = ended_ns - request.arrival_ns
    allowed_ns = request.deadline_ns - request.arrival_ns if request.deadline_ns != NEVER else WORST_NS
    return latency_ns / max(1, latency_ns + allowed_ns)
