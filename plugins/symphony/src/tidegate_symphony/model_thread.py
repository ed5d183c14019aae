"""Model thread of Symphony (Appendix D, ModelThread): one queue, its candidate batch, and its drops."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from tidegate.api import NEVER_NS, Model, Profile, QueueKey, Request
from tidegate.toolkit import ArrivalRate, BatchTarget, FormedBatch, Gathering, RequestQueue
from tidegate_symphony.applications import SimilarRequests
from tidegate_symphony.batch_selection import SelectedBatch, choose, most_on_time
from tidegate_symphony.latency_bounds import LatencyBounds, QueueOutlook

MAX_PAUSE_NS = 1_000_000_000
"""Time in ns after the latest arrival from which a batch no longer waits: the rate of arrivals is unknown by then.

Rates are averages over the last second or so. Without this limit a request with an hour's time would be held for an
hour.
"""
ModelShape = tuple[str, str]
"""Model and shape, in this order: its requests take equally long, and share rate and target."""


@dataclass(slots=True)
class Candidate:
    """Candidate batch of a queue with its start time (Algorithm 1). It grows as requests arrive."""

    start: int
    """Position of its first request in the queue; earlier ones are skipped."""
    count: int
    """Number of requests from there on."""
    rows: int
    due_ns: int
    """Earliest deadline among them minus the reserve, in ns; NEVER_NS if none has one."""
    exec_ns: int = 0
    """Earliest dispatch in ns: until then one more request could still join."""
    frontrun_ns: int = 0
    """Time in ns (frontrun) from which no further request could join in time."""
    latest_ns: int = NEVER_NS
    """Latest start in ns that meets the earliest deadline."""
    on_time: bool = True
    """Whether the candidate is expected to be on time; otherwise it is tried if no other request wants the worker."""
    fillers: tuple[int, ...] = ()
    """Ids of requests further back that fill it (`FormedBatch.fillers`), not part of `count`."""
    full: bool = False
    """Whether requests wait behind it that do not fit, so that waiting gains nothing."""
    chosen: SelectedBatch | None = None
    """The batch itself if its requests are not consecutive; `start` and `count` are then not used."""

    @property
    def requests(self) -> int:
        """Number of its requests."""
        return len(self.chosen.ids) if self.chosen else self.count + len(self.fillers)


class ModelThread(RequestQueue):
    """Queue ordered by deadline, with its candidate batch."""

    __slots__ = (
        "_alike",
        "_came_ns",
        "_gathering",
        "_target",
        "_usual_ns",
        "candidate",
        "model_shape",
        "outlook",
        "rate",
        "slack_ns",
    )

    def __init__(
        self,
        key: QueueKey,
        model: Model,
        gathering: Gathering,
        rate: ArrivalRate,
        target: BatchTarget | None = None,
        *,
        no_slo_max_deferral_ns: int = 0,
        slack_ns: int = 0,
    ) -> None:
        """Create an empty queue.

        `rate`: arrival rate of its requests. `target`: size for batch formation by window; None: keep
        the head. `no_slo_max_deferral_ns`: how long, in ns, a request without a deadline yields if the
        model has no SLO. `slack_ns`: timer latency in ns, by which a batch waits less.
        """
        super().__init__(key, model)
        self.model_shape: ModelShape = key[:2]
        self.candidate: Candidate | None = None
        self.outlook: QueueOutlook
        """The outlook of the last update."""
        self._alike: Sequence[SimilarRequests] = ()
        """The groups of the last update."""
        self._gathering = gathering
        self.rate = rate
        """Arrival rate of the requests of its model, shape and merge key."""
        self._target = target
        self._usual_ns = no_slo_max_deferral_ns if model.slo_ns is None else model.slo_ns
        """The time that requests usually have."""
        self._came_ns = 0
        """When the latest request came."""
        self.slack_ns = slack_ns
        """The slack of wake-ups in ns; a change of it counts from the next update on."""

    def push(self, request: Request) -> None:
        """Add a request by its rank; the candidate may change (`joins`)."""
        super().push(request)
        self._came_ns = max(self._came_ns, request.arrival_ns)

    def rank_ns(self, request: Request) -> int:
        """Return the rank of a request in ns: its deadline, at most the usual time after its arrival.

        An urgent request among others would make every batch smaller; one with more time than usual would starve.
        """
        return min(request.deadline_ns, request.arrival_ns + self._usual_ns)

    def joins(self, request: Request, now_ns: int, enough_rows: float) -> bool:
        """Add the newest request to the candidate if possible: O(1). False: the candidate must be formed again.

        `enough_rows`: rows from which the candidate does not wait.
        """
        candidate = self.candidate
        if candidate is None or now_ns > candidate.latest_ns or not candidate.on_time:
            return False
        if candidate.chosen:
            return now_ns >= candidate.exec_ns  # who is in it is looked at again when a worker is idle
        if self.rank_ns(request) < self._last_ns:
            return False  # it stands before others
        rows = candidate.rows + request.rows
        due_ns = min(candidate.due_ns, self._gathering.due_ns(request))
        fits = rows <= self.outlook.most_rows and now_ns + self.outlook.profile.upper_ns(rows) <= due_ns
        if candidate.full or candidate.start + candidate.count + 1 < len(self._requests):
            return not fits  # others wait before it that do not fit; it may fill the rows that they leave
        if fits:
            candidate.count, candidate.rows, candidate.due_ns = candidate.count + 1, rows, due_ns
            self._time(candidate, now_ns, enough_rows)
            return True
        return candidate.exec_ns <= now_ns  # else the batch is full and waits no longer

    def leaves_room(self, now_ns: int) -> bool:
        """Whether its candidate leaves room for others: it can still wait, and grow."""
        return self.candidate is not None and now_ns < self.candidate.frontrun_ns

    def expected_on_time(self, candidate: Candidate) -> float:
        """Return the expected number of on-time requests of the candidate if it begins at its latest start."""
        promises = self.outlook.promises
        if candidate.chosen:
            members, promises = [self._requests[each] for each in candidate.chosen.ids], candidate.chosen.promises
        else:
            members = [*islice(self, candidate.start, candidate.start + candidate.count)]
            members += [self._requests[each] for each in candidate.fillers]
        left_ns = [(1.0, self._gathering.due_ns(request) - candidate.latest_ns) for request in members]
        return promises.on_time(candidate.rows, left_ns)

    def count_hopeless(self, outlook: QueueOutlook, now_ns: int) -> int:
        """Return the number of requests at the head that are late even if they run alone, now and faster than expected.

        The expected latency alone is no reason to drop: an idle worker loses nothing by trying. Simulated
        (`bench.no_regret`, tight scenarios of seeds 1 and 2), dropping below a 30 % chance cost 0.6 percentage points
        of attainment: batches of more value skip such requests anyway (`most_on_time`).
        """
        count = 0
        for request in self:
            if now_ns + outlook.profile.lower_bound_ns(request.rows) <= self._gathering.due_ns(request):
                break
            count += 1
        return count

    def update(
        self, outlook: QueueOutlook, now_ns: int, enough_rows: float, alike: Sequence[SimilarRequests] = ()
    ) -> Candidate:
        """Form the candidate again; the head must not be hopeless.

        `enough_rows`: rows from which it does not wait for more. `alike`: groups among which batches are selected, the
        last one all; empty: form from the head on.
        """
        self.outlook, self._alike = outlook, alike
        batch = self.gather(outlook.promises, now_ns)
        assert batch is not None, "a head that is not hopeless is a batch by itself"
        chosen = batch if isinstance(batch, SelectedBatch) else None
        last = batch.start + batch.count + len(batch.fillers)
        full = len(chosen.ids) < len(self) and chosen.promises is outlook.promises if chosen else last < len(self)
        self.candidate = Candidate(
            batch.start, batch.count, batch.rows, batch.due_ns, fillers=batch.fillers, full=full, chosen=chosen
        )
        self._time(self.candidate, now_ns, enough_rows)
        return self.candidate

    def gather(self, promises: LatencyBounds, now_ns: int, *, tries: bool = True) -> FormedBatch | None:
        """Return the batch that would start now; None if the head is lost.

        It has the full margin, unless that leaves requests behind and latencies scatter: then the batch with the most
        expected on-time requests for its duration is chosen, with any margin. If no request is expected to be on time,
        the head is tried, with others that might be. `tries`: False if another worker may serve the head on time. With
        groups from `update`, the batch of most value is selected among them.
        """
        if self._alike and (found := self._choose(now_ns)):
            return found
        gathering, most_rows = self._gathering, self.outlook.most_rows
        best = self._gather_with(promises.profile, now_ns)
        if promises.scatters and (best is None or best.rows < min(most_rows, self.rows)):
            skips = self._target is not None
            best = most_on_time(self, promises, gathering, now_ns, most_rows, best, skips=skips)
        if best is None and tries:
            best = gathering.keep_head(self, promises.least, now_ns, most_rows=most_rows)
        return best

    def bring_batch_forward(self, batch: FormedBatch | Candidate) -> int:
        """Move the requests of a batch to the front of the queue; return their number."""
        run = islice(self._requests, batch.start, batch.start + batch.count)
        self.bring_forward([*run, *batch.fillers])
        return batch.count + len(batch.fillers)

    def bring_forward(self, ids: Sequence[int]) -> None:
        """Move these requests to the front of the queue, in this order, before they are taken."""
        for request_id in reversed(ids):
            self._requests.move_to_end(request_id, last=False)

    def _choose(self, now_ns: int) -> FormedBatch | None:
        """The batch of most worth: a run of the queue, where the outlook tells of all that are in it."""
        chosen = choose(self, self._alike, self._gathering, now_ns, self.outlook.most_rows)
        if chosen and chosen.promises is self.outlook.promises:
            return FormedBatch(chosen.start, chosen.count, chosen.rows, chosen.due_ns, chosen.fillers)
        return chosen

    def _gather_with(self, profile: Profile, now_ns: int) -> FormedBatch | None:
        """The batch on time by what a profile promises."""
        gathering, most_rows, slo_ns = self._gathering, self.outlook.most_rows, self.model.slo_ns
        if not self._target or slo_ns is None:
            return gathering.keep_head(self, profile, now_ns, most_rows=most_rows)
        target = self._target.rows(now_ns, profile, slo_ns - gathering.reserve_ns, self.outlook.workers)
        return gathering.window(self, profile, now_ns, min(target, most_rows), most_rows=most_rows)

    def _time(self, candidate: Candidate, now_ns: int, enough_rows: float) -> None:
        profile = candidate.chosen.promises.profile if candidate.chosen else self.outlook.profile
        rows, due_ns, upper_ns = candidate.rows, candidate.due_ns, profile.upper_ns
        candidate.exec_ns, candidate.latest_ns = now_ns, NEVER_NS
        joined_rows = rows + self.rate.least_rows
        is_full = candidate.full or joined_rows > self.outlook.most_rows
        candidate.frontrun_ns = self.head.arrival_ns + self._usual_ns
        if due_ns != NEVER_NS:
            candidate.latest_ns = due_ns - upper_ns(rows)
            if candidate.latest_ns < now_ns:
                candidate.latest_ns = due_ns - profile.expected_ns(rows)
            candidate.on_time = candidate.latest_ns >= now_ns
            if not candidate.on_time:
                candidate.latest_ns = due_ns - profile.lower_bound_ns(rows)
            frontrun_ns = due_ns - upper_ns(rows if is_full else joined_rows) - self.slack_ns
            candidate.frontrun_ns = min(frontrun_ns, self._came_ns + MAX_PAUSE_NS)
            waits = self.model.slo_ns is not None and rows < enough_rows and not is_full
            if waits and self.head.deferrable:  # of its queue all are, or none
                # Without an SLO there is nothing to defer towards; no request can join a full batch.
                candidate.exec_ns = max(now_ns, candidate.frontrun_ns)
