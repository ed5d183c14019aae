"""Running proxy: its ports, configuration changes and shutdown."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass

from tidegate.engine import Engine
from tidegate.schemas import Layout, read_document
from tidegate_proxy.access.gate import AccessControl
from tidegate_proxy.app.actuation.actuator import Actuator
from tidegate_proxy.app.discovered_tritons import DiscoveredTritons
from tidegate_proxy.app.metrics_page import MetricsPage
from tidegate_proxy.app.model_ownership import ModelOwnership
from tidegate_proxy.app.triton_scaling import TritonScaling
from tidegate_proxy.app.tritons import Tritons
from tidegate_proxy.app.tuning.policy_tuning import PolicyTuning
from tidegate_proxy.configuration.addresses import host_of
from tidegate_proxy.configuration.config import AGE_JITTER, RECONNECT_NOTICE_S, PolicyChoice, ServeConfig
from tidegate_proxy.configuration.config_file import assignment_of
from tidegate_proxy.configuration.reload import diff
from tidegate_proxy.configuration.settings import SettingsHolder, settings_of
from tidegate_proxy.rollout.mode import RolloutMode
from tidegate_proxy.scheduling.driver import Driver
from tidegate_proxy.servers.grpc import GrpcService
from tidegate_proxy.servers.http.service import HttpService
from tidegate_proxy.service.control import ControlPlaneCalls
from tidegate_proxy.service.discovery import Discovery
from tidegate_proxy.service.inference import Inference
from tidegate_proxy.service.on_demand import OnDemandModels
from tidegate_proxy.service.passthrough import BypassedInferences
from tidegate_proxy.transport.client_bounds import ClientBounds
from tidegate_proxy.transport.file_watcher import WatchedFiles, credential_files
from tidegate_proxy.transport.liveness import Liveness
from tidegate_proxy.transport.ports import prefer_newest
from tidegate_proxy.tritons.catalog import Catalog, CurrentCatalog

log = logging.getLogger(__name__)

CREDENTIALS_POLL_S = 1.0


@dataclass(eq=False, repr=False)
class Proxy:
    """Running proxy; created by `serving`."""

    _directory: CurrentCatalog
    driver: Driver
    _discovery: Discovery
    _control: ControlPlaneCalls
    _passages: BypassedInferences
    _gate: AccessControl
    bounds: ClientBounds
    in_force: SettingsHolder
    rollout: RolloutMode
    _inference: Inference
    _tritons: Tritons
    actuator: Actuator | None
    """Changes the layout, if any."""
    _claims: ModelOwnership | None
    """Follows the assignment of models to shards."""
    tuning: PolicyTuning
    _discovered: DiscoveredTritons
    _scaling: TritonScaling
    _reconfiguring: asyncio.Lock
    """Held while the configuration or the Tritons change."""
    _on_demand: OnDemandModels

    def __post_init__(self) -> None:
        self.address = ""
        """Address of the gRPC service."""
        self.http_address = ""
        """Address of the HTTP service; "" if not served."""
        self.metrics_address = ""
        """Address of the metrics; "" if not served."""
        self._grpc_services: list[GrpcService | HttpService] = []
        """Where clients come in."""

    @property
    def config(self) -> ServeConfig:
        """Current configuration."""
        return self._tritons.config

    @property
    def has_dashboard(self) -> bool:
        """Whether the dashboard is served at the address of the metrics."""
        return bool(self.metrics_address) and len(self.config.shards) <= 1 and self._gate.page_refusal() is None

    @property
    def engine(self) -> Engine:
        """Engine with the state of scheduling."""
        return self.driver.engine

    @property
    def liveness(self) -> Liveness:
        """Liveness of all its parts."""
        return self._control.liveness

    @property
    def catalog(self) -> Catalog:
        """The current catalog of the Tritons."""
        return self._directory.catalog

    async def show_metrics(
        self, page: MetricsPage, address: str, stack: AsyncExitStack, elsewhere: int | None = None
    ) -> None:
        """Serve the metrics; `stack` closes what this opens.

        `page`: the endpoint; `address`: HOST:PORT to listen on; `elsewhere`: port at which frontends serve the metrics
        instead.
        """
        if elsewhere is not None:
            self.metrics_address = self._bound(address, elsewhere)
            return
        stack.push_async_callback(page.close)
        port = await page.listen(address, reuse_port=self.config.listen.reuse_port)
        self.metrics_address = self._bound(address, port)

    async def serve_grpc(self, service: GrpcService, stack: AsyncExitStack) -> None:
        """Serve clients over gRPC."""
        address = self.config.listen.grpc
        port = await service.listen(address, self.config.tls)
        stack.push_async_callback(service.close)
        self._grpc_services.append(service)
        self.address = self._bound(address, port)

    async def serve_http(self, service: HttpService, address: str, stack: AsyncExitStack) -> None:
        """Serve clients over HTTP on `address` (HOST:PORT); `stack` closes the service."""
        stack.push_async_callback(service.close)
        port = await service.listen(address)
        self._grpc_services.append(service)
        self.http_address = self._bound(address, port)

    def _bound(self, address: str, port: int) -> str:
        if self.config.listen.reuse_port:
            prefer_newest(port)
        return f"{host_of(address)}:{port}"

    async def reconfigure(self, config: ServeConfig) -> None:
        """Apply all changes that are possible while serving; log those that need a restart.

        Raises BackendError, CredentialFileError, DocumentError, RestrictionError, TlsError or ValueError, and changes
        nothing, if a file or the policy is invalid, or if Tritons cannot be queried or do not match.
        """
        async with self._reconfiguring:
            await self._apply(self._discovered.with_discovered(config))
            self._discovered.follow(config)
            self._scaling.follow(config)

    async def _apply(self, config: ServeConfig) -> None:
        """Apply a configuration with all its Tritons; for what it raises see `reconfigure`."""
        is_changed = self.actuator is not None and self.actuator.changes_layout
        if is_changed:  # by the actuator, whose the Tritons are
            config = config.model_copy(update={"tritons": self.config.tritons, "layout": self.config.layout})
        changes = diff(self.config, config)
        wanted = changes.effective
        layout = read_document(wanted.layout, Layout) if wanted.layout else None
        assignment = assignment_of(wanted)
        if is_changed:
            layout = self._discovery.layout
        gate = AccessControl(wanted)
        with self._deciding(wanted.policy):
            await self._tritons.change(wanted, layout)
        # From here on nothing fails, and nothing waits.
        self._gate.follow(gate)
        self.rollout.follow(wanted)
        self.in_force.change(settings_of(wanted))
        self._inference.replace_bypasses(self.rollout.bypasses(), self.rollout.judged())
        self.driver.observability.replace_watchers(self.rollout.watchers())
        self.driver.settings_changed()
        self._on_demand.follow(wanted)
        self.driver.observability.metrics.account(wanted.prices, self._gate.rejections)
        if self.actuator and wanted.controller:
            (self.actuator.resume if wanted.controller.enabled else self.actuator.halt)()
        logging.getLogger().setLevel(wanted.log.level.upper())
        for line in changes.warnings:
            log.warning("configuration change ignored", extra={"detail": line})
        if self._claims:
            self._claims.follow(assignment)
        log.info("configuration applied", extra={"changed": ", ".join(changes.live) or "nothing"})

    @contextmanager
    def _deciding(self, wanted: PolicyChoice) -> Iterator[None]:
        """Let a policy decide from now on; and the one before again, should what it is to decide over be refused."""
        if wanted == self.config.policy:
            yield
            return
        self.driver.change_policy(wanted)
        self.tuning.follow(wanted)
        try:
            yield
        except BaseException:
            self.driver.change_policy(self.config.policy)
            self.tuning.follow(self.config.policy)
            raise

    async def look_at_files(self) -> None:
        """Run forever: reload tokens and keys that have changed in their files."""
        watched = self._credential_files()
        while True:
            await asyncio.sleep(CREDENTIALS_POLL_S)
            try:
                if watched.changed():
                    watched = self._credential_files()
                    self._gate.replace(self.config)
                    if self._tritons.read_headers():
                        await self._discovery.look_at_keys()
                    log.info("credentials reloaded")
            except Exception as error:  # the former rules stay
                log.error("credentials not reloaded, the former ones stay", extra={"error": str(error)})

    async def control_layout(self) -> None:
        """Run forever: change the layout as its controller wants, if there is one."""
        if self.actuator:
            await self.actuator.run()

    async def drain(self) -> None:
        """Let calls in flight end, over any protocol, within `drain_timeout_s` in total.

        If another process takes over, or connections have a limited age, clients are served until they were asked to
        reconnect, but for at most half of the time.
        """
        if self.actuator:
            self.actuator.halt()
        now, age_s = asyncio.get_running_loop().time(), self.config.limits.max_connection_age_s
        notice_s = RECONNECT_NOTICE_S if self.config.listen.reuse_port else 0.0
        serve_s = min(notice_s if age_s is None else AGE_JITTER * age_s, self.config.drain_timeout_s / 2)
        await asyncio.gather(
            *(service.drain(now + self.config.drain_timeout_s, now + serve_s) for service in self._grpc_services)
        )

    async def close(self) -> None:
        """Stop watching the Tritons, and abandon remaining calls."""
        if self.actuator:
            await self.actuator.close()
        await self._tritons.close()
        self._passages.end_all()
        await self.driver.close()

    def _credential_files(self) -> WatchedFiles:
        of_tritons = (path for triton in self.config.tritons for path in triton.headers.values())
        return WatchedFiles([*credential_files(self.config), *of_tritons])
