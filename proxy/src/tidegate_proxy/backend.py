"""One Triton behind the proxy."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
from tritonclient.grpc import model_config_pb2, service_pb2

from tidegate_proxy.completion_queue import Channel

SERVICE: Final = "/inference.GRPCInferenceService/"
INFER: Final = SERVICE + "ModelInfer"
CHANNEL_OPTIONS: Final = (
    # Triton's own limit is INT32_MAX; grpc's default of 4 MiB would refuse what Triton takes.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A Triton that restarts is to be found again at once, not after grpc's back-off of up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
PROBE_TIMEOUT_S: Final = 1.0
CANCEL_AFTER_S: Final = 0.1
"""How long an inference that nobody waits for may go on before its Triton is told.

A Triton before 25.04 dies of a cancellation that meets the beginning or the end of an inference
(triton-inference-server/server, issues 7368 and 8034). Most inferences end within this time; of the others the
beginning is past.
"""


class BackendError(Exception):
    """A Triton cannot be used; the message names it and says why."""


@dataclass(frozen=True)
class LoadedModel:
    """A model that a Triton serves."""

    config: model_config_pb2.ModelConfig
    versions: tuple[str, ...]
    """Those that are ready."""


class Backend:
    """The channels to one Triton. Messages are bytes both ways: what is forwarded is not parsed."""

    def __init__(
        self,
        address: str,
        *,
        http: str | None = None,
        metrics: str | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        options: Sequence[tuple[str, Any]] = (),
        shares_memory: bool = False,
        worker: str = "",
    ) -> None:
        """`address` is that of its gRPC service, HOST:PORT as the other two; `options` are more of gRPC's."""
        self.address = address
        self.worker = worker
        """Which worker of the layout it is, where there is one."""
        self.shares_memory = shares_memory
        """Whether it is on this machine, so that large tensors can be handed to it in shared memory."""
        self.http_url = f"http://{http}" if http else ""
        self.metrics = metrics
        options = [*CHANNEL_OPTIONS, *options]
        self.channel = Channel(address, options, credentials)
        """For the hot path."""
        self.alive = True
        """False from the moment a call fails to reach it until a probe succeeds."""
        self.forwarded: set[Any] = set()
        """Calls without an end of their own, each with a method `cancel`. In the loop."""
        self._aio = (
            grpc.aio.secure_channel(address, credentials, options=options)
            if credentials
            else grpc.aio.insecure_channel(address, options=options)
        )

    def unary(self, method: str) -> Any:  # noqa: ANN401 - grpc is untyped
        """The callable of a unary method, by its full name. Not kept: clients may ask for any name."""
        return self._aio.unary_unary(method)

    def stream(self, method: str) -> Any:  # noqa: ANN401 - grpc is untyped
        """The callable of a bidirectional stream, by its full name."""
        return self._aio.stream_stream(method)

    def cut_off(self) -> None:
        """In the loop: end the calls without an end of their own, since it does not answer."""
        for call in list(self.forwarded):
            call.cancel()

    async def is_live(self) -> bool:
        """Whether it answers, within a second. It may be loading models."""
        try:
            await self.unary(SERVICE + "ServerLive")(b"", timeout=PROBE_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return False
        return True

    async def is_ready(self) -> bool:
        """Whether it answers and is ready, within a second."""
        try:
            answer = await self.unary(SERVICE + "ServerReady")(b"", timeout=PROBE_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return False
        return bool(service_pb2.ServerReadyResponse.FromString(answer).ready)

    async def models(self) -> list[LoadedModel]:
        """All models that are ready, by name. Raises BackendError when it cannot be asked."""
        versions = await self.ready_versions()
        try:
            return [LoadedModel(await self._config(name), versions[name]) for name in sorted(versions)]
        except grpc.aio.AioRpcError as error:
            raise BackendError(f"Triton at {self.address}: {error.details()}") from error

    async def ready_versions(self) -> dict[str, tuple[str, ...]]:
        """The versions of every model that are ready. Raises BackendError when it cannot be asked."""
        try:
            answer = await self._ask("RepositoryIndex", service_pb2.RepositoryIndexRequest(ready=True))
        except grpc.aio.AioRpcError as error:
            raise BackendError(f"Triton at {self.address}: {error.details()}") from error
        versions: dict[str, tuple[str, ...]] = {}
        for model in service_pb2.RepositoryIndexResponse.FromString(answer).models:
            versions[model.name] = (*versions.get(model.name, ()), model.version)
        return versions

    async def _config(self, name: str) -> model_config_pb2.ModelConfig:
        answer = await self._ask("ModelConfig", service_pb2.ModelConfigRequest(name=name))
        return service_pb2.ModelConfigResponse.FromString(answer).config

    async def close(self) -> None:
        """Close the channels; calls under way end with CANCELLED."""
        await asyncio.to_thread(self.channel.close)
        await self._aio.close()

    async def _ask(self, method: str, request: Any) -> bytes:  # noqa: ANN401 - protobuf messages share no type
        answer: bytes = await self.unary(SERVICE + method)(request.SerializeToString(), timeout=10.0)
        return answer
