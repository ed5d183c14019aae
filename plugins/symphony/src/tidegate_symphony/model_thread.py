"""The model-local half of Symphony (Appendix D, ModelThread): gathers a candidate batch out of one queue."""

from dataclasses import dataclass

from tidegate.api import NEVER, Profile, Request, RequestQueue


@dataclass(frozen=True, slots=True)
class Candidate:
    """The batch that a queue would run next, and when (Algorithm 1)."""

    count: int
    """How many requests, from the head of the queue."""
    rows: int
    exec_ns: int
    """Dispatch no earlier: until then one more request could still join (the frontrun moment, or now)."""
    latest_ns: int
    """Dispatch no later: a start after this breaks the earliest deadline."""


def gather(queue: RequestQueue, profile: Profile, now_ns: int, reserve_ns: int) -> Candidate | None:
    """GETBATCH, keeping the head: the longest prefix that meets its earliest deadline when started now.

    None when not even the head alone does, or the queue is empty. `reserve_ns` is kept free before every deadline for
    the way back to the client.
    """
    model = queue.model
    due_ns = NEVER
    count = rows = 0
    for request in queue:
        grown = rows + request.rows
        tightest_ns = min(due_ns, _due_ns(request, reserve_ns))
        if grown > model.max_rows or now_ns + profile.latency_ns(grown) > tightest_ns:
            break
        count, rows, due_ns = count + 1, grown, tightest_ns
    if not count:
        return None
    latest_ns = NEVER if due_ns == NEVER else due_ns - profile.latency_ns(rows)
    if model.slo_ns is None or due_ns == NEVER or rows == model.max_rows:
        # No SLO to defer towards, or nothing more can join.
        return Candidate(count, rows, now_ns, latest_ns)
    frontrun_ns = due_ns - profile.latency_ns(rows + 1)
    return Candidate(count, rows, max(now_ns, frontrun_ns), latest_ns)


def is_hopeless(request: Request, profile: Profile, now_ns: int, reserve_ns: int) -> bool:
    """Whether a request would be late even if it ran now and alone."""
    return now_ns + profile.latency_ns(request.rows) > _due_ns(request, reserve_ns)


def _due_ns(request: Request, reserve_ns: int) -> int:
    return request.deadline_ns if request.deadline_ns == NEVER else request.deadline_ns - reserve_ns
