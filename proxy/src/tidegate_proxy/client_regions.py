"""Shared memory that clients register with the Tritons. The regions of Tidegate and of Triton are not for them."""

from functools import partial
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from tidegate_proxy import reserved_names
from tidegate_proxy.backend import SERVICE, Backend
from tidegate_proxy.fan_out import VERBS, FanOut, Verb
from tidegate_proxy.grpc_codec import ControlCall, Responder
from tidegate_proxy.outcome import Outcome, RequestFailed, answer_in
from tidegate_proxy.routing import Routing

_STATUS: Final = SERVICE + "SystemSharedMemoryStatus"
_UNREGISTER: Final = SERVICE + "SystemSharedMemoryUnregister"
_NOT_UNREGISTERED: Final = "Failed to unregister the following system shared memory regions: "
"""Triton's words, before the names of regions that are in use, say."""
_CHANGES: Final = {
    SERVICE + "SystemSharedMemoryRegister": service_pb2.SystemSharedMemoryRegisterRequest,
    SERVICE + "CudaSharedMemoryRegister": service_pb2.CudaSharedMemoryRegisterRequest,
    _UNREGISTER: service_pb2.SystemSharedMemoryUnregisterRequest,
    SERVICE + "CudaSharedMemoryUnregister": service_pb2.CudaSharedMemoryUnregisterRequest,
}
"""What changes the regions of a server has to change those of every server. Methods with their messages."""


class ClientRegions:
    """Lives in the event loop."""

    def __init__(self, routing: Routing, fan_out: FanOut[Backend, ControlCall, Outcome]) -> None:
        self._routing = routing
        self._fan_out = fan_out
        changes = ((SERVICE + verb.method, partial(self._change, verb)) for verb in VERBS)
        self.answers: dict[str, Responder] = {
            _STATUS: self._status,
            **{method: change for method, change in changes if method in _CHANGES},
        }
        """What answers a method, by its full name."""

    async def registered(self, name: str = "") -> list[service_pb2.SystemSharedMemoryStatusResponse.RegionStatus]:
        """The regions that clients registered, by name, or the one that is named. Raises RequestFailed."""
        request = service_pb2.SystemSharedMemoryStatusRequest(name=name)
        answer = await self._status(ControlCall(_STATUS, request.SerializeToString()))
        status = service_pb2.SystemSharedMemoryStatusResponse.FromString(answer)
        return [status.regions[name] for name in sorted(status.regions)]

    async def unregister(self, name: str) -> None:
        """Have every Triton forget a region, or all that clients registered: "". Raises RequestFailed."""
        request = service_pb2.SystemSharedMemoryUnregisterRequest(name=name)
        await self.answers[_UNREGISTER](ControlCall(_UNREGISTER, request.SerializeToString()))

    async def _status(self, call: ControlCall) -> bytes:
        """What clients registered; what Tidegate shares with that Triton itself is none of their business."""
        name = _read(service_pb2.SystemSharedMemoryStatusRequest, call.message).name
        if reserved_names.reserved_prefix(name):
            raise RequestFailed(grpc.StatusCode.NOT_FOUND, f"Unable to find system shared memory region: '{name}'")
        answer = await self._routing.ask(self._routing.route("", "grpc", "shared-memory"), *call)
        status = service_pb2.SystemSharedMemoryStatusResponse.FromString(answer)
        for name in [name for name in status.regions if reserved_names.reserved_prefix(name)]:
            del status.regions[name]
        serialized: bytes = status.SerializeToString()
        return serialized

    async def _change(self, verb: Verb, call: ControlCall) -> bytes:
        """Have it done by every Triton."""
        if words := _why_not(call):
            raise RequestFailed(grpc.StatusCode.INVALID_ARGUMENT, words)
        ask = self._unregister if call.method == _UNREGISTER else None
        return answer_in(await self._fan_out.answer(verb, call, ask))

    async def _unregister(self, backend: Backend, call: ControlCall) -> Outcome:
        """Have a Triton forget a region; or all of clients: ours may be read and written just now."""
        try:
            if _read(_CHANGES[call.method], call.message).name or not backend.shares_memory:
                return await self._routing.ask(backend, *call)
            answer = await self._routing.ask(backend, *call._replace(method=_STATUS, message=b""))
        except RequestFailed as failure:
            return failure
        failed = ""
        for name in sorted(service_pb2.SystemSharedMemoryStatusResponse.FromString(answer).regions):
            if not name.startswith(reserved_names.OWN):
                one = service_pb2.SystemSharedMemoryUnregisterRequest(name=name).SerializeToString()
                try:
                    await self._routing.ask(backend, *call._replace(message=one))
                except RequestFailed:
                    failed += f"{name} ,"
        return RequestFailed(grpc.StatusCode.INTERNAL, _NOT_UNREGISTERED + failed) if failed else b""


def _why_not(call: ControlCall) -> str:
    request = _read(_CHANGES[call.method], call.message)
    if call.method.endswith("Unregister"):
        return reserved_names.why_not_unregistered(request.name)
    return reserved_names.why_not_registered(request.name, getattr(request, "key", ""))


def _read(kind: Any, message: bytes) -> Any:  # noqa: ANN401 - protobuf messages share no type
    """Raises RequestFailed."""
    try:
        return kind.FromString(message)
    except DecodeError:
        raise RequestFailed(grpc.StatusCode.INTERNAL, "the message cannot be read") from None
