"""History of the dashboard: outcomes, p99 and busy workers over time, for a running Tidegate and a recorded run.

A running Tidegate keeps the differences of its metrics' counters every few seconds, so that a request costs nothing
more, and an hour of them is there when the page opens. A recorded run is counted in intervals while it is read.
"""

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tidegate.api import NS_PER_MS, Batch, Request, Worker
from tidegate.observation import LogEntry, OutcomeListener, Reducer, StartStage
from tidegate_proxy.app.dashboard.snapshot import cut
from tidegate_proxy.observability.metrics import LATENCY_BOUNDS_NS, Metrics, ModelCounts

STEP_S: Final = 5.0
"""Seconds between two points of a running Tidegate."""
MAX_POINTS: Final = 720
"""Number of points of a running Tidegate: one hour."""
MAX_INTERVALS: Final = 240
"""Largest number of points of a recorded run; none covers less than a second."""
MIN_INTERVAL_NS: Final = 1_000_000_000
SHOWN_MODELS: Final = 12
"""Number of models with series of their own, those with the most requests; the others count in the total."""
LATENCY_QUANTILE: Final = 0.99
_COLUMNS: Final = ("on_time", "late", "dropped", "failed", "bypassed", "p99_ms")
_OUTCOMES: Final = 5
_ON_TIME, _LATE, _DROPPED, _FAILED, _BYPASSED = range(_OUTCOMES)
_COUNTS: Final = _OUTCOMES + len(LATENCY_BOUNDS_NS) + 1
_NS_PER_S: Final = 1_000_000_000
_Counts = npt.NDArray[np.int64]
"""Requests that ended, by outcome, and the latencies of the answered by bucket."""
_Columns = npt.NDArray[np.float32]


class OutcomeSeries(msgspec.Struct, frozen=True):
    """Series of one model, or of all: requests that ended per second, by outcome, and p99."""

    slo_ms: float | None
    on_time: list[float]
    late: list[float]
    dropped: list[float]
    failed: list[float]
    bypassed: list[float]
    """Requests that bypassed the scheduler, whatever their outcome; none in a recorded run."""
    p99_ms: list[float]
    """Latency of the answered, from the histogram's buckets; NaN (in JSON: null) where none was."""


class History(msgspec.Struct, frozen=True):
    """Series over time. All lists are equally long."""

    first: int
    """Number of the first point; the points of a source are numbered from 0."""
    at_s: list[float]
    """End of each point's interval: seconds since the epoch, or since the beginning of a recorded run."""
    total: OutcomeSeries
    models: dict[str, OutcomeSeries]
    more_models: int
    busiest: list[float]
    """Busy fraction of the busiest worker."""
    busiest_worker: list[str]
    busy: list[float]
    """Mean busy fraction of the workers."""
    read_ms: float = 0.0
    """Part of a recorded run that was read so far."""
    done: bool = True
    error: str = ""
    """Error that stopped reading a recorded run; "" if none."""


def _row(counts: _Counts, seconds: float, slo_ns: int | None) -> tuple[float, ...]:
    """Return the values of `_COLUMNS` for an interval of this length."""
    within = None if slo_ns is None else (slo_ns, int(counts[_ON_TIME]))
    return (*(counts[:_OUTCOMES] / seconds), quantile_ms(counts[_OUTCOMES:].tolist(), within))


def quantile_ms(buckets: Sequence[int], within: tuple[int, int] | None = None) -> float:
    """Return the 99th percentile of a latency histogram in ms, linear between the bounds; NaN if it is empty.

    `within`: a limit in ns, and how many took no longer. It splits the bucket in which it lies, so that the result is
    on the right side of an SLO.
    """
    wanted = LATENCY_QUANTILE * sum(buckets)
    if not wanted:
        return float("nan")
    bounds = [0, *LATENCY_BOUNDS_NS, LATENCY_BOUNDS_NS[-1]]
    parts = list(zip(pairwise(bounds), buckets, strict=True))
    if within:
        limit_ns, count = within
        place = bisect_left(LATENCY_BOUNDS_NS, limit_ns)
        (low, high), of_bucket = parts[place]
        below = min(of_bucket, max(0, count - sum(buckets[:place])))
        parts[place : place + 1] = [((low, limit_ns), below), ((limit_ns, max(limit_ns, high)), of_bucket - below)]
    for (low, high), of_bucket in parts:
        if of_bucket and wanted <= of_bucket:
            return (low + (high - low) * wanted / of_bucket) / NS_PER_MS
        wanted -= of_bucket
    return LATENCY_BOUNDS_NS[-1] / NS_PER_MS


class _Busy(NamedTuple):
    """Busy fraction of the busiest worker, its name, and the mean of all."""

    most: float
    worker: str
    mean: float


def _busy(names: Mapping[int, str], busy_ns: Mapping[int, int], span_ns: float) -> _Busy:
    shares = {worker: min(1.0, busy_ns.get(worker, 0) / span_ns) for worker in names}
    if not shares:
        return _Busy(float("nan"), "", float("nan"))
    busiest = max(shares, key=shares.__getitem__)
    return _Busy(shares[busiest], cut(names[busiest]), sum(shares.values()) / len(shares))


def _history(
    first: int,
    at_s: Sequence[float],
    total: _Columns,
    models: Mapping[str, _Columns],
    slos_ns: Mapping[str, int | None],
    busy: Iterable[_Busy],
    chosen: Sequence[str],
) -> History:
    def series(columns: _Columns, slo_ns: int | None) -> OutcomeSeries:
        values = [column.tolist() for column in np.round(columns.astype(np.float64), 3).T]
        return OutcomeSeries(None if slo_ns is None else slo_ns / NS_PER_MS, *values)

    most, workers, mean = zip(*busy, strict=True) if at_s else ((), (), ())
    return History(
        first,
        [round(each, 3) for each in at_s],
        series(total, None),
        {cut(name): series(models[name], slos_ns.get(name)) for name in sorted(chosen)},
        len(models) - len(chosen),
        [round(each, 4) for each in most],
        list(workers),
        [round(each, 4) for each in mean],
    )


def _most_requested(models: Mapping[str, _Columns]) -> list[str]:
    """Return the models with the most requests."""
    return sorted(models, key=lambda name: (-float(np.nansum(models[name][:, :-1])), name))[:SHOWN_MODELS]


class HistoryRing:
    """The last hour of a running Tidegate. Use it only in the event loop."""

    def __init__(self, metrics: Metrics) -> None:
        """Begin with the next sample. `metrics`: counters of the engine."""
        self._metrics = metrics
        self._count = 0
        self._at_s: deque[float] = deque(maxlen=MAX_POINTS)
        self._busy: deque[_Busy] = deque(maxlen=MAX_POINTS)
        self._total = _empty()
        self._models: dict[str, _Columns] = {}
        """A row for each point of each model, point N at N modulo `MAX_POINTS`."""
        self._before_ns = time.monotonic_ns()
        self._counts_before: dict[str, _Counts] = {}
        self._busy_before_ns: dict[int, int] = {}

    def sample(self) -> None:
        """Add a point: the difference of the counters to the previous point."""
        now_ns = time.monotonic_ns()
        span_ns = max(1, now_ns - self._before_ns)
        self._before_ns = now_ns
        seconds, place, total = span_ns / _NS_PER_S, self._count % MAX_POINTS, np.zeros(_COUNTS, np.int64)
        for columns in self._models.values():
            columns[place, :-1], columns[place, -1] = 0.0, np.nan
        bypassed = Counter[str]()
        for (name, _), count in self._metrics.counts.bypassed.items():
            bypassed[name] += count
        for name in {*self._metrics.counts.models, *bypassed}:
            counts = self._metrics.counts.models.get(name) or ModelCounts()
            outcomes = (counts.on_time, counts.late, counts.dropped.total(), counts.failed, bypassed[name])
            now = np.array([*outcomes, *counts.answered.counts])
            ended = now - self._counts_before.get(name, 0)
            self._counts_before[name] = now
            if not ended.any():
                continue
            total += ended
            if name not in self._models:
                self._models[name] = _empty(self._count)
            self._models[name][place] = _row(ended, seconds, counts.slo_ns)
        self._total[place] = _row(total, seconds, None)
        self._busy.append(self._busy_since(span_ns))
        self._at_s.append(time.time())
        self._count += 1

    def _busy_since(self, span_ns: int) -> _Busy:
        workers = self._metrics.counts.workers
        busy_ns = {number: each.busy_ns - self._busy_before_ns.get(number, 0) for number, each in workers.items()}
        self._busy_before_ns = {number: each.busy_ns for number, each in workers.items()}
        return _busy({number: each.name for number, each in workers.items() if each.up}, busy_ns, span_ns)

    def history(self, since: int) -> History:
        """Return the points from number `since` on, or all if there is no such point."""
        oldest = self._count - len(self._at_s)
        first = since if oldest <= since <= self._count else oldest
        places = np.arange(first, self._count) % MAX_POINTS
        skipped = first - oldest
        return _history(
            first,
            list(self._at_s)[skipped:],
            self._total[places],
            {name: columns[places] for name, columns in self._models.items()},
            {name: counts.slo_ns for name, counts in self._metrics.counts.models.items()},
            list(self._busy)[skipped:],
            _most_requested(self._models),
        )


def _empty(points: int = 0) -> _Columns:
    """Return columns of which the first points are known to be without requests."""
    columns = np.full((MAX_POINTS, len(_COLUMNS)), np.nan, dtype=np.float32)
    columns[:points, :-1] = 0.0
    return columns


class HistoryReader(OutcomeListener):
    """Counts of a recorded run by interval. One thread feeds it; another may call `history`."""

    def __init__(self, first_ns: int, last_ns: int, slos_ns: Mapping[str, int | None]) -> None:
        """Create an empty history. `first_ns`, `last_ns`: instants of the first and the last entry of the log."""
        self._first_ns = first_ns
        # The intervals divide the log evenly: a shorter last one would show less load than there was.
        self._size = max(1, min(MAX_INTERVALS, (last_ns - first_ns) // MIN_INTERVAL_NS))
        self._span_ns = max(MIN_INTERVAL_NS, (last_ns - first_ns) // self._size + 1)
        self._slos_ns = slos_ns
        self._models: dict[str, _Counts] = {}
        """A row for each interval of each model."""
        self._busy_ns: list[Counter[int]] = [Counter() for _ in range(self._size)]
        self._names: dict[int, str] = {}
        self._read_ns = first_ns
        self._done = False
        self._error = ""
        self._reducer = Reducer(self)

    def know(self, workers: Iterable[Worker]) -> None:
        """Add workers by whose names busy time is shown."""
        self._names.update({worker.id: worker.name for worker in workers})

    def take(self, entry: LogEntry) -> None:
        """Add the next entry."""
        self._read_ns = entry.event.now_ns
        self._reducer.handled(entry.event, entry.effects)

    def end(self, error: str = "") -> None:
        """Mark the end of the log, or the error that stopped the reader."""
        self._done, self._error = True, error

    def history(self) -> History:
        """Return the history of the part that was read."""
        size = min(self._size, (self._read_ns - self._first_ns) // self._span_ns + 1)
        seconds, total = self._span_ns / _NS_PER_S, np.zeros((size, _COUNTS), np.int64)
        models: dict[str, _Columns] = {}
        for name, intervals in list(self._models.items()):
            slo_ns = self._slos_ns.get(name)
            models[name] = np.array([_row(each, seconds, slo_ns) for each in intervals[:size]], dtype=np.float32)
            total += intervals[:size]
        made = _history(
            0,
            [(number + 1) * seconds for number in range(size)],
            np.array([_row(each, seconds, None) for each in total], dtype=np.float32),
            models,
            self._slos_ns,
            [_busy(dict(self._names), busy_ns, self._span_ns) for busy_ns in self._busy_ns[:size]],
            _most_requested(models),
        )
        read_ms = (self._read_ns - self._first_ns) / NS_PER_MS
        return msgspec.structs.replace(made, read_ms=read_ms, done=self._done, error=self._error)

    def _interval(self, at_ns: int) -> int:
        return min(max(0, (at_ns - self._first_ns) // self._span_ns), self._size - 1)

    def _of(self, model: str, at_ns: int) -> _Counts:
        if model not in self._models:
            self._models[model] = np.zeros((self._size, _COUNTS), np.int64)
        counts: _Counts = self._models[model][self._interval(at_ns)]
        return counts

    def answered(self, batch: Batch, requests: Sequence[Request], ended_ns: int) -> None:
        """Count the requests of an answered batch."""
        counts, late = self._of(batch.model, ended_ns), 0
        for request in requests:
            counts[_OUTCOMES + bisect_left(LATENCY_BOUNDS_NS, ended_ns - request.arrival_ns)] += 1
            late += ended_ns > request.deadline_ns
        counts[_LATE] += late
        counts[_ON_TIME] += len(requests) - late

    def dropped(self, now_ns: int, request: Request, reason: str) -> None:
        """Count a dropped request."""
        self._of(request.model, now_ns)[_DROPPED] += 1

    def failed(self, now_ns: int, request: Request, reason: str) -> None:
        """Count a failed request."""
        self._of(request.model, now_ns)[_FAILED] += 1

    def stage_ran(self, effect: StartStage, started_ns: int, ended_ns: int) -> None:
        """Count the time of a stage, in the interval in which it ended."""
        worker_id = effect.batch.stages[effect.stage].worker_id
        self._busy_ns[self._interval(ended_ns)][worker_id] += ended_ns - started_ns
