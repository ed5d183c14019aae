"""What is not inference by schedule: answered for all Tritons together, or by one of them as it is."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import grpc
from tritonclient.grpc import service_pb2

from tidegate_proxy.backend import SERVICE, Backend
from tidegate_proxy.catalog import Catalog
from tidegate_proxy.client import RequestFailed
from tidegate_proxy.completion_queue import Metadata
from tidegate_proxy.driver import Driver
from tidegate_proxy.wire import first_string

_OF_A_CONNECTION = ("grpc-", ":", "user-agent", "content-type", "te")
"""Metadata that concern the client's own connection: keys, or how they begin."""
_TO_ALL = frozenset(
    SERVICE + method
    for method in (
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        "SystemSharedMemoryRegister",
        "SystemSharedMemoryUnregister",
        "CudaSharedMemoryRegister",
        "CudaSharedMemoryUnregister",
        "TraceSetting",
        "LogSettings",
    )
)
"""What changes a server's state has to change it on every server."""
_OWN_MODEL_FIELD = frozenset(
    SERVICE + method for method in ("ModelReady", "ModelMetadata", "ModelInfer", "ModelConfig", "ModelStatistics")
)
"""Methods whose request begins with the name of a model."""

_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"
"""grpc.health.v1.HealthCheckResponse with its only field, the status."""


class Control:
    """Lives in the event loop."""

    def __init__(self, backends: Sequence[Backend], catalog: Catalog, driver: Driver) -> None:
        self._backends = backends
        self._catalog = catalog
        self._driver = driver
        self.draining = False
        """Not ready for more: the proxy is about to stop."""
        self._answers: dict[str, Callable[[bytes, Metadata, float | None], Awaitable[bytes]]] = {
            SERVICE + "ServerLive": self._live,
            SERVICE + "ServerReady": self._ready,
            "/grpc.health.v1.Health/Check": self._health,
        }
        if len(backends) > 1:
            self._answers[SERVICE + "RepositoryIndex"] = self._index
            self._answers |= {method: self._to_all(method) for method in _TO_ALL}

    async def unary(self, method: str, message: bytes, metadata: Metadata, remaining_s: float | None) -> bytes:
        """The answer to a call. Raises RequestFailed with what its client is to be told."""
        if answer := self._answers.get(method):
            return await answer(message, metadata, remaining_s)
        model = first_string(message) if method in _OWN_MODEL_FIELD else ""
        return await self._ask(self.route(model), method, message, metadata, remaining_s)

    async def stream(
        self, method: str, model: str, messages: AsyncIterator[bytes], metadata: Metadata, remaining_s: float | None
    ) -> AsyncIterator[bytes]:
        """The answers of one Triton to a stream that begins with a request for `model`. Raises RequestFailed."""
        backend = self.route(model)
        call = backend.stream(method)(messages, timeout=remaining_s, metadata=forwarded(metadata))
        try:
            async for answer in call:
                yield answer
        except grpc.aio.AioRpcError as error:
            await self._note(backend, error)
            raise RequestFailed(error.code(), error.details() or "") from error
        finally:
            call.cancel()

    def route(self, model: str) -> Backend:
        """The first living Triton that has the model; failing that, the first living one; failing that, the first."""
        candidates = (*self._catalog.hosts.get(model, ()), *self._backends)
        return next((backend for backend in candidates if backend.alive), self._backends[0])

    async def _ask(
        self, backend: Backend, method: str, message: bytes, metadata: Metadata, remaining_s: float | None
    ) -> bytes:
        try:
            answer: bytes = await backend.unary(method)(message, timeout=remaining_s, metadata=forwarded(metadata))
        except grpc.aio.AioRpcError as error:
            await self._note(backend, error)
            raise RequestFailed(error.code(), error.details() or "") from error
        return answer

    async def _note(self, backend: Backend, error: grpc.aio.AioRpcError) -> None:
        """If the Triton is gone, the next call goes to another."""
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            await self._driver.lost(backend, error.details() or "")

    def _to_all(self, method: str) -> Callable[[bytes, Metadata, float | None], Awaitable[bytes]]:
        """Ask every living Triton, in turn: the first answer is the client's, or the first error."""

        async def answer(message: bytes, metadata: Metadata, remaining_s: float | None) -> bytes:
            living = [backend for backend in self._backends if backend.alive] or self._backends[:1]
            answers = [await self._ask(backend, method, message, metadata, remaining_s) for backend in living]
            return answers[0]

        return answer

    async def _live(self, _message: bytes, _metadata: Metadata, _remaining_s: float | None) -> bytes:
        serialized: bytes = service_pb2.ServerLiveResponse(live=True).SerializeToString()
        return serialized

    async def _ready(self, _message: bytes, _metadata: Metadata, _remaining_s: float | None) -> bytes:
        serialized: bytes = service_pb2.ServerReadyResponse(ready=await self.is_ready()).SerializeToString()
        return serialized

    async def _health(self, _message: bytes, _metadata: Metadata, _remaining_s: float | None) -> bytes:
        return _SERVING if await self.is_ready() else _NOT_SERVING

    async def _index(self, message: bytes, metadata: Metadata, remaining_s: float | None) -> bytes:
        """Every model of any Triton, once: ready where it is ready somewhere."""
        models: dict[tuple[str, str], service_pb2.RepositoryIndexResponse.ModelIndex] = {}
        for backend in self._backends:
            if backend.alive:
                answer = await self._ask(backend, SERVICE + "RepositoryIndex", message, metadata, remaining_s)
                for model in service_pb2.RepositoryIndexResponse.FromString(answer).models:
                    key = (model.name, model.version)
                    if key not in models or model.state == "READY":
                        models[key] = model
        merged: bytes = service_pb2.RepositoryIndexResponse(
            models=[models[key] for key in sorted(models)]
        ).SerializeToString()
        return merged

    async def is_ready(self) -> bool:
        """Whether requests are welcome: some Triton is ready, and the proxy is not about to stop."""
        if self.draining:
            return False
        for backend in self._backends:
            if backend.alive and await backend.is_ready():
                return True
        return False


def forwarded(metadata: Metadata) -> list[tuple[str, str | bytes]]:
    """The client's metadata without what belongs to its own connection."""
    return [(key, value) for key, value in metadata if not key.startswith(_OF_A_CONNECTION)]
