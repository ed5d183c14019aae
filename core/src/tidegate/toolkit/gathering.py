"""Batch formation: which requests of a queue would run together if a batch started now."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from tidegate.api import NEVER_NS, Profile, Request
from tidegate.toolkit.queueing import RequestQueue

MAX_LOOKED_AT = 64
"""Maximum number of requests behind a run that are examined for its free rows, so that a long queue stays cheap."""


@dataclass(frozen=True, slots=True)
class FormedBatch:
    """Consecutive requests of one queue that meet the earliest deadline among them if started now."""

    start: int
    """Position in the queue of its first request; earlier ones are skipped."""
    count: int
    """Number of consecutive requests from there on."""
    rows: int
    due_ns: int
    """Earliest deadline among them minus the reserve, in ns; NEVER_NS if none has one."""
    fillers: tuple[int, ...] = ()
    """Ids of smaller requests further back that fill the free rows."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """Batch formation: finds the most requests that meet their deadlines, from the head or from a later start."""

    reserve_ns: int
    """Time in ns reserved before every deadline for the response to the client."""
    fills: bool = False
    """Whether smaller requests from further back fill the rows that a run leaves free (first fit)."""

    def keep_head(
        self, queue: RequestQueue, profile: Profile, now_ns: int, *, most_rows: int | None = None
    ) -> FormedBatch | None:
        """Return the largest batch that begins at the head; None if not even the head is on time.

        `now_ns`: planned start; `most_rows`: maximum rows of the batch.
        """
        return self.longest_run(queue, most_rows or queue.model.merged_rows, profile, now_ns)

    def window(
        self, queue: RequestQueue, profile: Profile, now_ns: int, target_rows: int, *, most_rows: int | None = None
    ) -> FormedBatch | None:
        """Return a batch that begins at the first request with time for `target_rows` rows, or for all behind it.

        Earlier requests are skipped, because each would make the batch smaller than the load needs (Nexus, section
        6.3). They stay queued: the policy decides whether to drop or run them. `now_ns`: planned start; `most_rows`:
        maximum rows of the batch, None: the model's. None if no request has the time.
        """
        target_rows = min(target_rows, most_rows or queue.model.merged_rows)
        for start, (request, size) in enumerate(_runs_within(queue, target_rows)):
            if now_ns + profile.upper_ns(size) <= self.due_ns(request):
                return self.longest_run(queue, most_rows or queue.model.merged_rows, profile, now_ns, start=start)
        return None

    def is_hopeless(self, request: Request, profile: Profile, now_ns: int) -> bool:
        """Whether a request would be late even if it started at `now_ns` and ran alone."""
        return now_ns + profile.upper_ns(request.rows) > self.due_ns(request)

    def longest_run(
        self, requests: Iterable[Request], most_rows: int, profile: Profile, now_ns: int, *, start: int = 0
    ) -> FormedBatch | None:
        """Return the most requests from position `start` on that meet the earliest deadline among them.

        `most_rows`: maximum rows of the batch; a single request may have more. `now_ns`: planned start. None if even
        the first would be late.
        """
        reserve_ns, fitting_rows = self.reserve_ns, profile.max_rows
        due_ns = NEVER_NS
        count = rows = 0
        waiting = iter(islice(requests, start, None))
        for request in waiting:
            grown = rows + request.rows
            if grown > most_rows and count:
                if self.fills and rows < most_rows:
                    return self._filled(FormedBatch(start, count, rows, due_ns), waiting, most_rows, profile, now_ns)
                break
            tightest_ns = request.deadline_ns
            if tightest_ns != NEVER_NS:
                tightest_ns -= reserve_ns
            if tightest_ns < due_ns:
                fitting_rows = profile.largest_rows_within(tightest_ns - now_ns)
            else:
                tightest_ns = due_ns
            if grown > fitting_rows:
                break
            count, rows, due_ns = count + 1, grown, tightest_ns
        return FormedBatch(start, count, rows, due_ns) if count else None

    def _filled(
        self, run: FormedBatch, behind: Iterable[Request], most_rows: int, profile: Profile, now_ns: int
    ) -> FormedBatch:
        """The run with requests from further back that fit into the rows that it leaves, the oldest first."""
        rows, due_ns, fillers = run.rows, run.due_ns, []
        for request in islice(behind, MAX_LOOKED_AT):
            grown = rows + request.rows
            tightest_ns = min(due_ns, self.due_ns(request))
            if grown > most_rows or (tightest_ns != NEVER_NS and now_ns + profile.upper_ns(grown) > tightest_ns):
                continue
            rows, due_ns = grown, tightest_ns
            fillers.append(request.id)
            if rows == most_rows:
                break
        return FormedBatch(run.start, run.count, rows, due_ns, tuple(fillers)) if fillers else run

    def due_ns(self, request: Request) -> int:
        """Return a request's deadline less the reserve, in ns."""
        return request.deadline_ns if request.deadline_ns == NEVER_NS else request.deadline_ns - self.reserve_ns


def _runs_within(queue: RequestQueue, target_rows: int) -> Iterator[tuple[Request, int]]:
    """Each request of a queue, and the rows of the run that begins with it: whole requests, within the target."""
    rest = queue.rows
    if rest == len(queue):
        for request in queue:
            yield request, min(target_rows, rest)
            rest -= 1
        return
    waiting = list(queue)
    end = rows = 0
    for request in waiting:
        while end < len(waiting) and (not rows or rows + waiting[end].rows <= target_rows):
            rows += waiting[end].rows
            end += 1
        yield request, rows
        rows -= request.rows
