"""Selection of the requests of a queue to batch: most on-time requests for the duration of the batch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import exp

from tidegate.api import Request
from tidegate.toolkit import FormedBatch, Gathering
from tidegate_symphony.applications import SimilarRequests
from tidegate_symphony.latency_bounds import LatencyBounds

URGENCY_DISCOUNT = 0.1
"""Discount of a request for each row latency that it could wait: the rate of its next chance (b in Orloj)."""


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
        profile = promises.less_sure[0] if promises.less_sure else promises.profile
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
