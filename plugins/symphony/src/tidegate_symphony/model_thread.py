"""The model-local half of Symphony (Appendix D, ModelThread): gathers a candidate batch out of one queue."""

from dataclasses import dataclass
from itertools import islice

from tidegate.api import NEVER, Profile, Request, RequestQueue


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


@dataclass(frozen=True, slots=True)
class Gathering:
    """GETBATCH: the longest run of requests that meets its earliest deadline when started now."""

    reserve_ns: int
    """Kept free before every deadline, for the way back to the client."""

    def keep_head(self, queue: RequestQueue, profile: Profile, now_ns: int) -> Candidate | None:
        """Begin at the head, however small the batch becomes. None when not even the head is in time."""
        return self._from(queue, profile, now_ns, 0)

    def window(self, queue: RequestQueue, profile: Profile, now_ns: int, target_rows: int) -> Candidate | None:
        """Begin at the first request that leaves time for a batch of the target size, or of all that is behind it.

        Requests before it are skipped: each would make the batch smaller than the load can bear (Nexus, section 6.3).
        They stay queued, and may still run where a worker has nothing better to do.
        """
        rest = queue.rows
        for start, request in enumerate(queue):
            size = max(request.rows, min(target_rows, rest))
            if now_ns + profile.latency_ns(size) <= self._due_ns(request):
                return self._from(queue, profile, now_ns, start)
            rest -= request.rows
        return None

    def is_hopeless(self, request: Request, profile: Profile, now_ns: int) -> bool:
        """Whether a request would be late even if it ran now and alone."""
        return now_ns + profile.latency_ns(request.rows) > self._due_ns(request)

    def _from(self, queue: RequestQueue, profile: Profile, now_ns: int, start: int) -> Candidate | None:
        largest, table_ns = queue.model.max_rows, profile.table_ns
        due_ns = NEVER
        count = rows = 0
        for request in islice(queue, start, None):
            grown = rows + request.rows
            if grown > largest:
                break
            tightest_ns = min(due_ns, self._due_ns(request))
            if now_ns + table_ns[grown - 1] > tightest_ns:
                break
            count, rows, due_ns = count + 1, grown, tightest_ns
        if not count:
            return None
        latest_ns = NEVER if due_ns == NEVER else due_ns - table_ns[rows - 1]
        if queue.model.slo_ns is None or due_ns == NEVER or rows == largest:
            # No SLO to defer towards, or nothing more can join.
            return Candidate(start, count, rows, now_ns, latest_ns)
        return Candidate(start, count, rows, max(now_ns, due_ns - table_ns[rows]), latest_ns)

    def _due_ns(self, request: Request) -> int:
        return request.deadline_ns if request.deadline_ns == NEVER else request.deadline_ns - self.reserve_ns
