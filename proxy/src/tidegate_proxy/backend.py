"""One Triton behind the proxy."""

import asyncio
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


class BackendError(Exception):
    """A Triton cannot be used; the message names it and says why."""


class Backend:
    """The channel to one Triton. Messages are bytes both ways: what is forwarded is not parsed."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = Channel(address, CHANNEL_OPTIONS)
        """For the hot path."""
        self.alive = True
        """False from the moment a call fails to reach it until a probe succeeds."""
        self._aio = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)

    def unary(self, method: str) -> Any:  # noqa: ANN401 - grpc is untyped
        """The callable of a unary method, by its full name. Not kept: clients may ask for any name."""
        return self._aio.unary_unary(method)

    def stream(self, method: str) -> Any:  # noqa: ANN401 - grpc is untyped
        """The callable of a bidirectional stream, by its full name."""
        return self._aio.stream_stream(method)

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

    async def configs(self) -> list[model_config_pb2.ModelConfig]:
        """The configs of all models that are ready, by name. Raises BackendError when it cannot be asked."""
        try:
            index = await self._ask("RepositoryIndex", service_pb2.RepositoryIndexRequest(ready=True))
            names = sorted({model.name for model in service_pb2.RepositoryIndexResponse.FromString(index).models})
            answers = [await self._ask("ModelConfig", service_pb2.ModelConfigRequest(name=name)) for name in names]
        except grpc.aio.AioRpcError as error:
            raise BackendError(f"Triton at {self.address}: {error.details()}") from error
        return [service_pb2.ModelConfigResponse.FromString(answer).config for answer in answers]

    async def close(self) -> None:
        """Close the channels; calls under way end with CANCELLED."""
        await asyncio.to_thread(self.channel.close)
        await self._aio.close()

    async def _ask(self, method: str, request: Any) -> bytes:  # noqa: ANN401 - protobuf messages share no type
        answer: bytes = await self.unary(SERVICE + method)(request.SerializeToString(), timeout=10.0)
        return answer
