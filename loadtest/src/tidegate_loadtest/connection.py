"""Connection to the server: gRPC channels, and the queries that precede any load."""

import re
import ssl
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Protocol, Self, TypeVar

import grpc
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tidegate.schemas import did_you_mean


class TlsFileError(Exception):
    """Error: a certificate or key is invalid; the message names the file."""


def credentials_of(tls: Mapping[str, Path | str]) -> grpc.ChannelCredentials:
    """Return the credentials of a channel, from the files `ca`, `cert` and `key`; without `ca`, trust the system's CAs.

    Raises TlsFileError.
    """
    ca, cert, key = (Path(tls[name]) if name in tls else None for name in ("ca", "cert", "key"))
    if (cert is None) != (key is None):
        raise TlsFileError("--tls-cert and --tls-key go together: give both or neither")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    texts = [None if path is None else _read(path) for path in (ca, key, cert)]
    try:
        if ca is not None:
            context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise TlsFileError(f"{ca}: there are no certificates in PEM form in it") from error
    try:
        if cert is not None:
            context.load_cert_chain(cert, key)
    except ssl.SSLError as error:
        raise TlsFileError(f"{cert} and {key} are no certificate and its key in PEM form: {error.reason}") from error
    return grpc.ssl_channel_credentials(*texts)


def options_of(tls: Mapping[str, Path | str]) -> list[tuple[str, str]]:
    """Return the options of that channel: the name in the server's certificate, if it differs from the address."""
    return [("grpc.ssl_target_name_override", str(tls["server_name"]))] if "server_name" in tls else []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsFileError(f"{path}: {error.strerror}") from error


Answer = TypeVar("Answer")

MAX_PORT_NUMBER = 65535
ANSWER_WITHIN_S = 5.0
"""Timeout, in seconds, of queries about the server and its models."""


class LoadTestError(Exception):
    """Error: the test cannot be run as requested. The message is one line with the remedy."""


class AsksForModels(Protocol):
    """Source of models' metadata and configurations; both methods raise LoadTestError for an unknown model."""

    async def model_metadata(self, model: str) -> pb.ModelMetadataResponse:
        """Return the names, types and shapes of a model's tensors."""

    async def model_config(self, model: str) -> model_config_pb2.ModelConfig:
        """Return a model's configuration."""


class Connection:
    """Open channels to one server: `async with Connection("localhost:8001") as connection`.

    tritonclient's stub is called directly, with its own messages: these are built before the run, whereas
    tritonclient's asyncio client would build each one while others are due.
    """

    def __init__(self, target: str, *, channels: int = 1, tls: Mapping[str, Path | str] | None = None) -> None:
        """Prepare `channels` TCP connections to a server's gRPC service at `target`, HOST:PORT.

        `tls`: the files `ca`, `cert` and `key`, and `server_name`, each optional; None: no TLS.
        """
        self.target = target
        self._tls = tls
        self._channel_count = channels
        self._channels: list[grpc.aio.Channel] = []
        self.stubs: list[GRPCInferenceServiceStub] = []
        """Stubs, one per channel."""

    async def __aenter__(self) -> Self:
        """Connect. Raises LoadTestError where no live server answers."""
        found = re.fullmatch(r"(?!.*://).+:(\d{1,5})", self.target)
        if found is None or not 0 < int(found[1]) <= MAX_PORT_NUMBER:
            raise LoadTestError(f"{self.target!r} is not HOST:PORT of a server's gRPC, such as localhost:8001")
        options: list[tuple[str, int | str]] = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),  # else channels to one address share one TCP connection
        ]
        self._channels = [self._channel(options) for _ in range(self._channel_count)]
        self.stubs = [GRPCInferenceServiceStub(channel) for channel in self._channels]
        try:
            await self.require_live()
        except BaseException:
            await self._close()
            raise
        return self

    def _channel(self, options: list[tuple[str, int | str]]) -> grpc.aio.Channel:
        if self._tls is None:
            return grpc.aio.insecure_channel(self.target, options)
        try:
            credentials = credentials_of(self._tls)
        except TlsFileError as error:
            raise LoadTestError(str(error)) from error
        return grpc.aio.secure_channel(self.target, credentials, [*options, *options_of(self._tls)])

    async def __aexit__(self, *_exception: object) -> None:
        await self._close()

    async def require_live(self) -> None:
        """Raise LoadTestError if the server does not answer."""
        try:
            for stub in self.stubs:
                await stub.ServerLive(pb.ServerLiveRequest(), timeout=ANSWER_WITHIN_S)
        except grpc.aio.AioRpcError as error:
            why = f"does it run, and is this its gRPC port? ({_error_text(error)})"
            raise LoadTestError(f"{self.target}: no Triton and no Tidegate answers: {why}") from error

    async def ready_models(self) -> list[str]:
        """Return the sorted names of all ready models. Raises LoadTestError if the server does not list them."""
        request = pb.RepositoryIndexRequest(ready=True)
        answer = await self.ask(self.stubs[0].RepositoryIndex(request, timeout=ANSWER_WITHIN_S))
        return sorted({model.name for model in answer.models})

    async def model_metadata(self, model: str) -> pb.ModelMetadataResponse:
        """Return the names, types and shapes of a model's tensors. Raises LoadTestError for an unknown model."""
        request = pb.ModelMetadataRequest(name=model)
        return await self._ask_about(model, self.stubs[0].ModelMetadata(request, timeout=ANSWER_WITHIN_S))

    async def model_config(self, model: str) -> model_config_pb2.ModelConfig:
        """Return a model's configuration. Raises LoadTestError for an unknown model."""
        request = pb.ModelConfigRequest(name=model)
        return (await self._ask_about(model, self.stubs[0].ModelConfig(request, timeout=ANSWER_WITHIN_S))).config

    async def ask(self, call: Awaitable[Answer]) -> Answer:
        """Await a response. Raises LoadTestError with the error of the server or of gRPC."""
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise LoadTestError(f"{self.target}: {_error_text(error)}") from error

    async def _ask_about(self, model: str, call: Awaitable[Answer]) -> Answer:
        """Await an answer about a model. Of one that there is not, the error says which there are."""
        try:
            return await self.ask(call)
        except LoadTestError as error:
            try:
                names = await self.ready_models()
            except LoadTestError:
                names = []
            if not names or model in names:
                raise
            known = did_you_mean(model, names, "its models are")
            raise LoadTestError(f"{self.target}: it has no model {model!r}{known}") from error

    async def _close(self) -> None:
        for channel in self._channels:
            await channel.close()


def _error_text(error: grpc.aio.AioRpcError) -> str:
    """Return the error text of the server, or of gRPC."""
    return " ".join((error.details() or error.code().name).split())
