"""Membership of Tritons: joins, losses and failures, reported to the engine.

A Triton that answers health probes but fails requests is ejected for a while, as by Envoy's outlier detection.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import grpc

from tidegate.api import BatchFailed, Profile, RequestCancelled, WorkerJoined, WorkerLost
from tidegate.engine import TopologyChanged
from tidegate_proxy.configuration.settings import SettingsHolder
from tidegate_proxy.messages.request import PendingRequest
from tidegate_proxy.scheduling.clock import LiveEngine
from tidegate_proxy.scheduling.in_flight import PendingRequests, RunningStages, StageRun
from tidegate_proxy.tritons.backend import Backend
from tidegate_proxy.tritons.catalog import Catalog, CurrentCatalog
from tidegate_proxy.tritons.shared_memory import SharedRegions

_OF_TRITON: Final = frozenset(
    {
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.UNAVAILABLE,
    }
)
"""Status codes of a failing Triton; other errors are the request's."""
_QUEUE_FULL: Final = "maximum queue size"
"""In what Triton says, with UNAVAILABLE, when its own queue is full: it has too much to do, and fails at nothing."""


MIN_FAILING_CLIENTS: Final = 2
"""Number of clients that must see consecutive failures of a Triton, if it has that many."""
MOST_OF_ONE: Final = 0.75
"""Largest fraction of its failures from a single client, if there are others."""


def is_failure(code: grpc.StatusCode, details: str) -> bool:
    """Return whether an error counts against the Triton that returned it."""
    return code in _OF_TRITON and _QUEUE_FULL not in details


@dataclass(slots=True)
class _Record:
    """Recent results of one Triton."""

    in_row: int = 0
    """Failures since it last did well."""
    in_row_of: set[str] = field(default_factory=set)
    """Whose requests those were."""
    well: int = 0
    failed: int = 0
    """In the present window."""
    failed_of: Counter[str] = field(default_factory=Counter)
    """How many failed, by whose requests those were: of a batch all of theirs."""
    began_ns: int = 0
    """The beginning of the window."""
    ejections: int = 0
    """Number of recent ejections, which make the next one longer."""
    total: int = 0
    """Number of its ejections."""
    until_ns: int = 0
    """When the last of them ends."""
    out: bool = False

    @property
    def share(self) -> float:
        """Fraction of its calls in the window that failed."""
        return self.failed / max(1, self.well + self.failed)

    def fail(self, owners: Collection[str]) -> None:
        """Count a failed call of these clients."""
        self.in_row += 1
        self.in_row_of.update(owners)
        self.failed += 1
        self.failed_of.update(owners)

    def forget(self) -> None:
        """Begin to count again."""
        self.in_row = self.well = self.failed = 0
        self.in_row_of.clear()
        self.failed_of.clear()


@dataclass
class OutlierDetector:
    """Outlier detection: counts failures by Triton and ejects those that fail while others succeed."""

    in_force: SettingsHolder
    """Current settings."""
    _records: dict[Backend, _Record] = field(default_factory=dict)
    _owners: set[str] = field(default_factory=set)
    """Some of those whose calls have ended in the present window."""
    _owners_before: set[str] = field(default_factory=set)
    """And in the one before."""

    def did_well(self, backend: Backend, owner: str) -> None:
        """Record a Triton's success for a client."""
        record = self._record(backend)
        record.well += 1
        if record.in_row:
            record.in_row = 0
            record.in_row_of.clear()
        if len(self._owners) < MIN_FAILING_CLIENTS:
            self._owners.add(owner)

    def failed(
        self, backend: Backend, owners: Collection[str], now_ns: int, catalog: Catalog, backends: Sequence[Backend]
    ) -> str | None:
        """Record a failed call; return the reason if the Triton is ejected for it, else None.

        `owners`: clients of its requests; `backends`: all Tritons.
        """
        record = self._record(backend)
        limits = self.in_force.settings.outlier_detection
        if now_ns - record.began_ns > limits.window_s * 1e9:
            self._owners_before, self._owners = self._owners, set()
            for each in self._records.values():
                each.well = each.failed = 0
                each.failed_of.clear()
                each.began_ns = now_ns
        self._owners.update(islice(owners, MIN_FAILING_CLIENTS))
        record.fail(owners)
        reason = self._why(backend, record, backends)
        if reason is None or not backend.alive or not self._can_spare(backend, catalog, backends):
            return None
        if now_ns - record.until_ns > limits.max_ejection_time_s * 1e9:
            record.ejections = 0
        record.ejections += 1
        record.total += 1
        record.out = True
        record.forget()
        lasts_s = min(limits.max_ejection_time_s, limits.base_ejection_time_s * record.ejections)
        record.until_ns = now_ns + round(lasts_s * 1e9)
        return f"{reason}; it is ejected for {lasts_s:g} s"

    def is_out(self, backend: Backend, now_ns: int, catalog: Catalog) -> bool:
        """Return whether it is still ejected; never if no other live Triton has one of its models."""
        record = self._record(backend)
        record.out = record.out and now_ns < record.until_ns and _others_have_all(backend, catalog)
        return record.out

    def ejections(self, backends: Sequence[Backend]) -> dict[str, tuple[int, bool]]:
        """Return, by address, how often each Triton was ejected, and whether it is."""
        return {
            backend.address: (record.total, record.out) for backend in backends for record in [self._record(backend)]
        }

    def _record(self, backend: Backend) -> _Record:
        return self._records.get(backend) or self._records.setdefault(backend, _Record())

    def _why(self, backend: Backend, record: _Record, backends: Sequence[Backend]) -> str | None:
        others = [self._record(other) for other in backends if other is not backend and other.alive]
        limits = self.in_force.settings.outlier_detection
        is_alone = len(self._owners | self._owners_before) < MIN_FAILING_CLIENTS
        in_row = bool(limits.consecutive_errors) and record.in_row >= limits.consecutive_errors
        if (
            in_row
            and (is_alone or len(record.in_row_of) >= MIN_FAILING_CLIENTS)
            and any(other.in_row == 0 for other in others)
        ):
            return f"it failed {record.in_row} times in a row"
        of_several = max(record.failed_of.values()) <= MOST_OF_ONE * record.failed
        in_share = record.well + record.failed >= limits.min_requests and record.share >= limits.error_rate
        if in_share and (is_alone or of_several):
            well, failed = sum(other.well for other in others), sum(other.failed for other in others)
            if failed <= record.share / 2 * (well + failed):
                return f"it failed {record.failed} of {record.well + record.failed} calls"
        return None

    def _can_spare(self, backend: Backend, catalog: Catalog, backends: Sequence[Backend]) -> bool:
        out = sum(self._record(other).out for other in backends)
        most = int(self.in_force.settings.outlier_detection.max_ejection_fraction * len(backends))
        return out < most and _others_have_all(backend, catalog)


def _others_have_all(backend: Backend, catalog: Catalog) -> bool:
    """Whether what a Triton has is also had by others that live."""
    if any(
        backend in hosts and not any(other.alive for other in hosts if other is not backend)
        for hosts in catalog.hosts.values()
    ):
        return False
    mine, elsewhere = set[str](), set[str]()
    for worker in catalog.workers:
        other = catalog.backend_of[worker.id]
        if other is backend:
            mine.update(worker.hosts)
        elif other.alive:
            elsewhere.update(worker.hosts)
    return mine <= elsewhere


log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Aftermath:
    """Follow-up actions after a change of membership, beside those of the engine."""

    strays: list[PendingRequest] = field(default_factory=list)
    """Clients whose requests the engine has forgotten, to be passed on."""
    runs: list[StageRun] = field(default_factory=list)
    """Stages that the engine has given up, to be stopped."""


@dataclass(eq=False, repr=False)
class Membership:
    """Membership: which Tritons take part. Call only from the event loop."""

    _engine: LiveEngine
    _directory: CurrentCatalog
    _clients: PendingRequests
    _running: RunningStages
    _regions: SharedRegions | None
    outliers: OutlierDetector
    """Outlier detection of the Tritons."""
    _in_force: SettingsHolder
    _pass_on: Callable[[PendingRequest], None]
    """Bypasses a request whose model has changed."""

    async def lost(self, backend: Backend, details: str) -> bool:
        """Return whether a failed call means that the Triton is lost; if so the engine is notified, once."""
        if not backend.alive and not self.is_ejected(backend):
            return True  # it was given up already: the call was cut off, or came in vain
        if await backend.is_live():
            return False
        self.give_up(backend, details)
        return True

    def failed(self, backend: Backend, owners: Collection[str], code: grpc.StatusCode, details: str) -> None:
        """Record a failed call of these clients to a Triton, which may be ejected for it.

        `owners`: clients of its requests.
        """
        if not is_failure(code, details):
            return
        catalog = self._directory.catalog
        backends = list(catalog.loaded)
        if (reason := self.outliers.failed(backend, owners, time.monotonic_ns(), catalog, backends)) is not None:
            log.error("triton ejected", extra={"triton": backend.address, "error": details, "detail": reason})
            self._withdraw(backend)

    def is_ejected(self, backend: Backend) -> bool:
        """Return whether a Triton gets no requests, though it may answer."""
        return self.outliers.is_out(backend, time.monotonic_ns(), self._directory.catalog)

    def give_up(self, backend: Backend, details: str) -> None:
        """Report the loss of a Triton to the engine, once."""
        if not backend.alive:
            return
        log.error("triton lost", extra={"triton": backend.address, "error": details})
        self._withdraw(backend)
        backend.cut_off()

    def _withdraw(self, backend: Backend) -> None:
        """Give a Triton nothing more; what runs there is tried elsewhere.

        Should this raise, the Triton counts as before, and is to be withdrawn once more: else those would wait for ever
        whose requests the engine still believes to be there.
        """
        catalog = self._directory.catalog
        mine = {worker_id for worker_id, other in catalog.backend_of.items() if other is backend}
        with self._changing() as then:
            backend.withdraw()
            try:
                then.runs += self._running.forget(mine)
                busy = {run.worker_id for run in then.runs}
                self._part_with_strays((client for run in tuple(then.runs) for client in run.clients), then, catalog)
                # The idle ones first: what ran on a busy one must not be tried again on another of the same Triton.
                for worker_id in sorted(mine, key=busy.__contains__):
                    self._engine.handle(WorkerLost(time.monotonic_ns(), worker_id))
                then.runs += self._running.forget_stranded()
            except Exception:
                backend.take_back()
                raise
        if self._regions:
            self._regions.leave(backend)

    def give_up_overdue(self, backend: Backend) -> None:
        """End stages that exceed their time limit, though their Triton answers health probes."""
        now_ns = time.monotonic_ns()
        first: dict[int, StageRun] = {}  # what was sent behind it waits for it
        for run in self._running:
            first.setdefault(run.worker_id, run)
        for run in first.values():
            if run.is_slot and self._in_force.settings.stage_s is None:
                continue  # a stream may go on for long, and the time to its first response is not limited
            limit_ns = self._in_force.settings.stage_ns(run.upper_ns)
            # Another stage may have been given up meanwhile, and this one with it.
            if run.backend is backend and run in self._running and now_ns - self._running.since_ns(run) > limit_ns:
                self._give_up_stage(run, limit_ns)

    def _give_up_stage(self, run: StageRun, limit_ns: int) -> None:
        """Elsewhere its requests may be answered; where there is no elsewhere, they have failed."""
        catalog = self._directory.catalog
        worker = next((worker for worker in catalog.workers if worker.id == run.worker_id), None)
        reason = f"Triton at {run.backend.address} did not answer within {limit_ns / 1e9:g} s"
        elsewhere: set[str] = set()
        for other in catalog.workers:
            if other is not worker and catalog.backend_of[other.id].alive:
                elsewhere.update(other.hosts)
        log.error("batch abandoned", extra={"triton": run.backend.address, "error": reason})
        with self._changing() as then:
            then.runs.append(run)
            now_ns = self._running.end(run)
            if worker and elsewhere.issuperset(worker.hosts):
                self._engine.handle(WorkerLost(now_ns, worker.id))
                self._engine.handle(WorkerJoined(now_ns, worker))
                then.runs += self._running.forget({worker.id})
            else:
                failed = BatchFailed(now_ns, run.batch_id, run.effect.stage, run.worker_id, reason)
                self._engine.handle(failed)
            then.runs += self._running.forget_stranded()

    def adopt(self, catalog: Catalog, profiles: Sequence[Profile], returning: Backend | None = None) -> None:
        """Apply a new catalog; `returning`: a lost Triton that answers again.

        Raises ValueError for a layout that the engine cannot follow. Nothing has changed then, whatever it raises.
        """
        with self._changing() as then:
            before = self._directory.whole
            joined: list[int] = []
            try:
                self._directory.put(catalog)
                if returning:
                    returning.take_back()
                waiting = (client for client in self._clients if not self._running.has_begun(client))
                self._part_with_strays(waiting, then, catalog)
                present = [worker for worker in catalog.workers if catalog.backend_of[worker.id].alive]
                now_ns = time.monotonic_ns()
                if not catalog.same_plan(before):
                    models = tuple(catalog.models.values())
                    plan = TopologyChanged(now_ns, models, tuple(present), tuple(profiles), catalog.network)
                    self._engine.handle(plan)
                    return
                for worker in present:
                    former = before.backend_of.get(worker.id)
                    is_replaced = former is not None and not former.alive  # by another process, at another address
                    if is_replaced or catalog.backend_of[worker.id] is returning:
                        self._engine.handle(WorkerJoined(now_ns, worker))
                        joined.append(worker.id)
            except Exception:
                self._directory.put(before)
                if returning:
                    returning.withdraw()
                for worker_id in joined:
                    self._engine.handle(WorkerLost(time.monotonic_ns(), worker_id))
                raise

    @contextmanager
    def _changing(self) -> Iterator[_Aftermath]:
        """Context that runs follow-up actions after its block, even if that raised."""
        then = _Aftermath()
        try:
            yield then
        finally:
            self._engine.perform()
            for client in then.strays:
                self._pass_on(client)
            for run in then.runs:
                run.stop()

    def _part_with_strays(self, clients: Iterable[PendingRequest], then: _Aftermath, catalog: Catalog) -> None:
        """The engine forgets requests that do not fit what their model has become since in the catalog.

        Where no Triton has the model, the engine says so.
        """
        for client in clients:
            envelope = client.envelope
            if catalog.schedules(envelope) or envelope.model not in catalog.hosts:
                continue
            if self._clients.remove(client.request_id):
                then.strays.append(client)
                self._engine.handle(RequestCancelled(time.monotonic_ns(), client.request_id))
