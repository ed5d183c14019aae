"""Selection of the requests of a queue to batch: most on-time requests for the duration of the batch."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, islice
from math import exp
from typing import NamedTuple

from tidegate.api import Request
from tidegate.toolkit import FormedBatch, Gathering, RequestQueue
from tidegate_symphony.applications import SimilarRequests
from tidegate_symphony.latency_bounds import LatencyBounds

URGENCY_DISCOUNT = 0.1
"""Discount of a request for each row latency that it could wait: the rate of its next chance (b in Orloj)."""
MAX_COMPARED_REQUESTS = 256
"""Requests at the head of a queue that batches are compared of."""
MAX_STARTS = 16
"""Requests, evenly spaced among them, at which a compared batch may begin; up to twice as many where they are few."""
SIZE_STEP = 1.2
"""Factor from one compared batch size to the next, rounded to rows."""
MAX_WEIGHED_REQUESTS = 8
"""Requests, evenly spaced in a compared batch, that represent it; up to twice as many in small batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedBatch(FormedBatch):
    """Selected requests of a queue; `start`: position of the first among similar requests."""

    ids: tuple[int, ...]
    promises: LatencyBounds = field(compare=False)
    """Latency bounds of such a batch."""


def choose(
    queue: Iterable[Request], groups: Sequence[SimilarRequests], gathering: Gathering, now_ns: int, most_rows: int
) -> SelectedBatch | None:
    """Return the best batch to start at `now_ns`; None if no request would be on time.

    `groups`: groups of similar requests, fastest first. For each group, batches begin at each of its requests and are
    as large as that one's deadline allows, with half of the margin. The best batch has the most requests expected on
    time for its duration; requests with little time left count more, and each counts once, whatever its rows, so that
    small ones are not left behind. `most_rows`: maximum rows of the batch.
    """
    best, most, looked_at = None, 0.0, 0
    fades = URGENCY_DISCOUNT / groups[-1].promises.profile.expected_ns(1)
    for group in groups:
        members = group.of(queue)
        if len(members) == looked_at:
            continue  # the same as of quicker ones
        looked_at = len(members)
        promises = group.promises
        expected_ns = promises.profile.expected_ns
        profile = promises.likely
        rest = sum([request.rows for request in members])
        tried = 0
        for start, request in enumerate(members):
            largest = max(request.rows, min(rest, most_rows))
            rows = min(largest, profile.largest_rows_within(gathering.due_ns(request) - now_ns))
            rest -= request.rows
            if rows < request.rows or rows <= tried:
                continue
            tried = rows
            if rows > most * expected_ns(rows):  # else it could not be better even if all were on time and urgent
                batch = gathering.longest_run(members, most_rows, profile, now_ns, start=start)
                if batch and batch.count + len(batch.fillers) > most * expected_ns(batch.rows):
                    chosen = members[start : start + batch.count]
                    if batch.fillers:
                        chosen += [each for each in members if each.id in batch.fillers]
                    left_ns = [gathering.due_ns(each) - now_ns for each in chosen]
                    takes_ns = expected_ns(batch.rows)
                    weights = [
                        (exp(-fades * max(0, each_ns - takes_ns)), each_ns)
                        for each, each_ns in zip(chosen, left_ns, strict=True)
                    ]
                    worth = promises.on_time(batch.rows, weights) / takes_ns
                    if worth > most:
                        ids = tuple([each.id for each in chosen])
                        run = batch.start, batch.count, batch.rows, batch.due_ns, batch.fillers
                        best = SelectedBatch(*run, ids=ids, promises=promises)
                        most = worth
            if rows == largest:
                break  # later ones could only be fewer
    return best


def most_on_time(
    queue: RequestQueue,
    promises: LatencyBounds,
    gathering: Gathering,
    now_ns: int,
    most_rows: int,
    promised: FormedBatch | None,
    *,
    skips: bool,
) -> FormedBatch | None:
    """Return the batch with the most expected on-time requests for its duration: consecutive ones of all, or of the
    smaller ones.

    `promised`: the batch with the full margin, returned unless another one is better; None if there is none. `skips`:
    whether a batch may begin behind the head, and leave larger requests behind. Skipped requests wait and are dropped
    in the end, which leaves room for large batches. No batch contains a request that would be late even in much less
    time than expected.
    """
    waiting = list(islice(queue, MAX_COMPARED_REQUESTS))
    most = _rate(promised, queue, promises, gathering, now_ns) if promised else 0.0
    best = promised
    if run := _best_run(waiting, promises, gathering, now_ns, most_rows, most, skips=skips):
        best, most = gathering.longest_run(queue, run.rows, promises.least, now_ns, start=run.start), run.rate
        if run.end < len(waiting) and run.rows + waiting[run.end].rows > most_rows:
            filled = gathering.longest_run(queue, most_rows, promises.least, now_ns, start=run.start)
            if filled and (rate := _rate(filled, queue, promises, gathering, now_ns)) > most:
                best, most = filled, rate
    smaller = _smaller(waiting) if skips else []
    if of_smaller := _best_run(smaller, promises, gathering, now_ns, most_rows, most, skips=True):
        members = smaller[of_smaller.start : of_smaller.end]
        due_ns, ids = min(map(gathering.due_ns, members)), tuple([each.id for each in members])
        return SelectedBatch(of_smaller.start, len(ids), of_smaller.rows, due_ns, ids=ids, promises=promises)
    return best


def _smaller(waiting: Sequence[Request]) -> list[Request]:
    """Return the requests with no more rows than the median; empty if all have as many."""
    rows = sorted([request.rows for request in waiting])
    median = rows[len(rows) // 2]
    return [request for request in waiting if request.rows <= median] if rows[-1] > median else []


class _Run(NamedTuple):
    """Consecutive requests of a list, from position `start` to before `end`."""

    start: int
    end: int
    rows: int
    rate: float
    """Expected on-time requests per nanosecond."""


def _best_run(
    waiting: Sequence[Request],
    promises: LatencyBounds,
    gathering: Gathering,
    now_ns: int,
    most_rows: int,
    most: float,
    *,
    skips: bool,
) -> _Run | None:
    """Return the run with the highest rate, if that is above `most`; `skips`: it may begin behind the first request."""
    left_ns = [(1.0, gathering.due_ns(request) - now_ns) for request in waiting]
    ends = [*accumulate((request.rows for request in waiting), initial=0)]
    expected_ns, lower_bound_ns = promises.profile.expected_ns, promises.profile.lower_bound_ns
    best: _Run | None = None
    starts = range(0, len(waiting), max(1, len(waiting) // MAX_STARTS)) if skips else (0,)
    for start in starts:
        last = start
        for size in _compared_sizes(most_rows):
            end = max(start + 1, bisect_right(ends, ends[start] + size) - 1)
            if end == last:
                continue
            last, rows = end, ends[end] - ends[start]
            count, takes_ns = end - start, expected_ns(rows)
            if min(left_ns[start:end])[1] < lower_bound_ns(rows):
                break
            if count <= most * takes_ns:
                continue  # not even if all were on time
            step = max(1, count // MAX_WEIGHED_REQUESTS)
            weighed = left_ns[start + (step - 1) // 2 : end : step]
            rate = promises.on_time(rows, weighed) * count / (len(weighed) * takes_ns)
            if rate > most:
                most, best = rate, _Run(start, end, rows, rate)
    return best


def _rate(batch: FormedBatch, queue: RequestQueue, promises: LatencyBounds, gathering: Gathering, now_ns: int) -> float:
    """Return the expected on-time requests of a batch that starts now, per nanosecond of its duration."""
    members = [*islice(queue, batch.start, batch.start + batch.count)]
    if batch.fillers:
        members += [request for request in queue if request.id in batch.fillers]
    left_ns = [(1.0, gathering.due_ns(request) - now_ns) for request in members]
    return promises.on_time(batch.rows, left_ns) / promises.profile.expected_ns(batch.rows)


@lru_cache(maxsize=64)
def _compared_sizes(most_rows: int) -> tuple[int, ...]:
    """Return the compared batch sizes in rows, ascending, the last one `most_rows`."""
    sizes, rows = [], 1
    while rows < most_rows:
        sizes.append(rows)
        rows = max(rows + 1, round(SIZE_STEP * rows))
    return (*sizes, most_rows)
