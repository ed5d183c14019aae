"""The model-local half of Symphony (Appendix D, ModelThread): one queue, its candidate batch, and what it drops."""

from dataclasses import dataclass

from tidegate.api import NEVER, Model, Profile, QueueKey, Request
from tidegate.toolkit import BatchTarget, Gathered, Gathering, RequestQueue

Kind = tuple[str, str]
"""(model, shape): requests of one kind take equally long, and have a rate and a target in common."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the workers that host a model promise it."""

    profile: Profile
    """The best profile that any of the workers could have: plans are made with what may be promised by it."""
    bare: Profile
    """The same without its margin: it decides what runs where nothing can be promised."""
    workers: int
    fixed_cost_ns: float
    """What a batch costs besides its rows, in ns: beta."""
    most_rows: int
    """The largest batch worth forming: where rows do not run faster together, they had better run apart."""


@dataclass(slots=True)
class Candidate:
    """The batch that a queue would run next, and when (Algorithm 1). Grows as requests arrive."""

    start: int
    """The position of its first request in the queue; those before it are skipped."""
    count: int
    """How many requests it has, from there on."""
    rows: int
    due_ns: int
    """The earliest deadline among them, less the reserve; NEVER where none has one."""
    exec_ns: int = 0
    """Dispatch no earlier: until then one more request could still join (the frontrun moment, or now)."""
    latest_ns: int = NEVER
    """Dispatch no later: a start after this breaks the earliest deadline."""
    in_time: bool = True
    """Whether it is expected to be in time; else it is tried, where nobody else wants the worker."""


class ModelThread(RequestQueue):
    """A queue and its candidate."""

    __slots__ = ("_gathering", "_target", "candidate", "kind", "outlook", "slack_ns")

    def __init__(
        self,
        key: QueueKey,
        model: Model,
        gathering: Gathering,
        target: BatchTarget | None,
        *,
        slack_ns: int = 0,
    ) -> None:
        """`target`: gather by window towards this size; None: keep the head.

        `slack_ns`: a timer may fire so late, so a batch waits that much less.
        """
        super().__init__(key, model)
        self.kind: Kind = key[:2]
        self.candidate: Candidate | None = None
        self.outlook: Outlook
        """The outlook of the last update."""
        self._gathering = gathering
        self._target = target
        self.slack_ns = slack_ns
        """The slack of wake-ups in ns; a change of it counts from the next update on."""

    def joins(self, request: Request, now_ns: int, enough_rows: float) -> bool:
        """Let the newest request join the candidate if it can: O(1). False: the candidate has to be gathered anew."""
        candidate = self.candidate
        if candidate is None or now_ns > candidate.latest_ns:
            return False
        if candidate.start + candidate.count + 1 < len(self._requests):
            return True  # others wait before it that could not join either
        rows = candidate.rows + request.rows
        due_ns = min(candidate.due_ns, self._gathering.due_ns(request))
        if rows <= self.outlook.most_rows and now_ns + self.outlook.profile.planned_ns(rows) <= due_ns:
            candidate.count, candidate.rows, candidate.due_ns = candidate.count + 1, rows, due_ns
            self._time(candidate, now_ns, enough_rows)
        return True

    def count_hopeless(self, outlook: Outlook, now_ns: int) -> int:
        """How many requests at the head are late even if they run now, alone, and in much less time than expected.

        What is expected is no reason to give up: an idle worker loses nothing by trying, and it may be wrong.
        """
        count = 0
        for request in self:
            if now_ns + outlook.profile.least_ns(request.rows) <= self._gathering.due_ns(request):
                break
            count += 1
        return count

    def update(self, outlook: Outlook, now_ns: int, enough_rows: float) -> Candidate:
        """Gather the candidate anew; one of `enough_rows` does not wait for more. The head must not be hopeless."""
        self.outlook = outlook
        batch = self.gather(outlook.profile, outlook.bare, now_ns)
        assert batch is not None, "a head that is not hopeless is a batch by itself"
        self.candidate = Candidate(batch.start, batch.count, batch.rows, batch.due_ns)
        self._time(self.candidate, now_ns, enough_rows)
        return self.candidate

    def gather(self, profile: Profile, bare: Profile, now_ns: int, *, tries: bool = True) -> Gathered | None:
        """The batch that would start now; None where the head is lost.

        It has room for what may be promised under the profile. Where that is nothing, it has room for what is expected
        to be in time; where that is nothing either, for the head, if anything is tried. `bare`: the profile without its
        margin. `tries`: False where another worker may bring the head in time.
        """
        gathering, most_rows = self._gathering, self.outlook.most_rows
        if self._target is not None and self.model.slo_ns is not None:
            slo_ns = self.model.slo_ns - gathering.reserve_ns
            target = self._target.rows(now_ns, profile, slo_ns, self.outlook.workers)
            batch = gathering.window(self, profile, now_ns, min(target, most_rows), most_rows=most_rows)
        else:
            batch = gathering.keep_head(self, profile, now_ns, most_rows=most_rows)
        if batch := batch or gathering.keep_head(self, bare, now_ns, most_rows=most_rows):
            return batch
        if not tries:
            return None
        head, due_ns = self.head, gathering.due_ns(self.head)
        return Gathered(0, 1, head.rows, due_ns) if now_ns + profile.least_ns(head.rows) <= due_ns else None

    def _time(self, candidate: Candidate, now_ns: int, enough_rows: float) -> None:
        rows, due_ns, planned_ns = candidate.rows, candidate.due_ns, self.outlook.profile.planned_ns
        candidate.exec_ns, candidate.latest_ns = now_ns, NEVER
        if due_ns != NEVER:
            candidate.latest_ns = due_ns - planned_ns(rows)
            if candidate.latest_ns < now_ns:
                candidate.latest_ns = due_ns - self.outlook.profile.expected_ns(rows)
            candidate.in_time = candidate.latest_ns >= now_ns
            if not candidate.in_time:
                candidate.latest_ns = due_ns - self.outlook.profile.least_ns(rows)
            waits = self.model.slo_ns is not None and rows < enough_rows and rows < self.outlook.most_rows
            if waits and self.head.deferrable:  # of its queue all are, or none
                # Without an SLO there is nothing to defer towards; nobody can join what is full.
                candidate.exec_ns = max(now_ns, due_ns - planned_ns(rows + 1) - self.slack_ns)
