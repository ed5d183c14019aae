"""Tritons that come and go: the engine is told, and what ran there ends."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc

from tidegate.api import BatchFailed, Profile, RequestCancelled, WorkerJoined, WorkerLost
from tidegate.engine import PlanChanged
from tidegate_proxy.backend import Backend
from tidegate_proxy.catalog import Catalog, Directory
from tidegate_proxy.client import Client
from tidegate_proxy.leg_run import LegRun
from tidegate_proxy.live_engine import LiveEngine
from tidegate_proxy.outliers import Outliers, is_failure
from tidegate_proxy.regions import Regions
from tidegate_proxy.running_legs import RunningLegs
from tidegate_proxy.settings import InForce
from tidegate_proxy.waiting_clients import WaitingClients

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Aftermath:
    """What is left to be done after a change of which Tritons take part, beside what the engine wants."""

    strays: list[Client] = field(default_factory=list)
    """Clients whose requests the engine has forgotten, to be passed on."""
    runs: list[LegRun] = field(default_factory=list)
    """Legs that nobody asks about any more, to be stopped."""


class Membership:
    """Which Tritons take part. Lives in the event loop."""

    def __init__(
        self,
        engine: LiveEngine,
        directory: Directory,
        clients: WaitingClients,
        running: RunningLegs,
        regions: Regions | None,
        outliers: Outliers,
        in_force: InForce,
        pass_on: Callable[[Client], None],
    ) -> None:
        """`pass_on`: has a request answered that cannot be scheduled any more, as its model has become another."""
        self._engine = engine
        self._directory = directory
        self._clients = clients
        self._running = running
        self._regions = regions
        self.outliers = outliers
        """The Tritons that fail while others do well."""
        self._in_force = in_force
        self._pass_on = pass_on

    async def lost(self, backend: Backend, details: str) -> bool:
        """Whether a failed call means that the Triton is gone; if so the engine is told, once."""
        if not backend.alive and not self.is_ejected(backend):
            return True  # it was given up already: the call was cut off, or came in vain
        if await backend.is_live():
            return False
        self.give_up(backend, details)
        return True

    def failed(self, backend: Backend, owners: Collection[str], code: grpc.StatusCode, details: str) -> None:
        """A call of these clients to a Triton has failed: one that fails while others do well is given nothing more for
        a while."""
        if not is_failure(code, details):
            return
        catalog = self._directory.catalog
        backends = list(catalog.loaded)
        if (reason := self.outliers.failed(backend, owners, time.monotonic_ns(), catalog, backends)) is not None:
            log.error("Triton at %s: %s: %s", backend.address, reason, details)
            self._withdraw(backend)

    def is_ejected(self, backend: Backend) -> bool:
        """Whether a Triton is to be given nothing, though it may answer."""
        return self.outliers.is_out(backend, time.monotonic_ns(), self._directory.catalog)

    def give_up(self, backend: Backend, details: str) -> None:
        """A Triton is gone: tell the engine, once."""
        if not backend.alive:
            return
        log.error("Triton at %s is lost: %s", backend.address, details)
        self._withdraw(backend)
        backend.cut_off()

    def _withdraw(self, backend: Backend) -> None:
        """Give a Triton nothing more; what runs there is tried elsewhere.

        Should this raise, the Triton counts as before, and is to be withdrawn once more: else those would wait for ever
        whose requests the engine still believes to be there.
        """
        mine = {worker_id for worker_id, other in self._directory.catalog.backend_of.items() if other is backend}
        with self._changing() as then:
            backend.alive = False
            try:
                then.runs += self._running.forget(mine)
                busy = {run.worker_id for run in then.runs}
                self._part_with_strays((client for run in tuple(then.runs) for client in run.clients), then)
                # The idle ones first: what ran on a busy one must not be tried again on another of the same Triton.
                for worker_id in sorted(mine, key=busy.__contains__):
                    self._engine.handle(WorkerLost(time.monotonic_ns(), worker_id))
                then.runs += self._running.forget_stranded()
            except Exception:
                backend.alive = True
                raise
        if self._regions:
            self._regions.leave(backend)

    def give_up_overdue(self, backend: Backend) -> None:
        """End legs that take so long that they will never end, though their Triton answers probes."""
        now_ns = time.monotonic_ns()
        first: dict[int, LegRun] = {}  # what was sent behind it waits for it
        for run in self._running:
            first.setdefault(run.worker_id, run)
        for run in first.values():
            limit_ns = self._in_force.settings.leg_ns(run.planned_ns)
            # Another leg may have been given up meanwhile, and this one with it.
            if run.backend is backend and run in self._running and now_ns - self._running.since_ns(run) > limit_ns:
                self._give_up_leg(run, limit_ns)

    def _give_up_leg(self, run: LegRun, limit_ns: int) -> None:
        """Elsewhere its requests may be answered; where there is no elsewhere, they have failed."""
        catalog = self._directory.catalog
        worker = next((worker for worker in catalog.workers if worker.id == run.worker_id), None)
        reason = f"Triton at {run.backend.address} did not answer within {limit_ns / 1e9:g} s"
        elsewhere: set[str] = set()
        for other in catalog.workers:
            if other is not worker and catalog.backend_of[other.id].alive:
                elsewhere.update(other.hosts)
        log.error("a batch is given up: %s", reason)
        with self._changing() as then:
            then.runs.append(run)
            now_ns = self._running.end(run)
            if worker and elsewhere.issuperset(worker.hosts):
                self._engine.handle(WorkerLost(now_ns, worker.id))
                self._engine.handle(WorkerJoined(now_ns, worker))
                then.runs += self._running.forget({worker.id})
            else:
                failed = BatchFailed(now_ns, run.batch_id, run.effect.leg, run.worker_id, reason)
                self._engine.handle(failed)
            then.runs += self._running.forget_stranded()

    def adopt(self, catalog: Catalog, profiles: Sequence[Profile], returning: Backend | None = None) -> None:
        """From now on this is what the Tritons serve; `returning` is one that was given up and answers again.

        Raises ValueError for a plan that the engine cannot follow. Nothing has changed then, whatever it raises.
        """
        with self._changing() as then:
            before = self._directory.catalog
            joined: list[int] = []
            try:
                self._directory.catalog = catalog
                if returning:
                    returning.alive = True
                self._part_with_strays(
                    (client for client in self._clients if not self._running.has_begun(client)), then
                )
                present = [worker for worker in catalog.workers if catalog.backend_of[worker.id].alive]
                now_ns = time.monotonic_ns()
                if not catalog.same_plan(before):
                    models = tuple(catalog.models.values())
                    plan = PlanChanged(now_ns, models, tuple(present), tuple(profiles), catalog.network)
                    self._engine.handle(plan)
                    return
                for worker in present:
                    former = before.backend_of.get(worker.id)
                    is_replaced = former is not None and not former.alive  # by another process, at another address
                    if is_replaced or catalog.backend_of[worker.id] is returning:
                        self._engine.handle(WorkerJoined(now_ns, worker))
                        joined.append(worker.id)
            except Exception:
                self._directory.catalog = before
                if returning:
                    returning.alive = False
                for worker_id in joined:
                    self._engine.handle(WorkerLost(time.monotonic_ns(), worker_id))
                raise

    @contextmanager
    def _changing(self) -> Iterator[_Aftermath]:
        """What the block leaves to be done is done after it, whatever it raised."""
        then = _Aftermath()
        try:
            yield then
        finally:
            self._engine.perform()
            for client in then.strays:
                self._pass_on(client)
            for run in then.runs:
                run.stop()

    def _part_with_strays(self, clients: Iterable[Client], then: _Aftermath) -> None:
        """The engine forgets requests that do not fit what their model has become since.

        Where no Triton has the model, the engine says so.
        """
        catalog = self._directory.catalog
        for client in clients:
            envelope = client.envelope
            if catalog.schedules(envelope) or envelope.model not in catalog.hosts:
                continue
            if self._clients.remove(client.request_id):
                then.strays.append(client)
                self._engine.handle(RequestCancelled(time.monotonic_ns(), client.request_id))
