"""The model-local half of Symphony (Appendix D, ModelThread): when the batch that a queue would run may start."""

from dataclasses import dataclass
from typing import Self

from tidegate.api import NEVER, Gathered, Profile, RequestQueue


@dataclass(frozen=True, slots=True)
class Candidate:
    """The batch that a queue would run next, and when (Algorithm 1)."""

    start: int
    """Position in the queue of its first request; those before it are skipped."""
    count: int
    """How many requests, from there on."""
    rows: int
    exec_ns: int
    """Dispatch no earlier: until then one more request could still join (the frontrun moment, or now)."""
    latest_ns: int
    """Dispatch no later: a start after this breaks the earliest deadline."""

    @classmethod
    def of(cls, batch: Gathered, queue: RequestQueue, profile: Profile, now_ns: int) -> Self:
        """When a batch that was gathered now out of this queue may start."""
        start, count, rows, due_ns = batch.start, batch.count, batch.rows, batch.due_ns
        latest_ns = NEVER if due_ns == NEVER else due_ns - profile.latency_ns(rows)
        if queue.model.slo_ns is None or due_ns == NEVER or rows == queue.model.max_rows:
            # No SLO to defer towards, or nothing more can join.
            return cls(start, count, rows, now_ns, latest_ns)
        return cls(start, count, rows, max(now_ns, due_ns - profile.latency_ns(rows + 1)), latest_ns)
