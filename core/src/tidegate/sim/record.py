"""Record of one run: the outcome of every request and the work of every worker, in arrays."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidegate.api import Advise, Batch, Request
from tidegate.observation import ChangeProgressed, OutcomeListener, StartStage
from tidegate.workload import RequestSequence
from tidegate.workload.tenants import RATE_LIMITED

WAITING, ANSWERED, LATE, FAILED, FIRST_DROP = 0, 1, 2, 3, 4
"""Outcomes of requests. FIRST_DROP and above: dropped with `reasons[outcome - FIRST_DROP]`."""
MAX_REASONS = 250
OTHER_REASONS = "other"
"""Reason for further drops once a policy has given too many reasons."""


@dataclass
class LatencySums:
    """Sums of queueing and execution time over answered requests of one model that arrived in the window."""

    count: int = 0
    waiting_ns: int = 0
    executing_ns: int = 0


class RunRecord(OutcomeListener):
    """Record of a run, filled from its event stream.

    Ids of requests are their positions. Only requests that arrive from `measured_from_ns` on count as bad.
    """

    def __init__(
        self, requests: RequestSequence, *, measured_from_ns: int = 0, limits: Mapping[int, int] | None = None
    ) -> None:
        """Create the record of a request sequence.

        `measured_from_ns`: start of the window in ns. `limits`: number of bad requests of each model (by index) above
        which the run is `hopeless`; None: no limit.
        """
        self.outcome = bytearray(len(requests))
        self.ended_ns = array("q", bytes(8 * len(requests)))
        self.reasons: list[str] = []
        self.advice: list[tuple[int, Advise]] = []
        """When the policy advised, and what."""
        self.changes: list[ChangeProgressed] = []
        """How far changes of the layout were, and when."""
        self.joined_workers: dict[int, str] = {}
        """The workers that came with changes of the layout: their names by id."""
        self.slot_changes: list[tuple[int, int]] = []
        """When a concurrency limit changed, and by how many slots."""
        self.hopeless = False
        """More requests of some model went wrong than may: to go on would change nothing."""
        self.stage_worker, self.stage_model, self.stage_rows = array("q"), array("q"), array("q")
        self.stage_started_ns, self.stage_ended_ns = array("q"), array("q")
        self._positions = {name: position for position, name in enumerate(requests.models)}
        self._at_ns, self._model = requests.at_ns, requests.model
        self._measured_from_ns = measured_from_ns
        self._limits = limits
        self._tenancy, self._rows = requests.tenancy, requests.rows
        self.tenant_ns = [0.0] * (len(requests.tenancy.specs) if requests.tenancy else 0)
        """Worker time of each tenant in ns, until the last arrival."""
        self._last_arrival_ns = requests.at_ns[-1] if requests.at_ns else 0
        self.enough = None if limits is None else lambda: self.hopeless
        """Whether to go on would change nothing; None where that is not asked for."""
        self._bad = [0] * len(requests.models)
        self.waited = [LatencySums() for _ in requests.models]
        """Sums of queueing and execution time of answered requests, by model."""
        self.last_ns = None if requests.responses is None else array("q", bytes(8 * len(requests)))
        """Time of the last response to each request, in ns; None: each has one response."""
        self._ran_ns: dict[int, int] = {}
        """For how long the stages of a batch that have ended ran, by its id."""
        self._first_ns: dict[int, int] = {}
        """For how long streams ran until their first response, by batch id."""
        for rejected in sorted(requests.tenancy.rejected) if requests.tenancy else ():
            self.drop(rejected, requests.at_ns[rejected], RATE_LIMITED)

    def answered(self, batch: Batch, requests: Sequence[Request], ended_ns: int) -> None:
        """Record the answered requests of a batch."""
        outcome, instants = self.outcome, self.ended_ns
        for request in requests:
            instants[request.id] = ended_ns
            if request.deadline_ns >= ended_ns:
                outcome[request.id] = ANSWERED
            else:
                outcome[request.id] = LATE
                self._went_wrong(request.id)
        self.note_waits(batch, [request.arrival_ns for request in requests], ended_ns)

    def graph_answered(self, request: Request, ended_ns: int) -> None:
        """Record a request of a graph whose last stage ended at `ended_ns`."""
        self.ended_ns[request.id] = ended_ns
        if request.deadline_ns >= ended_ns:
            self.outcome[request.id] = ANSWERED
        else:
            self.outcome[request.id] = LATE
            self._went_wrong(request.id)

    def note_waits(self, batch: Batch, arrivals_ns: Sequence[int], ended_ns: int) -> None:
        """Add the execution and queueing time of a batch that ended at `ended_ns`.

        `arrivals_ns`: arrival times of its requests in ns.
        """
        ran_ns, waited = self._ran_ns.pop(batch.id, 0), self.waited[self._positions[batch.model]]
        if self.last_ns is not None and batch.id in self._first_ns:
            ran_ns = self._first_ns.pop(batch.id)
        for at_ns in arrivals_ns:
            if at_ns >= self._measured_from_ns:
                waited.count += 1
                waited.executing_ns += ran_ns
                waited.waiting_ns += ended_ns - at_ns - ran_ns

    def first_response(self, effect: StartStage, requests: Sequence[Request], started_ns: int, now_ns: int) -> None:
        """Record the time to the first response of a stream."""
        self._first_ns[effect.batch.id] = now_ns - started_ns

    def dropped(self, now_ns: int, request: Request, reason: str) -> None:
        """Record a request that the policy dropped, with its reason."""
        self.drop(request.id, now_ns, reason)

    def failed(self, now_ns: int, request: Request, reason: str) -> None:
        """Record a request that failed for good, whatever the reason."""
        self.fail(request.id, now_ns)

    def advised(self, now_ns: int, advice: Advise) -> None:
        """Record a recommendation on the number of workers."""
        self.advice.append((now_ns, advice))

    def change_progressed(self, event: ChangeProgressed) -> None:
        """Record the progress of a layout change."""
        self.changes.append(event)

    def drop(self, request_id: int, ended_ns: int, reason: str) -> None:
        """Record a dropped request under its reason; from `MAX_REASONS` different ones on under `OTHER_REASONS`."""
        if reason not in self.reasons:
            if len(self.reasons) >= MAX_REASONS:
                reason = OTHER_REASONS
            if reason not in self.reasons:
                self.reasons.append(reason)
        self.ended_ns[request_id] = ended_ns
        self.outcome[request_id] = FIRST_DROP + self.reasons.index(reason)
        self._went_wrong(request_id)

    def fail(self, request_id: int, ended_ns: int) -> None:
        """Record a failed request."""
        self.ended_ns[request_id] = ended_ns
        self.outcome[request_id] = FAILED
        self._went_wrong(request_id)

    def stage_ran(
        self, effect: StartStage, started_ns: int, ended_ns: int, owners: Sequence[int] | None = None
    ) -> None:
        """Add the busy time of a stage, whatever its outcome.

        `owners`: positions of the clients' requests for which it ran; None: those of its batch.
        """
        self.note_stage(effect, started_ns, ended_ns)
        request_ids = effect.batch.request_ids if owners is None else owners
        if self.last_ns is not None and request_ids:
            self.last_ns[request_ids[0]] = ended_ns
        if self._tenancy:
            tenant, rows = self._tenancy.tenant, self._rows
            shares = ((tenant[each], 1 if rows is None else rows[each]) for each in request_ids)
            self.divide_stage(effect, started_ns, ended_ns, shares)

    def note_stage(self, effect: StartStage, started_ns: int, ended_ns: int) -> None:
        """Add the busy time of a stage to its worker and its batch."""
        batch = effect.batch
        self.stage_worker.append(batch.stages[effect.stage].worker_id)
        self.stage_model.append(self._positions[batch.model])
        self.stage_rows.append(effect.rows)
        self.stage_started_ns.append(started_ns)
        self.stage_ended_ns.append(ended_ns)
        self._ran_ns[batch.id] = self._ran_ns.get(batch.id, 0) + ended_ns - started_ns

    def divide_stage(
        self, effect: StartStage, started_ns: int, ended_ns: int, shares: Iterable[tuple[int, int]]
    ) -> None:
        """Divide the time of a stage among tenants by rows, until the last arrival.

        `shares`: index of the tenant, -1 for none, and rows of each request.
        """
        duration_ns = min(ended_ns, self._last_arrival_ns) - started_ns
        if duration_ns <= 0:
            return
        for tenant, rows in shares:
            if tenant >= 0:
                self.tenant_ns[tenant] += duration_ns * rows / effect.rows

    def _went_wrong(self, request_id: int) -> None:
        if self._limits is None or self._at_ns[request_id] < self._measured_from_ns:
            return
        model = self._model[request_id]
        self._bad[model] += 1
        if self._bad[model] > self._limits[model]:
            self.hopeless = True
