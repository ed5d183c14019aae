"""One Triton behind the proxy."""

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import grpc
from tritonclient.grpc import model_config_pb2, service_pb2

from tidegate_proxy.access.passthrough_apis import GRPC_PREFIX, PassthroughApis
from tidegate_proxy.configuration.apis import METHOD_API, Api, Protocol
from tidegate_proxy.configuration.settings import InForce
from tidegate_proxy.configuration.tritons import TritonTls
from tidegate_proxy.transport import AsyncStream, CallFailed, Channel, Metadata, ask
from tidegate_proxy.tritons.serialization import SerializationController

SERVICE_PREFIX: Final = "/inference.GRPCInferenceService/"
INFER_METHOD: Final = SERVICE_PREFIX + "ModelInfer"
ANSWER_TIMEOUT_S: Final = 10.0
LOAD_TIMEOUT_S: Final = 600.0
"""Large models take minutes to load."""
CANCEL_AFTER_S: Final = 0.1
"""How long an inference that nobody waits for may go on before its Triton is told.

A Triton before 25.04 dies of a cancellation that meets the beginning or the end of an inference
(triton-inference-server/server, issues 7368 and 8034). Most inferences end within this time; of the others the
beginning is past.
"""


SHUTDOWN_CODES: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND})
"""Status codes of a Triton that is gone or shutting down: it unloads models while it still answers."""


_REFUSING: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED})
"""How a Triton refuses to unload any model, or a Triton that is gone fails to."""
_SILENT: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


def is_restricted(details: str) -> bool:
    """Whether these are Triton's words for an API that is not for everybody."""
    return details.startswith(("This protocol is restricted", '{"error":"This API is restricted'))


class BackendError(Exception):
    """A Triton cannot be used; the message names it and says why."""


class BackendSilent(BackendError):
    """A Triton cannot be reached, or does not answer in time; it may answer later."""


@dataclass(frozen=True)
class LoadedModel:
    """A model that a Triton serves."""

    config: model_config_pb2.ModelConfig
    """Only its name, where the Triton restricts `model-config`."""
    versions: tuple[str, ...]
    """The versions that are ready."""


class Backend:
    """The way to one Triton. Messages are bytes both ways: what is forwarded is not parsed."""

    def __init__(
        self,
        address: str,
        *,
        http: str | None = None,
        metrics: str | None = None,
        tls: TritonTls | None = None,
        keepalive_s: float | None = None,
        shares_memory: bool = False,
        worker: str = "",
        device_class: str = "",
        serialize_models: bool | Literal["learned"] | None = None,
        is_local: bool = False,
        headers: Sequence[tuple[str, str]] = (),
        http_forward_pattern: str | None = None,
        grpc_forward_pattern: str | None = None,
        in_force: InForce | None = None,
    ) -> None:
        """`address` is that of its gRPC service, HOST:PORT as the other two; `keepalive_s`: as the configuration's.

        `headers` open what it restricts, named as over HTTP. `http_forward_pattern`, `grpc_forward_pattern`: which of
        its clients' headers it forwards to models. `in_force`: None for the defaults. Raises TlsError.
        """
        self.address = address
        self.headers = tuple(headers)
        self.http_forward_pattern = http_forward_pattern
        """Pattern of HTTP headers that it forwards to models; None: unknown, empty: none."""
        self.grpc_forward_pattern = grpc_forward_pattern
        """The same of metadata over gRPC."""
        self.apis = PassthroughApis()
        """APIs that it restricts and that Tidegate leaves to it."""
        self._in_force = in_force or InForce()
        self._health: dict[str, asyncio.Task[bytes]] = {}
        """Probes under way, by method."""
        self.worker = worker
        """Name of its worker in the layout, if any."""
        self.device_class = device_class
        """The kind of its workers, where the configuration says it."""
        self.learns_turns = serialize_models == "learned" and not worker
        """Whether models are to take turns where that is found to be better."""
        self.serialize_models = None if serialize_models == "learned" else serialize_models
        """Whether its models run in turn, where the configuration says it."""
        self.turns = SerializationController() if self.serialize_models is None and not worker else None
        """How much its models slow each other down, and which of them take turns therefore."""
        self.is_local = is_local
        """Whether its address is of this machine."""
        self.shares_memory = shares_memory
        """Whether it is on this machine, so that large tensors can be handed to it in shared memory."""
        self.http_url = f"http://{http}" if http else ""
        self.metrics = metrics
        self.channel = Channel(address, tls, keepalive_s)
        """For who wants callbacks, with what `opened` makes of the metadata."""
        self.alive = True
        """False from the moment a call fails to reach it until a probe succeeds."""
        self.heard_ns = 0
        """When it answered an inference last, on the monotonic clock."""
        self.open_calls: set[Any] = set()
        """Calls without an end of their own, each with a method `cancel`."""
        self.in_flight_by_model = Counter[str]()
        """Inferences that were passed on to it and have no answer; of a stream, each of its requests."""
        self.in_flight = 0
        """The same of all models together."""

    @property
    def health_timeout_s(self) -> float:
        """After which a health probe counts as not answered."""
        return self._in_force.settings.health_timeout_s

    def opened(self, metadata: Metadata) -> Metadata:
        """Return the metadata of a call with the headers that unlock APIs, which take precedence."""
        if not self.headers:
            return metadata
        own = {GRPC_PREFIX + name: value for name, value in self.headers}
        return [*own.items(), *(pair for pair in metadata if pair[0] not in own)]

    def opened_for_client(self, method: str, metadata: Metadata) -> Metadata:
        """The same for a client's call of a method, which has its own headers alone where this Triton decides."""
        is_left = self.apis.left and ("grpc", METHOD_API.get(method)) in self.apis.left
        return metadata if is_left else self.opened(metadata)

    def http_headers(self, api: Api) -> Sequence[tuple[str, str]]:
        """Return the headers that unlock an API for an HTTP call; none if the Triton decides."""
        return () if ("http", api) in self.apis.left else self.headers

    def shows_key(self, protocol: Protocol, metadata: Metadata) -> bool:
        """Whether a client's inference may be scheduled here, as far as this Triton restricts it."""
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
        """Its answer to a unary call, by the method's full name. Raises CallFailed.

        `opened`: False to call as anybody might, without the headers that open APIs. `for_client`: the call has no end
        of its own, and ends when this Triton is given up.
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
        """Begin a bidirectional stream, by the method's full name; as `ask`."""
        return AsyncStream(self.channel, method, self._with_headers(method, metadata, opened, for_client), timeout_s)

    def withdraw(self) -> None:
        """Count as lost: it is given nothing more, until it is taken back."""
        self.alive = False

    def take_back(self) -> None:
        """Count as alive again."""
        self.alive = True

    def replace_headers(self, headers: Sequence[tuple[str, str]]) -> bool:
        """Open what it restricts with these headers from now on; whether they are others."""
        before, self.headers = self.headers, tuple(headers)
        return before != self.headers

    def restrict(self, apis: PassthroughApis) -> None:
        """Leave these APIs to the Triton, as it was found to restrict them."""
        self.apis = apis

    def end_turns(self) -> None:
        """Learn no more of how its models slow each other down, and have none take turns."""
        self.turns = None

    def passes(self, model: str) -> None:
        """An inference is passed on to it."""
        self.in_flight_by_model[model] += 1
        self.in_flight += 1

    def passed(self, model: str, count: int = 1) -> None:
        """So many of a model's inferences have their answers, or will never have any."""
        self.in_flight_by_model[model] -= count
        if not self.in_flight_by_model[model]:
            del self.in_flight_by_model[model]
        self.in_flight -= count

    def cut_off(self) -> None:
        """End the calls without an end of their own, since it does not answer."""
        for call in list(self.open_calls):
            call.cancel()

    def _with_headers(self, method: str, metadata: Metadata, opened: bool, for_client: bool) -> Metadata:
        if not opened:
            return metadata
        return self.opened_for_client(method, metadata) if for_client else self.opened(metadata)

    async def is_live(self) -> bool:
        """Whether it answers in time. It may be loading models."""
        try:
            await self._probe("ServerLive")
        except CallFailed as error:
            return is_restricted(error.details)
        return True

    async def is_ready(self) -> bool:
        """Whether it answers in time and is ready, as far as it says: one that restricts health may be."""
        try:
            answer = await self._probe("ServerReady")
        except CallFailed as error:
            return is_restricted(error.details)
        return bool(service_pb2.ServerReadyResponse.FromString(answer).ready)

    async def serves(self, *, settled: bool = False) -> bool:
        """Whether it is ready, or lists its models: one that could not load all of them is never ready.

        A Triton that restricts both serves as soon as it says so. `settled`: False, too, while it loads a model; where
        it restricts the list alone, until it is ready.
        """
        tells_health = True
        try:
            answer = await self._probe("ServerReady")
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
        """A health probe: one at a time, whoever asks, for one that is slow to answer needs no more of them."""
        under_way = self._health.get(method)
        if under_way is None or under_way.done():
            call = self.ask(SERVICE_PREFIX + method, b"", timeout_s=self.health_timeout_s)
            under_way = self._health[method] = asyncio.ensure_future(call)
            under_way.add_done_callback(_take_note)
        return await asyncio.shield(under_way)

    async def models(self, known: Sequence[LoadedModel] = (), suspects: Collection[str] = ()) -> list[LoadedModel]:
        """All models that are ready, by name. Raises BackendError when it cannot be asked.

        A `known` model whose versions are the same is not asked for its config, unless it is one of the `suspects`.
        The same object stands for a model that has not changed.
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
        """The versions of every model that are ready. Raises BackendError when it cannot be asked.

        A Triton that restricts the list is asked for its statistics; none, where it restricts these, too.
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
        """Have it load a model, with this config (JSON) if not with its own. Raises BackendError where it does not."""
        request = service_pb2.RepositoryModelLoadRequest(model_name=name)
        if config is not None:
            request.parameters["config"].string_param = config
        try:
            await self.ask(
                SERVICE_PREFIX + "RepositoryModelLoad", request.SerializeToString(), timeout_s=LOAD_TIMEOUT_S
            )
        except CallFailed as error:
            raise BackendError(f"Triton at {self.address} does not load {name!r}: {error.details}") from error

    async def unload(self, name: str) -> None:
        """Have it unload a model once what runs is done. Raises BackendError where it does not."""
        request = service_pb2.RepositoryModelUnloadRequest(model_name=name)
        try:
            await self.ask(
                SERVICE_PREFIX + "RepositoryModelUnload", request.SerializeToString(), timeout_s=LOAD_TIMEOUT_S
            )
        except CallFailed as error:
            raise BackendError(f"Triton at {self.address} does not unload {name!r}: {error.details}") from error

    async def may_unload(self, repository: str) -> bool:
        """Whether it carries out unloads, here of a repository's models; True where it does not say.

        A Triton refuses all unloads outside of the model control mode `explicit`, and all that name a repository. In
        that mode it accepts the unload of a model without a name, which has no effect.
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
        """The config of a model that is ready. Raises BackendError."""
        answer = await self._ask("ModelConfig", service_pb2.ModelConfigRequest(name=name))
        return service_pb2.ModelConfigResponse.FromString(answer).config

    async def close(self) -> None:
        """Close the channel; calls under way end with CANCELLED."""
        for probe in self._health.values():
            probe.cancel()
        await self.channel.close()

    async def _ask(self, method: str, request: Any) -> bytes:  # noqa: ANN401 - protobuf messages share no type
        """Call the Triton and return its response. Raises BackendError."""
        try:
            return await self.ask(SERVICE_PREFIX + method, request.SerializeToString(), timeout_s=ANSWER_TIMEOUT_S)
        except CallFailed as error:
            kind = BackendSilent if error.code in _SILENT else BackendError
            raise kind(f"Triton at {self.address}: {error.details}") from error


def _take_note(task: "asyncio.Task[bytes]") -> None:
    """How a probe ended is of no interest where nobody waits for it any more."""
    if not task.cancelled():
        task.exception()
