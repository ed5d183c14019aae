"""Shared memory that clients register with the Tritons. The regions of Tidegate and of Triton are not for them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import grpc
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from tidegate_proxy import reserved_names
from tidegate_proxy.backend import SERVICE, Backend
from tidegate_proxy.client import RequestFailed
from tidegate_proxy.transport import Metadata

Answer = Callable[[bytes, Metadata, float | None], Awaitable[bytes]]
Ask = Callable[[Backend, str, bytes, Metadata, float | None], Awaitable[bytes]]
"""Has one Triton answer a method. Raises RequestFailed."""
_STATUS: Final = SERVICE + "SystemSharedMemoryStatus"
_UNREGISTER: Final = SERVICE + "SystemSharedMemoryUnregister"
_CHANGES: Final = {
    SERVICE + "SystemSharedMemoryRegister": service_pb2.SystemSharedMemoryRegisterRequest,
    SERVICE + "CudaSharedMemoryRegister": service_pb2.CudaSharedMemoryRegisterRequest,
    _UNREGISTER: service_pb2.SystemSharedMemoryUnregisterRequest,
    SERVICE + "CudaSharedMemoryUnregister": service_pb2.CudaSharedMemoryUnregisterRequest,
}
"""What changes the regions of a server has to change those of every server. Methods with their messages."""


class AskAll(Protocol):
    """Has every living Triton answer a method, each as `ask` does it."""

    async def __call__(
        self, method: str, message: bytes, metadata: Metadata, remaining_s: float | None, ask: Ask | None = None
    ) -> list[bytes | RequestFailed]:
        """Their answers."""


class ClientRegions:
    """Lives in the event loop."""

    def __init__(self, some: Callable[[], Backend], ask: Ask, ask_all: AskAll) -> None:
        """`some`: a living Triton."""
        self._some = some
        self._ask = ask
        self._ask_all = ask_all
        self.answers: Mapping[str, Answer] = {
            _STATUS: self._status,
            **{method: self._to_all(method) for method in _CHANGES},
        }
        """By method, by its full name."""

    async def registered(self, name: str = "") -> list[service_pb2.SystemSharedMemoryStatusResponse.RegionStatus]:
        """Those that clients registered, by name, or the one that is named. Raises RequestFailed."""
        request = service_pb2.SystemSharedMemoryStatusRequest(name=name)
        answer = await self._status(request.SerializeToString(), (), None)
        status = service_pb2.SystemSharedMemoryStatusResponse.FromString(answer)
        return [status.regions[name] for name in sorted(status.regions)]

    async def unregister(self, name: str) -> None:
        """Have every Triton forget a region, or all that clients registered: "". Raises RequestFailed."""
        request = service_pb2.SystemSharedMemoryUnregisterRequest(name=name)
        await self.answers[_UNREGISTER](request.SerializeToString(), (), None)

    async def _status(self, message: bytes, metadata: Metadata, remaining_s: float | None) -> bytes:
        """Of what clients registered; what Tidegate shares with that Triton itself is none of their business."""
        name = _read(service_pb2.SystemSharedMemoryStatusRequest, message).name
        if reserved_names.reserved_prefix(name):
            raise RequestFailed(grpc.StatusCode.NOT_FOUND, f"Unable to find system shared memory region: '{name}'")
        answer = await self._ask(self._some(), _STATUS, message, metadata, remaining_s)
        status = service_pb2.SystemSharedMemoryStatusResponse.FromString(answer)
        for name in [name for name in status.regions if reserved_names.reserved_prefix(name)]:
            del status.regions[name]
        serialized: bytes = status.SerializeToString()
        return serialized

    def _to_all(self, method: str) -> Answer:
        async def answer(message: bytes, metadata: Metadata, remaining_s: float | None) -> bytes:
            if words := _why_not(method, message):
                raise RequestFailed(grpc.StatusCode.INVALID_ARGUMENT, words)
            ask = self._unregister if method == _UNREGISTER else None
            return all_must(await self._ask_all(method, message, metadata, remaining_s, ask))

        return answer

    async def _unregister(
        self, backend: Backend, method: str, message: bytes, metadata: Metadata, remaining_s: float | None
    ) -> bytes:
        """Have a Triton forget a region; or all of clients: ours may be read and written just now."""
        if _read(_CHANGES[method], message).name or not backend.shares_memory:
            return await self._ask(backend, method, message, metadata, remaining_s)
        answer = await self._ask(backend, _STATUS, b"", metadata, remaining_s)
        for name in service_pb2.SystemSharedMemoryStatusResponse.FromString(answer).regions:
            if not name.startswith(reserved_names.OWN):
                one = service_pb2.SystemSharedMemoryUnregisterRequest(name=name).SerializeToString()
                await self._ask(backend, method, one, metadata, remaining_s)
        return b""


def all_must(outcomes: Sequence[bytes | RequestFailed]) -> bytes:
    """Of what several Tritons said: the first error is the client's, else the first answer. Raises RequestFailed."""
    answers = []
    for outcome in outcomes:
        if isinstance(outcome, RequestFailed):
            raise outcome
        answers.append(outcome)
    return answers[0]


def _why_not(method: str, message: bytes) -> str:
    request = _read(_CHANGES[method], message)
    if method.endswith("Unregister"):
        return reserved_names.why_not_unregistered(request.name)
    return reserved_names.why_not_registered(request.name, getattr(request, "key", ""))


def _read(kind: Any, message: bytes) -> Any:  # noqa: ANN401 - protobuf messages share no type
    """Raises RequestFailed."""
    try:
        return kind.FromString(message)
    except DecodeError:
        raise RequestFailed(grpc.StatusCode.INTERNAL, "the message cannot be read") from None
