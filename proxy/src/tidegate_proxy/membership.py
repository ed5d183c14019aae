"""Tritons that come and go: the engine is told, and what ran there ends."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence

import grpc

from tidegate.api import AnyEvent, PlanChanged, Profile, RequestCancelled, WorkerJoined, WorkerLost
from tidegate.engine import AnyEffect
from tidegate_proxy.backend import Backend
from tidegate_proxy.catalog import Catalog, Directory
from tidegate_proxy.client import Client
from tidegate_proxy.legs import Legs
from tidegate_proxy.locked_engine import LockedEngine
from tidegate_proxy.outliers import Outliers, is_failure
from tidegate_proxy.regions import Regions
from tidegate_proxy.waiting_clients import WaitingClients

log = logging.getLogger(__name__)


class Membership:
    """Which Tritons take part. Lives in the event loop."""

    def __init__(
        self,
        engine: LockedEngine,
        directory: Directory,
        clients: WaitingClients,
        legs: Legs,
        regions: Regions | None,
        outliers: Outliers,
        pass_on: Callable[[Client], None],
    ) -> None:
        """`pass_on`: has a request answered that cannot be scheduled any more, as its model has become another."""
        self._engine = engine
        self._directory = directory
        self._clients = clients
        self._legs = legs
        self._regions = regions
        self.outliers = outliers
        """Those that fail while others do well."""
        self._pass_on = pass_on

    async def lost(self, backend: Backend, details: str) -> bool:
        """Whether a failed call means that the Triton is gone; if so the engine is told, once."""
        if not backend.alive and not self.is_ejected(backend):
            return True  # it was given up already: the call was cut off, or came in vain
        if await backend.is_live():
            return False
        self.give_up(backend, details)
        return True

    def failed(self, backend: Backend, code: grpc.StatusCode, details: str) -> None:
        """A call to a Triton has failed: one that fails while others do well is given nothing more for a while."""
        if not is_failure(code, details):
            return
        catalog = self._directory.catalog
        backends = list(catalog.loaded)
        if (reason := self.outliers.failed(backend, time.monotonic_ns(), catalog, backends)) is not None:
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
        """Give a Triton nothing more; what runs there is tried elsewhere."""
        backend.alive = False
        mine = {worker_id for worker_id, other in self._directory.catalog.backend_of.items() if other is backend}
        with self._engine.lock:
            runs = self._legs.forget(mine)
            busy = {run.worker_id for run in runs}
            strays, effects = self._part_with_strays(client for run in runs for client in run.clients)
            # The idle ones first: what ran on a busy one must not be tried again on another of the same Triton.
            effects += [
                effect
                for worker_id in sorted(mine, key=busy.__contains__)
                for effect in self._engine.handle(WorkerLost(time.monotonic_ns(), worker_id))
            ]
            stranded = self._legs.forget_stranded()
        self._engine.perform(effects)
        for client in strays:
            self._pass_on(client)
        for run in (*runs, *stranded):
            run.stop()
        if self._regions:
            self._regions.leave(backend)

    def adopt(self, catalog: Catalog, profiles: Sequence[Profile], returning: Backend | None = None) -> None:
        """From now on this is what the Tritons serve; `returning` is one that was given up and answers again.

        Raises ValueError, and changes nothing, for a plan that the engine cannot follow.
        """
        with self._engine.lock:
            before = self._directory.catalog
            self._directory.catalog = catalog
            if returning:
                returning.alive = True
            queued = (client for client in self._clients if not self._legs.runs_for(client))
            strays, effects = self._part_with_strays(queued)
            present = [worker for worker in catalog.workers if catalog.backend_of[worker.id].alive]
            now_ns = time.monotonic_ns()
            events: list[AnyEvent] = [
                WorkerJoined(now_ns, worker) for worker in present if catalog.backend_of[worker.id] is returning
            ]
            if not catalog.same_plan(before):
                events = [
                    PlanChanged(
                        now_ns, tuple(catalog.models.values()), tuple(present), tuple(profiles), catalog.network
                    )
                ]
            refusal: ValueError | None = None
            try:
                effects += [effect for event in events for effect in self._engine.handle(event)]
            except ValueError as error:
                refusal = error
                self._directory.catalog = before
                if returning:
                    returning.alive = False
        self._engine.perform(effects)
        for client in strays:
            self._pass_on(client)
        if refusal:
            raise refusal

    def _part_with_strays(self, clients: Iterable[Client]) -> tuple[list[Client], list[AnyEffect]]:
        """With the lock held: the engine forgets requests that do not fit what their model has become since.

        Returns those who wait for them, and the engine's effects. Where no Triton has the model, the engine says so.
        """
        catalog = self._directory.catalog
        strays: list[Client] = []
        effects: list[AnyEffect] = []
        for client in clients:
            envelope = client.envelope
            if catalog.schedules(envelope) or envelope.model not in catalog.hosts:
                continue
            if self._clients.remove(client.request_id):
                strays.append(client)
                effects += self._engine.handle(RequestCancelled(time.monotonic_ns(), client.request_id))
        return strays, effects
