"""A proxy that serves: what it listens for, how it takes up a changed configuration, how it ends."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING

from tidegate.documents import Layout, read_document
from tidegate.engine import Engine
from tidegate_proxy.access.gate import Gate
from tidegate_proxy.access.restrictions import headers_of
from tidegate_proxy.app.metrics_page import MetricsPage
from tidegate_proxy.configuration.addresses import host_of
from tidegate_proxy.configuration.config import AGE_JITTER, TOLD_S, PolicyChoice, ServeConfig
from tidegate_proxy.configuration.home_config import assignment_of
from tidegate_proxy.configuration.reload import diff
from tidegate_proxy.configuration.settings import InForce, settings_of
from tidegate_proxy.configuration.tritons import TritonAddress
from tidegate_proxy.frontends.home import Home
from tidegate_proxy.rollout.mode import Trial
from tidegate_proxy.scheduling.driver import Driver
from tidegate_proxy.servers.grpc import Front
from tidegate_proxy.servers.http.service import HttpService
from tidegate_proxy.service.control import Control
from tidegate_proxy.service.discovery import Discovery
from tidegate_proxy.service.inference import Inference
from tidegate_proxy.service.passthrough import Passages
from tidegate_proxy.service.probing import watch
from tidegate_proxy.transport.client_bounds import Bounds
from tidegate_proxy.transport.file_watcher import WatchedFiles, credential_files
from tidegate_proxy.transport.hot_restart import prefer_newest
from tidegate_proxy.transport.liveness import Liveness
from tidegate_proxy.tritons.backend import Backend, BackendError
from tidegate_proxy.tritons.catalog import Catalog, Directory

if TYPE_CHECKING:
    from tidegate_proxy.app.actuation.actuator import Actuator

log = logging.getLogger(__name__)

LOOK_AT_FILES_EVERY_S = 1.0


class Proxy:
    """A proxy that answers; made by `serving`."""

    def __init__(
        self,
        config: ServeConfig,
        directory: Directory,
        driver: Driver,
        discovery: Discovery,
        control: Control,
        passages: Passages,
        gate: Gate,
        bounds: Bounds,
        in_force: InForce,
        trial: Trial,
        inference: Inference,
    ) -> None:
        self.config = config
        self.trial = trial
        self.in_force = in_force
        self.driver = driver
        self.bounds = bounds
        self.address = ""
        """Where the gRPC service is."""
        self.http_address = ""
        """Where the HTTP service is, if it is."""
        self.actuator: Actuator | None = None
        """Changes the layout while it serves, if anything does."""
        self.metrics_address = ""
        """Where the metrics page is, if it is."""
        self.follow_plan: Callable[[Mapping[str, int]], None] | None = None
        """Takes up which home has which model, where this is one of several."""
        self._directory = directory
        self._discovery = discovery
        self._control = control
        self._passages = passages
        self._gate = gate
        self._inference = inference
        self._fronts: list[Front | HttpService] = []
        """Where clients come in."""
        self._watches: dict[Backend, asyncio.Task[None]] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        for backend in discovery.backends:
            self._watch(backend)

    @property
    def engine(self) -> Engine:
        """The books."""
        return self.driver.engine

    @property
    def liveness(self) -> Liveness:
        """Whether all its parts give signs of life."""
        return self._control.liveness

    @property
    def catalog(self) -> Catalog:
        """What the Tritons serve."""
        return self._directory.catalog

    async def show_metrics(
        self, page: MetricsPage, address: str, stack: AsyncExitStack, home: Home | None = None
    ) -> None:
        """Listen for those who ask for metrics; the stack closes what is opened, here and below.

        `home`: where its fronts do so, too, or alone, they ask for it there.
        """
        if home:
            home.page = page.answer
        if home and home.metrics_port is not None:
            self.metrics_address = self._bound(address, home.metrics_port)
            return
        stack.push_async_callback(page.close)
        port = await page.listen(address, reuse_port=self.config.listen.reuse_port)
        self.metrics_address = self._bound(address, port)

    async def serve_grpc(self, front: Front, stack: AsyncExitStack) -> None:
        """Listen for clients over gRPC."""
        address = self.config.listen.grpc
        port = await front.listen(address, self.config.tls)
        stack.push_async_callback(front.close)
        self._fronts.append(front)
        self.address = self._bound(address, port)

    async def serve_http(self, service: HttpService, address: str, stack: AsyncExitStack) -> None:
        """Listen for clients over HTTP."""
        stack.push_async_callback(service.close)
        port = await service.listen(address)
        self._fronts.append(service)
        self.http_address = self._bound(address, port)

    def _bound(self, address: str, port: int) -> str:
        if self.config.listen.reuse_port:
            prefer_newest(port)
        return f"{host_of(address)}:{port}"

    async def reconfigure(self, config: ServeConfig) -> None:
        """Take up what can change while requests are under way, all of it; say what cannot.

        Raises BackendError, CredentialFileError, DocumentError, RestrictionError, TlsError or ValueError, and changes
        nothing, for files that cannot be used, a policy that cannot be made, and for Tritons that cannot be asked or do
        not fit together.
        """
        is_changed = self.actuator is not None and self.actuator.changes_layout
        if is_changed:  # by the actuator, whose the Tritons are
            config = config.model_copy(update={"tritons": self.config.tritons, "layout": self.config.layout})
        changes = diff(self.config, config)
        wanted = changes.effective
        layout = read_document(wanted.layout, Layout) if wanted.layout else None
        assignment = assignment_of(wanted)
        if is_changed:
            layout = self._discovery.layout
        gate = Gate(wanted)
        removed = {triton.grpc for triton in changes.tritons_removed}
        leaving = [backend for backend in self._discovery.backends if backend.address in removed]
        staying = [backend for backend in self._discovery.backends if backend not in leaving]
        added: list[Backend] = []
        try:
            with self._deciding(wanted.policy):
                added += (backend_of(triton, wanted, self.in_force) for triton in changes.tritons_added)
                for backend in added:
                    await self._prepare(backend)
                await self._discovery.change([*staying, *added], wanted, layout)
        except BaseException:
            for backend in added:
                if self.driver.regions:
                    self.driver.regions.leave(backend)
                await backend.close()
            raise
        # From here on nothing fails, and nothing waits.
        self._gate.follow(gate)
        self.config = wanted
        self.trial.change_policy(wanted.policy)
        self.in_force.settings = settings_of(wanted)
        self._inference.replace_bypasses(self.trial.bypasses())
        self.driver.settings_changed()
        if self.actuator and wanted.controller:
            (self.actuator.resume if wanted.controller.enabled else self.actuator.halt)()
        logging.getLogger().setLevel(wanted.log.level.upper())
        for backend in leaving:
            self._watches.pop(backend).cancel()
            self._spawn_retirement(backend)
        for backend in added:
            self._watch(backend)
        for line in changes.warnings:
            log.warning("%s", line)
        if self.follow_plan:
            self.follow_plan(assignment)
        log.info("configuration taken up: %s", ", ".join(changes.live) or "nothing has changed")

    @contextmanager
    def _deciding(self, wanted: PolicyChoice) -> Iterator[None]:
        """Let a policy decide from now on; and the one before again, should what it is to decide over be refused."""
        if wanted == self.config.policy:
            yield
            return
        self.driver.change_policy(wanted)
        try:
            yield
        except BaseException:
            self.driver.change_policy(self.config.policy)
            raise

    async def look_at_files(self) -> None:
        """For ever: take up tokens and keys that have changed in their files."""
        watched = self._credential_files()
        while True:
            await asyncio.sleep(LOOK_AT_FILES_EVERY_S)
            try:
                if watched.changed():
                    watched = self._credential_files()
                    self._gate.replace(self.config)
                    if self._read_headers():
                        await self._discovery.look_at_keys()
                    log.info("credentials were read again")
            except Exception as error:  # the rules that were in force stay
                log.error("credentials were not read again: %s", error)

    async def control_layout(self) -> None:
        """For ever: change the layout as its controller wants, where it has one."""
        if self.actuator:
            await self.actuator.run()

    async def drain(self) -> None:
        """Let what is under way end, whichever way it came in, within `drain_s` in all.

        Where another takes over, or connections have a limited age, clients are served until they have been told to go
        elsewhere, but no longer than half of the time.
        """
        if self.actuator:
            self.actuator.halt()
        now, age_s = asyncio.get_running_loop().time(), self.config.limits.max_connection_age_s
        told_s = TOLD_S if self.config.listen.reuse_port else 0.0
        serve_s = min(told_s if age_s is None else AGE_JITTER * age_s, self.config.drain_s / 2)
        await asyncio.gather(*(front.drain(now + self.config.drain_s, now + serve_s) for front in self._fronts))

    async def close(self) -> None:
        """Stop what looks after the Tritons, and forget what is still under way."""
        if self.actuator:
            await self.actuator.close()
        tasks = [*self._watches.values(), *self._retiring]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._passages.end_all()
        await self.driver.close()

    async def reach(self, triton: TritonAddress) -> Backend:
        """The way to a Triton that may take part later. Raises BackendError for one that is not ready."""
        backend = backend_of(triton, self.config, self.in_force)
        try:
            await self._prepare(backend)
        except BaseException:
            await backend.close()
            raise
        return backend

    def tritons_changed(
        self, added: Sequence[TritonAddress], joined: Sequence[Backend], left: Sequence[Backend]
    ) -> None:
        """Look after those that take part from now on, and not after the others, which somebody ends."""
        gone = {backend.address for backend in left}
        staying = [triton for triton in self.config.tritons if triton.grpc not in gone]
        self.config = self.config.model_copy(update={"tritons": (*staying, *added)})
        for backend in left:
            self._watches.pop(backend).cancel()
        for backend in joined:
            self._watch(backend)

    async def _prepare(self, backend: Backend) -> None:
        """Raises BackendError for a Triton that is not ready."""
        if not await backend.serves():
            raise BackendError(f"no Triton is ready at {backend.address}: does it run, and is this its gRPC port?")
        if self.driver.regions:
            await self.driver.regions.share_with(backend)

    def _watch(self, backend: Backend) -> None:
        self._watches[backend] = asyncio.create_task(watch(backend, self.driver, self._discovery))

    def _spawn_retirement(self, backend: Backend) -> None:
        async def retire() -> None:
            try:
                await asyncio.sleep(self.config.drain_s)  # what runs there is finished
            finally:
                await backend.close()

        task = asyncio.create_task(retire())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    def _credential_files(self) -> WatchedFiles:
        of_tritons = (path for triton in self.config.tritons for path in triton.headers.values())
        return WatchedFiles([*credential_files(self.config), *of_tritons])

    def _read_headers(self) -> bool:
        """Read the headers that open what Tritons restrict; whether they have changed.

        Raises RestrictionError, and changes nothing.
        """
        headers = {triton.grpc: headers_of(triton) for triton in self.config.tritons}
        changed = False
        for backend in self._discovery.backends:
            changed |= backend.headers != headers[backend.address]
            backend.headers = headers[backend.address]
        return changed


def backend_of(triton: TritonAddress, config: ServeConfig, in_force: InForce) -> Backend:
    """The way to a Triton. Raises TlsError, RestrictionError."""
    return Backend(
        triton.grpc,
        http=triton.http,
        metrics=triton.metrics,
        tls=triton.tls,
        keepalive_s=config.limits.keepalive_s,
        shares_memory=triton.shares_memory,
        worker=triton.worker or "",
        kind=triton.kind or "",
        in_turn=triton.in_turn,
        is_local=triton.is_local,
        headers=headers_of(triton),
        http_forward_pattern=triton.http_header_forward_pattern,
        grpc_forward_pattern=triton.grpc_header_forward_pattern,
        in_force=in_force,
    )
