"""Tritons of a proxy: joining, health checks, leaving."""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tidegate.control import LayoutRevision
from tidegate.observation import ChangeProgressed
from tidegate.schemas import Layout
from tidegate_proxy.access.gate import headers_of
from tidegate_proxy.base.tasks import cancel
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.settings import SettingsHolder
from tidegate_proxy.configuration.tritons import TritonAddress
from tidegate_proxy.scheduling.driver import Driver
from tidegate_proxy.service.discovery import Discovery, watch
from tidegate_proxy.tritons.backend import Backend, BackendError, LoadedModel
from tidegate_proxy.tritons.catalog import CurrentCatalog
from tidegate_proxy.tritons.loop_detector import LoopDetector
from tidegate_proxy.tritons.workers import gpu_ordinals_of

Joining = Mapping[str, tuple[TritonAddress, Backend, list[LoadedModel]]]
"""New Tritons by worker: address, backend, and models."""


@dataclass(eq=False, repr=False)
class Tritons:
    """Tritons that take part, with their health checks. Use it only in the event loop."""

    config: ServeConfig
    """Current configuration; an actuator changes its Tritons."""
    _in_force: SettingsHolder
    _loops: LoopDetector
    _directory: CurrentCatalog
    _driver: Driver
    _discovery: Discovery

    def __post_init__(self) -> None:
        self._watches: dict[Backend, asyncio.Task[None]] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        self._leaving: set[Backend] = set()
        """Tritons that have left, until their connections are closed."""
        for backend in self._discovery.backends:
            self._watch(backend)

    @property
    def alone(self) -> asyncio.Lock:
        """Lock to hold while changing what the Tritons serve."""
        return self._discovery.one_at_a_time

    async def reach(self, triton: TritonAddress, config: ServeConfig) -> Backend:
        """Connect to a Triton that may join later. Raises BackendError if it is not ready."""
        backend = backend_of(triton, config, self._in_force, self._loops)
        try:
            if not await backend.serves():
                raise BackendError(f"no Triton is ready at {backend.address}: does it run, and is this its gRPC port?")
            if self._driver.regions:
                await self._driver.regions.share_with(backend)
        except BaseException:
            await backend.close()
            raise
        return backend

    async def try_out(self, triton: TritonAddress) -> tuple[Backend, list[LoadedModel]]:
        """Connect to a Triton that may join later, and list its models. Raises BackendError, RestrictionError."""
        backend = await self.reach(triton, self.config)
        try:
            return backend, await backend.models()
        except BaseException:
            await self.part_with(backend)
            raise

    async def is_ready(self, triton: TritonAddress) -> bool:
        """Query whether a Triton that may join is ready, and has loaded its models. Raises as `change` does."""
        return await is_ready(triton, self.config, self._in_force, self._loops)

    def any_alive(self, tritons: Collection[TritonAddress]) -> bool:
        """Return whether any of these Tritons, which take part, is live."""
        addresses = {triton.grpc for triton in tritons}
        return any(backend.alive and backend.address in addresses for backend in self._discovery.backends)

    def take_part(self, addresses: Collection[str]) -> bool:
        """Return whether any Triton at these gRPC addresses takes part."""
        return any(triton.grpc in addresses for triton in self.config.tritons)

    def is_idle(self, addresses: Collection[str]) -> bool:
        """Return whether no Triton at these gRPC addresses takes part, nor has requests in flight."""
        if self.take_part(addresses):
            return False
        leaving = [backend for backend in self._leaving if backend.address in addresses]
        return not any(
            backend.in_flight or backend.open_calls or any(run.backend is backend for run in self._driver.running)
            for backend in leaving
        )

    def batch_workers(self) -> dict[Backend, list[int]]:
        """Return the live Tritons, each with the ids of its workers that run batches: all but slots."""
        catalog = self._directory.catalog
        found: dict[Backend, list[int]] = {backend: [] for backend in self._discovery.backends if backend.alive}
        for worker in catalog.workers:
            if not worker.server and (backend := catalog.backend_of[worker.id]) in found:
                found[backend].append(worker.id)
        return found

    def gpus_of(self, backend: Backend) -> int:
        """Return the number of GPUs on which a Triton has instances of models; 1 if it has none there."""
        return max(1, len(gpu_ordinals_of(self._directory.catalog.loaded.get(backend, ()))))

    def running_ns(self, now_ns: int) -> dict[int, int]:
        """Return for how long the stages that run have done so, in ns by worker id; not those sent ahead."""
        running = self._driver.running
        ran_ns: dict[int, int] = {}
        for run in running:
            ran_ns[run.worker_id] = max(ran_ns.get(run.worker_id, 0), now_ns - running.since_ns(run))
        return ran_ns

    async def change(self, config: ServeConfig, layout: Layout | None, suspects: Collection[str] | None = None) -> None:
        """Apply another configuration: its new Tritons join, removed ones are released once they ended.

        A Triton with another HTTP address, TLS or device class is a new one. `suspects`: as for `Discovery.change`.
        Raises BackendError, RestrictionError, TlsError or ValueError, and changes nothing.
        """
        removed = {triton.grpc for triton in self.config.tritons if triton not in config.tritons}
        leaving = [backend for backend in self._discovery.backends if backend.address in removed]
        staying = [backend for backend in self._discovery.backends if backend not in leaving]
        added: list[Backend] = []
        try:
            for triton in config.tritons:
                if triton not in self.config.tritons:
                    backend = await self.reach(triton, config)
                    added.append(backend)
            await self._discovery.change([*staying, *added], config, layout, suspects)
        except BaseException:
            for backend in added:
                await self.part_with(backend)
            raise
        self.config = config
        self._stop_watching(leaving)
        for backend in leaving:
            self._spawn_retirement(backend)
        for backend in added:
            self._watch(backend)

    def switch(self, revision: LayoutRevision, joining: Joining) -> None:
        """Switch the engine to a layout revision, with new Tritons by worker. Hold `alone`.

        The caller stops those that leave. Raises BackendError or ValueError, and then changes nothing.
        """
        wanted = {worker.name for worker in revision.layout.workers}
        staying = [backend for backend in self._discovery.backends if backend.worker in wanted]
        leaving = [backend for backend in self._discovery.backends if backend.worker not in wanted]
        new = {backend: models for _, backend, models in joining.values()}
        self._discovery.switch([*staying, *new], new, revision)
        gone = {backend.address for backend in leaving}
        stay = [triton for triton in self.config.tritons if triton.grpc not in gone]
        added = [triton for triton, _, _ in joining.values()]
        self.config = self.config.model_copy(update={"tritons": (*stay, *added)})
        self._stop_watching(leaving)
        for backend in new:
            self._watch(backend)

    def backend_of(self, worker_id: int) -> Backend | None:
        """Return the Triton of a worker that takes part or did; None if there is none."""
        return self._directory.catalog.backend_of.get(worker_id)

    def has_work(self, worker_id: int) -> bool:
        """Return whether a worker has unfinished work."""
        return self._driver.engine.has_work(worker_id)

    def give_up(self, backend: Backend, why: str) -> None:
        """Retry the batches of a Triton elsewhere."""
        self._driver.membership.give_up(backend, why)

    async def part_with(self, backend: Backend) -> None:
        """Close the connection to a Triton that is about to stop, or does not join after all."""
        if self._driver.regions:
            self._driver.regions.leave(backend)
        await backend.close()

    def tell(self, event: ChangeProgressed) -> None:
        """Notify the engine and its observers of the progress of a change, at the current instant."""
        self._driver.change_progressed(msgspec.structs.replace(event, now_ns=time.monotonic_ns()))

    def read_headers(self) -> bool:
        """Read the headers that open APIs restricted by Tritons; return whether they have changed.

        Raises RestrictionError, and changes nothing.
        """
        headers = {triton.grpc: headers_of(triton) for triton in self.config.tritons}
        changed = False
        for backend in self._discovery.backends:
            changed |= backend.replace_headers(headers[backend.address])
        return changed

    async def close(self) -> None:
        """Stop watching all Tritons."""
        await cancel(*self._watches.values(), *self._retiring)

    def _watch(self, backend: Backend) -> None:
        backend.take_part()
        self._watches[backend] = asyncio.create_task(watch(backend, self._driver, self._discovery))

    def _stop_watching(self, backends: Sequence[Backend]) -> None:
        for backend in backends:
            self._watches.pop(backend).cancel()

    def _spawn_retirement(self, backend: Backend) -> None:
        async def retire() -> None:
            try:
                await asyncio.sleep(self.config.drain_timeout_s)  # what runs there is finished
            finally:
                self._leaving.discard(backend)
                await backend.close()

        self._leaving.add(backend)

        task = asyncio.create_task(retire())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)


async def is_ready(triton: TritonAddress, config: ServeConfig, in_force: SettingsHolder, loops: LoopDetector) -> bool:
    """Query whether a Triton is ready, and has loaded its models. Raises TlsError, RestrictionError, BackendError."""
    backend = backend_of(triton, config, in_force, loops)
    try:
        return await backend.serves(settled=True)
    finally:
        await backend.close()


def backend_of(triton: TritonAddress, config: ServeConfig, in_force: SettingsHolder, loops: LoopDetector) -> Backend:
    """Create the backend of a Triton. Raises TlsError, RestrictionError."""
    return Backend(triton, headers_of(triton), config.limits.keepalive_s, in_force, loops)
