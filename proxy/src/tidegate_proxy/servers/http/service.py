"""HTTP service of the proxy: the same access control, scheduler and responses of all Tritons as over gRPC."""

import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from google.protobuf.json_format import MessageToDict

from tidegate_proxy.access.gate import AccessControl
from tidegate_proxy.base.outcome import RequestFailed
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.settings import SettingsHolder
from tidegate_proxy.messages.forwarded_metadata import HeaderForwarding, own_headers
from tidegate_proxy.messages.model_signature import ModelSignature
from tidegate_proxy.messages.passed_through import PassedThrough
from tidegate_proxy.messages.request import InferenceRequest
from tidegate_proxy.observability.model_statistics import statistics_json
from tidegate_proxy.rollout.versions import VersionRollouts
from tidegate_proxy.servers.http.application import HttpApplication
from tidegate_proxy.servers.http.exchange import HttpExchange
from tidegate_proxy.servers.http.forward import index_json
from tidegate_proxy.servers.http.infer_response import JSON_HEADERS, error, failure
from tidegate_proxy.servers.http.interface import Application, Handler, HttpAnswer, HttpCall, HttpLimits
from tidegate_proxy.servers.http.routes import Route
from tidegate_proxy.servers.http.server import HttpListener
from tidegate_proxy.service.control import ControlPlaneCalls
from tidegate_proxy.service.discovery import Discovery
from tidegate_proxy.service.fan_out import ControlVerb
from tidegate_proxy.service.inference import Inference
from tidegate_proxy.service.passthrough import Routing
from tidegate_proxy.transport.client_bounds import ClientBounds
from tidegate_proxy.tritons.backend import Backend
from tidegate_proxy.tritons.catalog import CurrentCatalog
from tidegate_proxy.tritons.split_models import SPLIT_MODEL_VERSION, SplitModel

log = logging.getLogger(__name__)


def split_handlers(directory: CurrentCatalog, control: ControlPlaneCalls) -> Mapping[tuple[str, str], Handler]:
    """Return the handlers for metadata, config, readiness and index of split models, as over gRPC."""

    def about_a_model(answer_of: Callable[[SplitModel], bytes]) -> Handler:
        async def handler(call: HttpCall) -> HttpAnswer:
            split = directory.catalog.split.get(call.route.model)
            if split is None or call.route.version not in ("", SPLIT_MODEL_VERSION):
                return error(400, f"Request for unknown model: '{call.route.model}' is not found")
            return HttpAnswer(200, [*JSON_HEADERS], answer_of(split))

        return handler

    async def index(_call: HttpCall) -> HttpAnswer:
        try:
            models = await control.repository_index()
        except RequestFailed as failed:
            return failure(failed)
        return HttpAnswer(200, [*JSON_HEADERS], index_json(models))

    return {
        ("GET", "/v2/models/{model}"): about_a_model(lambda split: _dumped(_metadata(split))),
        ("GET", "/v2/models/{model}/config"): about_a_model(lambda split: _dumped(_plain(split.config))),
        ("GET", "/v2/models/{model}/ready"): about_a_model(lambda _split: b""),
        ("POST", "/v2/repository/index"): index,
    }


def _metadata(split: SplitModel) -> dict[str, Any]:
    metadata = split.metadata
    return {
        "name": metadata.name,
        "versions": list(metadata.versions),
        "platform": metadata.platform,
        **{
            which: [
                {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
                for tensor in getattr(metadata, which)
            ]
            for which in ("inputs", "outputs")
        },
    }


def _plain(message: Any) -> dict[str, Any]:  # noqa: ANN401 - protobuf messages share no type
    found: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return found


def _dumped(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


_NOT_READY = 400
"""Response of Triton's health routes when not ready."""


StartServer = Callable[[Application, str], Awaitable[HttpListener]]


class HttpService:
    """HTTP service of the proxy. Call only from the event loop."""

    def __init__(
        self,
        config: ServeConfig,
        inference: Inference,
        directory: CurrentCatalog,
        discovery: Discovery,
        control: ControlPlaneCalls,
        routing: Routing,
        gate: AccessControl,
        bounds: ClientBounds,
        in_force: SettingsHolder,
        start: StartServer,
        versions: VersionRollouts,
    ) -> None:
        """Create the HTTP service. `start`: serves an application at an address, in this process or at frontends.

        `versions`: chooses versions for requests.
        """
        self._config = config
        self._start = start
        self._bounds = bounds
        self._limits = http_limits(config)
        self._directory = directory
        self._inference = inference
        self._own_headers = own_headers(config)
        self._noted: set[str] = set()
        """Models of which it was said that some requests pass."""
        self._control = control
        self._discovery = discovery
        self._frontend = HttpApplication(
            discovery.backends,
            routing,
            inference,
            self._signature,
            guard=gate.http_refusal,
            hidden=gate.credential_headers,
            owner=gate.http_owner,
            overrides=self._override,
            limits=self._limits,
            passed_through=routing.passed_through_http,
            refuses_shared_memory=lambda: in_force.settings.refuses_shared_memory,
            bounds=bounds,
            changing=self._changing,
            envelope_for_slot=self._envelope_for_slot,
            versions=versions,
        )
        self._own: dict[tuple[str, str], Handler] = {
            ("GET", "/v2/health/live"): self._live,
            ("GET", "/v2/health/ready"): self._ready,
            ("GET", "/v2/models/stats"): self._statistics,
            ("GET", "/v2/models/{model}/stats"): self._statistics,
            ("GET", "/v2/systemsharedmemory/status"): self._shared_memory_status,
            ("POST", "/v2/systemsharedmemory/unregister"): self._unregister_shared_memory,
        }
        self._with_a_layout = split_handlers(directory, control)
        self._server: HttpListener | None = None

    def _override(self, method: str, route: Route) -> Handler | None:
        """Return the local handler that replaces a Triton's; a layout may appear or disappear on reload."""
        key = (method, route.pattern)
        if handler := self._own.get(key):
            return None if self._control.leaves("http", route.api) else handler
        catalog = self._directory.catalog
        if catalog.layout or route.model in catalog.split or (catalog.split and not route.model):
            return self._with_a_layout.get(key)
        return None

    def _signature(self, model: str, exchange: HttpExchange) -> ModelSignature | None:
        catalog = self._directory.catalog
        if catalog.guarded and not self._inference.lets_in(model, "http", exchange.metadata):
            return None
        signature = self._inference.signature_of(model)
        if signature and signature.reads_headers:
            patterns = tuple(backend.http_forward_pattern for backend in catalog.hosts[model])
            if exchange.may_reach_model(HeaderForwarding(patterns, self._own_headers)):
                self._note(model)
                return None
        return signature

    def _envelope_for_slot(self, request: PassedThrough, exchange: HttpExchange) -> InferenceRequest | None:
        return self._inference.open_for_slot(b"", request, exchange.metadata, "http")

    def _note(self, model: str) -> None:
        if model not in self._noted:
            self._noted.add(model)
            log.info(
                "HTTP requests with forwarded headers bypass scheduling: set tritons.N.http_header_forward_pattern",
                extra={"model": model},
            )

    def _changing(self, verb: ControlVerb, call: HttpCall, triton: Backend) -> AbstractAsyncContextManager[None]:
        """Where the Triton decides who may change models, nothing is drained for a client that it may refuse."""
        limit_s = 0.0 if ("http", call.route.api) in triton.apis.left else math.inf
        return self._discovery.changing(verb, call.route.model, call.route.repository, triton, limit_s)

    @property
    def application(self) -> Application:
        """ASGI application."""
        return self._frontend

    async def listen(self, address: str) -> int:
        """Bind and serve, here or at the frontends; return the port. Raises OSError if it cannot be bound, TlsError."""
        await self._frontend.__aenter__()
        self._server = await self._start(self._frontend, address)
        return self._server.port

    async def drain(self, until: float, serve_until: float) -> None:
        """Let requests in flight end, as `HttpServer.drain`."""
        if self._server:
            await self._server.drain(until, serve_until)

    async def close(self) -> None:
        """Accept no more requests, and end those in flight."""
        if self._server:
            await self._server.stop()
        await self._frontend.__aexit__(None, None, None)

    async def _live(self, _call: HttpCall) -> HttpAnswer:
        complaint = self._control.liveness.complaint()
        return error(503, complaint) if complaint else HttpAnswer(200, [], b"")

    async def _ready(self, _call: HttpCall) -> HttpAnswer:
        return HttpAnswer(200 if await self._control.is_ready() else _NOT_READY, [], b"")

    async def _unregister_shared_memory(self, call: HttpCall) -> HttpAnswer:
        """One region, or all but those that Tidegate and the Tritons share."""
        try:
            await self._control.shared_memory.unregister(call.route.region)
        except RequestFailed as failed:
            return failure(failed)
        return HttpAnswer(200, [*JSON_HEADERS], b"")

    async def _shared_memory_status(self, call: HttpCall) -> HttpAnswer:
        """The status of one region, or of all but those that Tidegate and that Triton share."""
        try:
            regions = await self._control.shared_memory.registered(call.route.region)
        except RequestFailed as failed:
            return failure(failed)
        rows = [
            {"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size}
            for region in regions
        ]
        return HttpAnswer(200, [*JSON_HEADERS], json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode())

    async def _statistics(self, call: HttpCall) -> HttpAnswer:
        try:
            response = await self._control.statistics(call.route.model, call.route.version)
        except RequestFailed as failed:
            return failure(failed)
        return HttpAnswer(200, [*JSON_HEADERS], statistics_json(response))


def http_limits(config: ServeConfig) -> HttpLimits:
    """Return the limits of HTTP clients."""
    limits = config.limits
    return HttpLimits(
        body_bytes=int(limits.max_message_bytes),
        connections=limits.max_connections,
        head_s=limits.request_headers_timeout_s,
        body_s=limits.request_timeout_s,
        idle_s=limits.idle_timeout_s,
        send_s=limits.write_timeout_s,
        age_s=limits.max_connection_age_s,
    )
