"""Control-plane calls: answered by Tidegate itself, for all Tritons together, or by one of them.

Shared memory that clients register is registered at the Tritons; regions of Tidegate and of Triton are protected.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from tidegate_proxy.base import reserved_names
from tidegate_proxy.base.outcome import Outcome, RequestFailed, answer_in
from tidegate_proxy.configuration.apis import METHOD_API, Api, Protocol
from tidegate_proxy.messages.wire import WireError, fields_of, first_string
from tidegate_proxy.observability.metrics import Observability
from tidegate_proxy.observability.model_statistics import merge_statistics
from tidegate_proxy.service.discovery import Discovery
from tidegate_proxy.service.fan_out import (
    CONTROL_VERBS,
    ControlCall,
    ControlVerb,
    FanOut,
    GrpcCodec,
    IndexRow,
    Responder,
    index_of,
    whole_index,
)
from tidegate_proxy.service.passthrough import Routing
from tidegate_proxy.transport.liveness import Liveness
from tidegate_proxy.tritons.backend import SERVICE_PREFIX, Backend
from tidegate_proxy.tritons.catalog import CurrentCatalog
from tidegate_proxy.tritons.loop_detector import LoopDetector
from tidegate_proxy.tritons.split_models import SplitModel

_STATUS: Final = SERVICE_PREFIX + "SystemSharedMemoryStatus"
_UNREGISTER: Final = SERVICE_PREFIX + "SystemSharedMemoryUnregister"
_NOT_UNREGISTERED: Final = "Failed to unregister the following system shared memory regions: "
"""Triton's words, before the names of regions that are in use, say."""
_CHANGES: Final = {
    SERVICE_PREFIX + "SystemSharedMemoryRegister": service_pb2.SystemSharedMemoryRegisterRequest,
    SERVICE_PREFIX + "CudaSharedMemoryRegister": service_pb2.CudaSharedMemoryRegisterRequest,
    _UNREGISTER: service_pb2.SystemSharedMemoryUnregisterRequest,
    SERVICE_PREFIX + "CudaSharedMemoryUnregister": service_pb2.CudaSharedMemoryUnregisterRequest,
}
"""Methods that change shared-memory regions on every server, with their messages."""


class ClientRegions:
    """Shared-memory regions that clients registered. Call only from the event loop."""

    def __init__(self, routing: Routing, fan_out: FanOut[Backend, ControlCall, Outcome]) -> None:
        self._routing = routing
        self._fan_out = fan_out
        changes = ((SERVICE_PREFIX + verb.method, partial(self._change, verb)) for verb in CONTROL_VERBS)
        self.answers: dict[str, Responder] = {
            _STATUS: self._status,
            **{method: change for method, change in changes if method in _CHANGES},
        }
        """Handlers of methods by full name."""

    async def registered(self, name: str = "") -> list[service_pb2.SystemSharedMemoryStatusResponse.RegionStatus]:
        """Return the regions that clients registered, by name, or the named one. Raises RequestFailed."""
        request = service_pb2.SystemSharedMemoryStatusRequest(name=name)
        answer = await self._status(ControlCall(_STATUS, request.SerializeToString()))
        status = service_pb2.SystemSharedMemoryStatusResponse.FromString(answer)
        return [status.regions[name] for name in sorted(status.regions)]

    async def unregister(self, name: str) -> None:
        """Unregister a region, or all that clients registered for "", at every Triton. Raises RequestFailed."""
        request = service_pb2.SystemSharedMemoryUnregisterRequest(name=name)
        await self.answers[_UNREGISTER](ControlCall(_UNREGISTER, request.SerializeToString()))

    async def _status(self, call: ControlCall) -> bytes:
        """Return the clients' regions; regions that Tidegate shares with the Triton are hidden."""
        name = _read(service_pb2.SystemSharedMemoryStatusRequest, call.message).name
        if reserved_names.reserved_prefix(name):
            raise RequestFailed(grpc.StatusCode.NOT_FOUND, f"Unable to find system shared memory region: '{name}'")
        answer = await self._routing.ask(self._routing.route("", "grpc", "shared-memory"), *call)
        status = service_pb2.SystemSharedMemoryStatusResponse.FromString(answer)
        for name in [name for name in status.regions if reserved_names.reserved_prefix(name)]:
            del status.regions[name]
        serialized: bytes = status.SerializeToString()
        return serialized

    async def _change(self, verb: ControlVerb, call: ControlCall) -> bytes:
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
            if not name.startswith(reserved_names.OWN_PREFIX):
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
    """Parse a request. Raises RequestFailed if it is malformed."""
    try:
        return kind.FromString(message)
    except DecodeError:
        raise RequestFailed(grpc.StatusCode.INTERNAL, "the message cannot be read") from None


LIVE, READY, HEALTH = SERVICE_PREFIX + "ServerLive", SERVICE_PREFIX + "ServerReady", "/grpc.health.v1.Health/Check"
OF_OUR_OWN: Final = frozenset((LIVE, READY, HEALTH))
"""Calls on the health of Tidegate itself: answered as long as it runs."""
INDEX_METHOD: Final = SERVICE_PREFIX + "RepositoryIndex"
STATISTICS_METHOD: Final = SERVICE_PREFIX + "ModelStatistics"
_REPOSITORY_NAME, _MODEL_NAME = 1 << 3 | 2, 2 << 3 | 2
"""Tags of fields of RepositoryModelLoadRequest and RepositoryModelUnloadRequest."""
_HEALTH: Final = CONTROL_VERBS[0]
"""Whether any Triton says yes."""
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"
"""Serialized grpc.health.v1.HealthCheckResponse, whose only field is the status."""


@dataclass(eq=False, repr=False)
class ControlPlaneCalls:
    """Control-plane calls: everything but inference. Call only from the event loop."""

    _backends: Sequence[Backend]
    _directory: CurrentCatalog
    _discovery: Discovery
    _routing: Routing
    _observability: Observability
    liveness: Liveness
    _loops: LoopDetector

    def __post_init__(self) -> None:
        self._draining = False
        """Not ready for more: the proxy is about to stop."""
        self._fan_out = FanOut(
            self._backends,
            GrpcCodec(self._routing),
            self._whole_index,
            self._changing,
            lambda: self._discovery.change_width,
        )
        self.shared_memory = ClientRegions(self._routing, self._fan_out)
        """Regions that clients registered."""
        self._answers: dict[str, Responder] = {
            **{SERVICE_PREFIX + verb.method: partial(self._together, verb) for verb in CONTROL_VERBS},
            **self.shared_memory.answers,
            LIVE: self._live,
            READY: self._ready,
            HEALTH: self._health,
            STATISTICS_METHOD: self._statistics,
        }
        self._of_split: dict[str, Callable[[SplitModel], bytes]] = {
            SERVICE_PREFIX + "ModelReady": _ready_answer,
            SERVICE_PREFIX + "ModelMetadata": _metadata_answer,
            SERVICE_PREFIX + "ModelConfig": _config_answer,
        }
        """Answers for a model that no Triton has by its name."""

    def drain(self) -> None:
        """Report not ready from now on, because Tidegate is about to stop."""
        self._draining = True

    async def unary(self, call: ControlCall) -> bytes:
        """Return the response to a call. Raises RequestFailed."""
        self._loops.receive(call.metadata)
        model = ""
        if of_split := self._of_split.get(call.method):
            model = first_string(call.message)
            if split := self._directory.catalog.split.get(model):
                return of_split(split)
        if call.method in OF_OUR_OWN and self.leaves("grpc", "health"):
            return answer_in(await self._fan_out.answer(_HEALTH, call))
        if answer := self._answers.get(call.method):
            return await answer(call)
        return await self._routing.ask(self._routing.route(model, "grpc", METHOD_API.get(call.method)), *call)

    def leaves(self, protocol: Protocol, api: Api) -> bool:
        """Return whether Tritons answer the calls of an API that Tidegate otherwise answers, because they restrict it.

        One such Triton is enough, but for health all are needed: Tidegate is ready if one Triton is.
        """
        is_health = api == "health"
        if is_health and (self._draining or self.liveness.complaint()):
            return False
        living = [backend.apis for backend in self._backends if backend.alive]
        restricting = [
            (protocol, api) in apis.left
            or (protocol == "http" and api in apis.closed and not (is_health and apis.answers_http_health))
            for apis in living
        ]
        return all(restricting) and bool(restricting) if is_health else any(restricting)

    async def has(self, model: str) -> bool:
        """Query whether any Triton has a model ready, even if Tidegate does not know it yet."""
        request = service_pb2.ModelReadyRequest(name=model)
        try:
            answer = await self.unary(ControlCall(SERVICE_PREFIX + "ModelReady", request.SerializeToString()))
        except RequestFailed:
            return False
        return bool(service_pb2.ModelReadyResponse.FromString(answer).ready)

    async def statistics(self, model: str, version: str) -> service_pb2.ModelStatisticsResponse:
        """Return the statistics of a model, or of all models for "". Raises RequestFailed."""
        request = service_pb2.ModelStatisticsRequest(name=model, version=version)
        answer = await self._statistics(ControlCall(STATISTICS_METHOD, request.SerializeToString()))
        return service_pb2.ModelStatisticsResponse.FromString(answer)

    async def repository_index(self) -> list[IndexRow]:
        """Return every model of any Triton. Raises RequestFailed."""
        return index_of(await self.unary(ControlCall(INDEX_METHOD)))

    async def is_ready(self) -> bool:
        """Query whether requests are accepted: a Triton is ready, and the proxy is not about to stop."""
        if self._draining or self.liveness.complaint():
            return False
        probes = [asyncio.ensure_future(backend.is_ready()) for backend in self._backends if backend.alive]
        try:
            for probe in asyncio.as_completed(probes):  # one that hangs must not hold up the answer of the others
                if await probe:
                    return True
            return False
        finally:
            for probe in probes:
                probe.cancel()

    async def _together(self, verb: ControlVerb, call: ControlCall) -> bytes:
        """Return the merged responses of all Tritons."""
        if verb.changes_models:
            await self._require_leave(call)
        return answer_in(await self._fan_out.answer(verb, call))

    def _changing(self, verb: ControlVerb, call: ControlCall, backend: Backend) -> AbstractAsyncContextManager[None]:
        limit_s = math.inf if call.remaining_s is None else call.remaining_s / 2 / len(self._backends)
        return self._discovery.changing(verb, *_model_of(call.message), backend, limit_s)

    async def _require_leave(self, call: ControlCall) -> None:
        """Raise RequestFailed if a Triton denies a client the model API, before any model is drained."""
        for backend in self._backends:
            if backend.alive and ("grpc", "model-repository") in backend.apis.left:
                await self._routing.ask(backend, *call._replace(method=INDEX_METHOD, message=b""))

    def _whole_index(self, indexes: Iterable[Iterable[IndexRow]]) -> list[IndexRow]:
        catalog = self._directory.catalog
        return whole_index(indexes, catalog.hidden, catalog.split)

    async def _statistics(self, call: ControlCall) -> bytes:
        name = first_string(call.message)
        if name in self._directory.catalog.split:
            own = {key: counts for key, counts in self._observability.statistics.snapshot().items() if key[0] == name}
            alone: bytes = merge_statistics((), own, split=(name,)).SerializeToString()
            return alone
        catalog, counted = self._directory.catalog, self._observability.statistics.snapshot()
        return answer_in(await self._fan_out.statistics(call, counted, catalog.hidden, catalog.split))

    async def _live(self, _call: ControlCall) -> bytes:
        serialized: bytes = service_pb2.ServerLiveResponse(live=not self.liveness.complaint()).SerializeToString()
        return serialized

    async def _ready(self, _call: ControlCall) -> bytes:
        serialized: bytes = service_pb2.ServerReadyResponse(ready=await self.is_ready()).SerializeToString()
        return serialized

    async def _health(self, _call: ControlCall) -> bytes:
        return _SERVING if await self.is_ready() else _NOT_SERVING


def _model_of(message: bytes) -> tuple[str, str]:
    """The model and the repository that a request to load or unload a model names; "" if absent."""
    names = {_MODEL_NAME: "", _REPOSITORY_NAME: ""}
    try:
        for _, value, end, tag in fields_of(message, 0, len(message)):
            if tag in names:
                names[tag] = message[value:end].decode()
    except (WireError, ValueError):
        return "", ""
    return names[_MODEL_NAME], names[_REPOSITORY_NAME]


def _ready_answer(_split: SplitModel) -> bytes:
    serialized: bytes = service_pb2.ModelReadyResponse(ready=True).SerializeToString()
    return serialized


def _metadata_answer(split: SplitModel) -> bytes:
    serialized: bytes = split.metadata.SerializeToString()
    return serialized


def _config_answer(split: SplitModel) -> bytes:
    serialized: bytes = service_pb2.ModelConfigResponse(config=split.config).SerializeToString()
    return serialized
