"""Which requests of a queue would run together if a batch started now: what many policies of batching share."""

from dataclasses import dataclass
from itertools import islice

from tidegate.api.model import NEVER, Request
from tidegate.api.profile import Profile
from tidegate.api.queueing import RequestQueue


@dataclass(frozen=True, slots=True)
class Gathered:
    """A run of requests of one queue that meets its earliest deadline when started now."""

    start: int
    """Position in the queue of its first request; those before it are skipped."""
    count: int
    """How many requests, from there on."""
    rows: int
    due_ns: int
    """The earliest deadline among them, less the reserve; NEVER where none has one."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """The longest run of requests that is in time, begun at the head or where the batch becomes large enough."""

    reserve_ns: int
    """Kept free before every deadline, for the way back to the client."""

    def keep_head(
        self, queue: RequestQueue, profile: Profile, now_ns: int, *, most_rows: int | None = None
    ) -> Gathered | None:
        """Begin at the head, however small the batch becomes. None when not even the head is in time."""
        return self._from(queue, profile, now_ns, 0, most_rows)

    def window(
        self, queue: RequestQueue, profile: Profile, now_ns: int, target_rows: int, *, most_rows: int | None = None
    ) -> Gathered | None:
        """Begin at the first request that leaves time for a batch of the target size, or of all that is behind it.

        Requests before it are skipped: each would make the batch smaller than the load can bear (Nexus, section 6.3).
        They stay queued: whether they are dropped or may still run is the policy's to say.
        """
        rest = queue.rows
        for start, request in enumerate(queue):
            size = max(request.rows, min(target_rows, rest))
            if now_ns + profile.latency_ns(size) <= self._due_ns(request):
                return self._from(queue, profile, now_ns, start, most_rows)
            rest -= request.rows
        return None

    def is_hopeless(self, request: Request, profile: Profile, now_ns: int) -> bool:
        """Whether a request would be late even if it ran now and alone."""
        return now_ns + profile.latency_ns(request.rows) > self._due_ns(request)

    def _from(
        self, queue: RequestQueue, profile: Profile, now_ns: int, start: int, most_rows: int | None
    ) -> Gathered | None:
        largest, table_ns = queue.model.max_rows, profile.table_ns
        if most_rows is not None:
            largest = min(largest, most_rows)
        due_ns = NEVER
        count = rows = 0
        for request in islice(queue, start, None):
            grown = rows + request.rows
            if grown > largest and count:  # a single request runs however large it is
                break
            tightest_ns = min(due_ns, self._due_ns(request))
            if now_ns + table_ns[grown - 1] > tightest_ns:
                break
            count, rows, due_ns = count + 1, grown, tightest_ns
        return Gathered(start, count, rows, due_ns) if count else None

    def _due_ns(self, request: Request) -> int:
        return request.deadline_ns if request.deadline_ns == NEVER else request.deadline_ns - self.reserve_ns
