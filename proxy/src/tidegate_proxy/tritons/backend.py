"""Backend: one Triton behind the proxy, with its addresses, channel and state."""

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import grpc
from tritonclient.grpc import model_config_pb2, service_pb2

from tidegate.control.concurrency_limit import ConcurrencyLimit  # noqa: TC001 - of an attribute
from tidegate_proxy.access.passthrough_apis import GRPC_PREFIX, PassthroughApis
from tidegate_proxy.configuration.apis import METHOD_API, Api, Protocol
from tidegate_proxy.configuration.settings import SettingsHolder
from tidegate_proxy.configuration.tritons import TritonAddress
from tidegate_proxy.messages.model_signature import ModelSignature, signature_of
from tidegate_proxy.transport import AsyncStream, CallFailed, Channel, Metadata, ask
from tidegate_proxy.tritons.loop_detector import LoopDetector
from tidegate_proxy.tritons.serialization import SerializationController

SERVICE_PREFIX: Final = "/inference.GRPCInferenceService/"
INFER_METHOD: Final = SERVICE_PREFIX + "ModelInfer"
ANSWER_TIMEOUT_S: Final = 10.0
LOAD_TIMEOUT_S: Final = 600.0
"""Time limit in seconds for loading a model; large ones take minutes."""
CANCEL_AFTER_S: Final = 0.1
"""Delay in seconds before an inference is cancelled at a Triton after its client has left.

A Triton before 25.04 crashes on a cancellation at the beginning or the end of an inference
(triton-inference-server/server, issues 7368 and 8034). Most inferences end within this time; the others are past their
beginning.
"""


_SHUTDOWN_CODES: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND})
"""Status codes of a Triton that is gone or shutting down: it unloads models while it still answers."""

_UNTAKEN: Final = "CANCELLED"
"""Message with which a server of gRPC ends, as CANCELLED, calls that it has received and not begun when it stops."""


_REFUSING: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED})
"""How a Triton refuses to unload any model, or a Triton that is gone fails to."""
_SILENT: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


_GONE_REASONS: Final = frozenset({"", "unloaded"})
"""Reasons in the index for a model that takes no memory."""


def is_restricted(details: str) -> bool:
    """Return whether an error message is Triton's for a restricted API."""
    return details.startswith(("This protocol is restricted", '{"error":"This API is restricted'))


def is_shutdown(code: grpc.StatusCode, details: str) -> bool:
    """Return whether an error may come from a Triton that is gone or shutting down."""
    return code in _SHUTDOWN_CODES or (code is grpc.StatusCode.CANCELLED and details == _UNTAKEN)


class BackendError(Exception):
    """Error: a Triton cannot be used; the message names it and the cause."""


class BackendSilent(BackendError):
    """Error: a Triton is unreachable, or does not answer in time; it may answer later."""


@dataclass(frozen=True)
class LoadedModel:
    """Model that a Triton serves."""

    config: model_config_pb2.ModelConfig
    """Configuration; only the name if the Triton restricts `model-config`."""
    versions: tuple[str, ...]
    """Versions that are ready."""

    @cached_property
    def signature(self) -> ModelSignature:
        """Its signature, made once: a catalog of hundreds of models is made again with every load."""
        return signature_of(self.config)


class Backend:
    """Triton behind the proxy. Messages are bytes in both directions: forwarded ones are not parsed."""

    def __init__(
        self,
        triton: TritonAddress,
        headers: Sequence[tuple[str, str]] = (),
        keepalive_s: float | None = None,
        in_force: SettingsHolder | None = None,
        loops: LoopDetector | None = None,
    ) -> None:
        """Create the backend. Raises TlsError.

        `headers` open its restricted APIs, named as over HTTP. `keepalive_s`: as in the configuration. `in_force`: None
        for the defaults. `loops`: None: it is no loop.
        """
        self.address = triton.grpc
        self.headers = tuple(headers)
        self.http_forward_pattern = triton.http_header_forward_pattern
        """Pattern of HTTP headers that it forwards to models; None: unknown, empty: none."""
        self.grpc_forward_pattern = triton.grpc_header_forward_pattern
        """Pattern of gRPC metadata that it forwards to models; None: unknown, "": none."""
        self.limits: dict[str, ConcurrencyLimit] = {}
        """Adaptive concurrency limits, by model with `max_concurrency: auto`."""
        self.apis = PassthroughApis()
        """APIs that it restricts and that Tidegate leaves to it."""
        self._in_force = in_force or SettingsHolder()
        self._loops = loops or LoopDetector()
        self._token = self._loops.new_token()
        self._health: dict[str, asyncio.Task[bytes]] = {}
        """Probes in flight, by method."""
        self.worker = triton.worker or ""
        """Name of its worker in the layout, if any."""
        self.device_class = triton.device_class or ""
        """Device class of its workers, if configured."""
        self.model_memory = triton.model_memory
        """Memory for models that are loaded on demand, in bytes; None: it loads none."""
        self.learns_turns = triton.serialize_models == "learned" and not self.worker
        """Whether models are serialized if that is found to be better."""
        self.serialize_models = None if triton.serialize_models == "learned" else triton.serialize_models
        """Whether its models are serialized, if configured."""
        self.turns = SerializationController() if self.serialize_models is None and not self.worker else None
        """Estimator of interference between its models, and the decision on serialization."""
        self.is_local = triton.is_local
        """Whether its address is on this machine."""
        self.shares_memory = triton.shares_memory
        """Whether large tensors are passed in shared memory, because it is on this machine."""
        self.http_url = f"http://{triton.http}" if triton.http else ""
        self.metrics = triton.metrics
        self.channel = Channel(triton.grpc, triton.tls, keepalive_s)
        """Channel for calls with callbacks; pass metadata through `opened`."""
        self.is_closed = False
        """Whether its channel is closed for good."""
        self.alive = True
        """Whether it is live: False from a call that fails to reach it until a probe succeeds."""
        self._takes_part = False
        """Whether it may get requests; False while it is only asked whether it can join."""
        self.heard_ns = 0
        """Instant of its last response to an inference, on the monotonic clock."""
        self.open_calls: set[Any] = set()
        """Calls with a long timeout or none, each with a method `cancel`."""
        self.in_flight_by_model = Counter[str]()
        """Number of forwarded inferences without a response, by model; of a stream, each of its requests."""
        self.in_flight = 0
        """Number of forwarded inferences without a response."""

    @property
    def health_timeout_s(self) -> float:
        """Time in seconds after which a health probe counts as unanswered."""
        return self._in_force.settings.health_timeout_s

    @property
    def leads_back(self) -> bool:
        """Whether its address is that of Tidegate itself, or of another one that calls this one."""
        return self._loops.leads_back(self._token)

    def opened(self, metadata: Metadata) -> Metadata:
        """Return the metadata of a call with the headers that unlock APIs, which take precedence."""
        if not self.headers:
            return metadata
        own = {GRPC_PREFIX + name: value for name, value in self.headers}
        return [*own.items(), *(pair for pair in metadata if pair[0] not in own)]

    def opened_for_client(self, method: str, metadata: Metadata) -> Metadata:
        """Return the metadata of a client's call; only the client's own headers if this Triton controls the API."""
        is_left = self.apis.left and ("grpc", METHOD_API.get(method)) in self.apis.left
        return metadata if is_left else self.opened(metadata)

    def http_headers(self, api: Api) -> Sequence[tuple[str, str]]:
        """Return the headers that unlock an API for an HTTP call; none if the Triton decides."""
        return () if ("http", api) in self.apis.left else self.headers

    def shows_key(self, protocol: Protocol, metadata: Metadata) -> bool:
        """Return whether a client's inference may be scheduled under this Triton's restrictions."""
        return self.apis.shows_key(protocol, metadata, self.headers)

    async def ask(
        self,
        method: str,
        message: bytes,
        metadata: Metadata = (),
        timeout_s: float | None = None,
        *,
        opened: bool = True,
        for_client: bool = False,
    ) -> bytes:
        """Return the response to a unary call, by the method's full name. Raises CallFailed.

        `opened`: False to call without the headers that open restricted APIs. `for_client`: the call has no timeout,
        and ends when this Triton is given up.
        """
        metadata = self._with_headers(method, metadata, opened, for_client)
        among = self.open_calls if for_client else None
        return await ask(self.channel, method, message, metadata, timeout_s, among=among)

    def stream(
        self,
        method: str,
        metadata: Metadata = (),
        timeout_s: float | None = None,
        *,
        opened: bool = True,
        for_client: bool = False,
    ) -> AsyncStream:
        """Begin a bidirectional stream, by the method's full name; see `ask`.

        `opened`: called when the stream is open; `for_client`: whether a client waits for it.
        """
        return AsyncStream(self.channel, method, self._with_headers(method, metadata, opened, for_client), timeout_s)

    def take_part(self) -> None:
        """Mark the Triton as one that gets requests, so that its probes carry the tokens of other Tidegates."""
        self._takes_part = True

    def withdraw(self) -> None:
        """Mark the Triton as lost: it gets no more requests until it is taken back."""
        self.alive = False

    def take_back(self) -> None:
        """Mark the Triton as live again."""
        self.alive = True

    def replace_headers(self, headers: Sequence[tuple[str, str]]) -> bool:
        """Replace the headers that open restricted APIs; return whether they have changed."""
        before, self.headers = self.headers, tuple(headers)
        return before != self.headers

    def restrict(self, apis: PassthroughApis) -> None:
        """Leave these APIs to the Triton, because it restricts them."""
        self.apis = apis

    def end_turns(self) -> None:
        """Stop estimating interference between its models, and serialize none."""
        self.turns = None

    def passes(self, model: str) -> None:
        """Count an inference that is forwarded to it."""
        self.in_flight_by_model[model] += 1
        self.in_flight += 1

    def passed(self, model: str, count: int = 1) -> None:
        """Count inferences of a model that were answered, or never will be."""
        self.in_flight_by_model[model] -= count
        if not self.in_flight_by_model[model]:
            del self.in_flight_by_model[model]
        self.in_flight -= count

    def cut_off(self) -> None:
        """End the calls with a long timeout or none, because it does not answer."""
        for call in list(self.open_calls):
            call.cancel()

    def _with_headers(self, method: str, metadata: Metadata, opened: bool, for_client: bool) -> Metadata:
        if not opened:
            return metadata
        return self.opened_for_client(method, metadata) if for_client else self.opened(metadata)

    async def is_live(self) -> bool:
        """Query whether it answers in time. It may be loading models."""
        try:
            await self._probe("ServerLive")
        except CallFailed as error:
            return is_restricted(error.details)
        return not self.leads_back

    async def is_ready(self) -> bool:
        """Query whether it is ready in time, as far as it reports: one that restricts health may be."""
        try:
            answer = await self._probe("ServerReady")
        except CallFailed as error:
            return is_restricted(error.details)
        return bool(service_pb2.ServerReadyResponse.FromString(answer).ready)

    async def serves(self, *, settled: bool = False) -> bool:
        """Query whether the Triton serves: it is ready, or lists its models, as one with a broken model is never ready.

        A Triton that restricts both APIs serves once it refuses a call. `settled`: return False while it loads a model,
        or, if it restricts only the list, until it is ready. Raises BackendError if it leads back to Tidegate.
        """
        tells_health = True
        try:
            answer = await self._probe("ServerReady")
            if self.leads_back:
                raise BackendError(f"{self.address} leads back to Tidegate itself: list the gRPC ports of Tritons")
            if service_pb2.ServerReadyResponse.FromString(answer).ready:
                return True
        except CallFailed as error:
            tells_health = not is_restricted(error.details)
        try:
            answer = await self.ask(SERVICE_PREFIX + "RepositoryIndex", b"", timeout_s=ANSWER_TIMEOUT_S)
        except CallFailed as error:
            return is_restricted(error.details) and not (settled and tells_health)
        models = service_pb2.RepositoryIndexResponse.FromString(answer).models
        return not settled or all(model.state != "LOADING" for model in models)

    async def _probe(self, method: str) -> bytes:
        """Probe the health, one at a time for all callers: a slow Triton needs no more of them."""
        under_way = self._health.get(method)
        if under_way is None or under_way.done():
            metadata = self._loops.metadata(self._token, takes_part=self._takes_part)
            call = self.ask(SERVICE_PREFIX + method, b"", metadata, self.health_timeout_s)
            under_way = self._health[method] = asyncio.ensure_future(call)
            under_way.add_done_callback(_take_note)
        return await asyncio.shield(under_way)

    async def models(self, known: Sequence[LoadedModel] = (), suspects: Collection[str] = ()) -> list[LoadedModel]:
        """Return all models that are ready, by name. Raises BackendError if it cannot be queried.

        The config of a `known` model with equal versions is not queried, unless it is one of the `suspects`. An
        unchanged model keeps its object.
        """
        before = {model.config.name: model for model in known}
        versions = await self.ready_versions()
        models: list[LoadedModel] = []
        for name in sorted(versions):
            model = before.get(name)
            if model is None or name in suspects or model.versions != versions[name]:
                asked = await self._loaded(name, versions[name])
                model = model if model == asked else asked
            models.append(model)
        return models

    async def ready_versions(self) -> dict[str, tuple[str, ...]]:
        """Return the ready versions of every model. Raises BackendError if it cannot be queried.

        If the list is restricted, its statistics are queried; the result is empty if these are restricted too.
        """
        if "model-repository" in self.apis.closed:
            return await self._versions_with_statistics() if self.apis.lists_models else {}
        answer = await self._ask("RepositoryIndex", service_pb2.RepositoryIndexRequest(ready=True))
        versions: dict[str, tuple[str, ...]] = {}
        for model in service_pb2.RepositoryIndexResponse.FromString(answer).models:
            versions[model.name] = (*versions.get(model.name, ()), model.version)
        return versions

    async def _versions_with_statistics(self) -> dict[str, tuple[str, ...]]:
        answer = await self._ask("ModelStatistics", service_pb2.ModelStatisticsRequest())
        versions: dict[str, tuple[str, ...]] = {}
        for model in service_pb2.ModelStatisticsResponse.FromString(answer).model_stats:
            versions[model.name] = (*versions.get(model.name, ()), model.version)
        return versions

    async def _loaded(self, name: str, versions: tuple[str, ...]) -> LoadedModel:
        if "model-config" in self.apis.closed:
            return LoadedModel(model_config_pb2.ModelConfig(name=name), versions)
        return LoadedModel(await self.config(name), versions)

    async def load(self, name: str, config: str | None = None) -> None:
        """Load a model, with this config (JSON) or its own. Raises BackendError if that fails."""
        request = service_pb2.RepositoryModelLoadRequest(model_name=name)
        if config is not None:
            request.parameters["config"].string_param = config
        try:
            await self._change(SERVICE_PREFIX + "RepositoryModelLoad", request.SerializeToString())
        except CallFailed as error:
            raise BackendError(f"Triton at {self.address} does not load {name!r}: {error.details}") from error

    async def unload(self, name: str) -> None:
        """Unload a model after its running requests. Raises BackendError if that fails."""
        request = service_pb2.RepositoryModelUnloadRequest(model_name=name)
        try:
            await self._change(SERVICE_PREFIX + "RepositoryModelUnload", request.SerializeToString())
        except CallFailed as error:
            raise BackendError(f"Triton at {self.address} does not unload {name!r}: {error.details}") from error

    async def _change(self, method: str, message: bytes) -> None:
        """Change a model; the call ends when this Triton is given up. Raises CallFailed."""
        await ask(self.channel, method, message, self.opened(()), LOAD_TIMEOUT_S, among=self.open_calls)

    async def repository(self) -> frozenset[str]:
        """Return the models in its repository, loaded or not. Raises BackendError if it cannot be queried."""
        return frozenset(row.name for row in await self._index())

    async def is_loading(self, name: str) -> bool:
        """Return whether a version of a model is being loaded. Raises BackendError if it cannot be queried."""
        return any(row.name == name and row.state == "LOADING" for row in await self._index())

    async def is_unloaded(self, name: str) -> bool:
        """Return whether no version of a model is loaded or being unloaded any more. Raises BackendError."""
        rows = [row for row in await self._index() if row.name == name]
        return all(row.state in ("", "UNAVAILABLE") and row.reason in _GONE_REASONS for row in rows)

    async def _index(self) -> Any:  # noqa: ANN401 - protobuf messages share no type
        answer = await self._ask("RepositoryIndex", service_pb2.RepositoryIndexRequest())
        return service_pb2.RepositoryIndexResponse.FromString(answer).models

    async def may_unload(self, repository: str) -> bool:
        """Query whether it executes unloads, of a repository's models if given; True if it does not say.

        A Triton rejects all unloads outside the model control mode `explicit`, and all that name a repository. In that
        mode it accepts the unload of a model without a name, which has no effect.
        """
        request = service_pb2.RepositoryModelUnloadRequest(repository_name=repository)
        try:
            await self.ask(
                SERVICE_PREFIX + "RepositoryModelUnload", request.SerializeToString(), timeout_s=ANSWER_TIMEOUT_S
            )
        except CallFailed as error:
            return error.code not in _REFUSING or is_restricted(error.details)
        return True

    async def config(self, name: str) -> model_config_pb2.ModelConfig:
        """Return the config of a ready model. Raises BackendError."""
        answer = await self._ask("ModelConfig", service_pb2.ModelConfigRequest(name=name))
        return service_pb2.ModelConfigResponse.FromString(answer).config

    async def close(self) -> None:
        """Close the channel; calls in flight end with CANCELLED."""
        self.is_closed = True
        for probe in self._health.values():
            probe.cancel()
        await self.channel.close()

    async def _ask(self, method: str, request: Any) -> bytes:  # noqa: ANN401 - protobuf messages share no type
        """Call the Triton and return its response. Raises BackendError."""
        try:
            metadata = self._loops.metadata(self._token, takes_part=self._takes_part)
            return await self.ask(SERVICE_PREFIX + method, request.SerializeToString(), metadata, ANSWER_TIMEOUT_S)
        except CallFailed as error:
            kind = BackendSilent if error.code in _SILENT else BackendError
            details = error.details or error.code.name
            if error.code is grpc.StatusCode.UNIMPLEMENTED:  # another server that speaks the protocol, such as Dynamo's
                details = f"has no {method}: Tidegate needs a Triton Inference Server at its gRPC port (8001)"
            raise kind(f"Triton at {self.address}: {details}") from error


def _take_note(task: "asyncio.Task[bytes]") -> None:
    """Ignore the result of a probe that no caller waits for."""
    if not task.cancelled():
        task.exception()
