"""What is no inference: answered by Tidegate itself, for all Tritons together, or by one of them as it is."""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

from tritonclient.grpc import service_pb2

from tidegate_proxy.access.apis import METHOD_API, Api, Protocol
from tidegate_proxy.backend import SERVICE, Backend
from tidegate_proxy.catalog import Directory
from tidegate_proxy.client_regions import ClientRegions
from tidegate_proxy.discovery import Discovery
from tidegate_proxy.fan_out import VERBS, FanOut, IndexRow, Verb, whole_index
from tidegate_proxy.grpc_codec import ControlCall, GrpcCodec, Responder, index_of
from tidegate_proxy.liveness import Liveness
from tidegate_proxy.observability.merged_statistics import merge_statistics
from tidegate_proxy.observability.observability import Observability
from tidegate_proxy.outcome import RequestFailed, answer_in
from tidegate_proxy.routing import Routing
from tidegate_proxy.split_models import SplitModel
from tidegate_proxy.wire import WireError, fields_of, first_string

LIVE, READY, HEALTH = SERVICE + "ServerLive", SERVICE + "ServerReady", "/grpc.health.v1.Health/Check"
OF_OUR_OWN: Final = frozenset((LIVE, READY, HEALTH))
"""How Tidegate itself is: answered as long as it runs."""
INDEX: Final = SERVICE + "RepositoryIndex"
STATISTICS: Final = SERVICE + "ModelStatistics"
_MODEL_NAME: Final = 2 << 3 | 2
"""Tag of the field `model_name` of RepositoryModelLoadRequest and RepositoryModelUnloadRequest."""
_HEALTH: Final = VERBS[0]
"""Whether any Triton says yes."""
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"
"""grpc.health.v1.HealthCheckResponse with its only field, the status."""


class Control:
    """Lives in the event loop."""

    def __init__(
        self,
        backends: Sequence[Backend],
        directory: Directory,
        discovery: Discovery,
        routing: Routing,
        observability: Observability,
        liveness: Liveness,
    ) -> None:
        self._backends = backends
        self._directory = directory
        self._discovery = discovery
        self._routing = routing
        self._observability = observability
        self.liveness = liveness
        self.draining = False
        """Not ready for more: the proxy is about to stop."""
        self._fan_out = FanOut(backends, GrpcCodec(routing), self._whole_index, self._changing)
        self.shared_memory = ClientRegions(routing, self._fan_out)
        """What clients registered."""
        self._answers: dict[str, Responder] = {
            **{SERVICE + verb.method: partial(self._together, verb) for verb in VERBS},
            **self.shared_memory.answers,
            LIVE: self._live,
            READY: self._ready,
            HEALTH: self._health,
            STATISTICS: self._statistics,
        }
        self._of_split: dict[str, Callable[[SplitModel], bytes]] = {
            SERVICE + "ModelReady": _ready_answer,
            SERVICE + "ModelMetadata": _metadata_answer,
            SERVICE + "ModelConfig": _config_answer,
        }
        """Answers for a model that no Triton has by its name."""

    async def unary(self, call: ControlCall) -> bytes:
        """The answer to a call. Raises RequestFailed with what its client is to be told."""
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
        """Whether Tritons answer the calls of an API that Tidegate itself answers elsewhere, as they restrict it.

        One Triton that does is enough, and all have to for health: Tidegate is ready where one Triton is.
        """
        is_health = api == "health"
        if is_health and (self.draining or self.liveness.complaint()):
            return False
        living = [backend.apis for backend in self._backends if backend.alive]
        restricting = [
            (protocol, api) in apis.left
            or (protocol == "http" and api in apis.closed and not (is_health and apis.answers_http_health))
            for apis in living
        ]
        return all(restricting) and bool(restricting) if is_health else any(restricting)

    async def has(self, model: str) -> bool:
        """Whether some Triton has a model ready, whether or not Tidegate knows of it yet."""
        request = service_pb2.ModelReadyRequest(name=model)
        try:
            answer = await self.unary(ControlCall(SERVICE + "ModelReady", request.SerializeToString()))
        except RequestFailed:
            return False
        return bool(service_pb2.ModelReadyResponse.FromString(answer).ready)

    async def statistics(self, model: str, version: str) -> service_pb2.ModelStatisticsResponse:
        """What clients are told of a model, or of all: "". Raises RequestFailed."""
        request = service_pb2.ModelStatisticsRequest(name=model, version=version)
        answer = await self._statistics(ControlCall(STATISTICS, request.SerializeToString()))
        return service_pb2.ModelStatisticsResponse.FromString(answer)

    async def repository_index(self) -> list[IndexRow]:
        """Every model of any Triton. Raises RequestFailed."""
        return index_of(await self.unary(ControlCall(INDEX)))

    async def is_ready(self) -> bool:
        """Whether requests are welcome: some Triton is ready, and the proxy is not about to stop."""
        if self.draining or self.liveness.complaint():
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

    async def _together(self, verb: Verb, call: ControlCall) -> bytes:
        """What all Tritons say."""
        if verb.changes_models:
            await self._require_leave(call)
        return answer_in(await self._fan_out.answer(verb, call))

    def _changing(self, verb: Verb, call: ControlCall, backend: Backend) -> AbstractAsyncContextManager[None]:
        limit_s = math.inf if call.remaining_s is None else call.remaining_s / 2 / len(self._backends)
        return self._discovery.changing(verb, _model_of(call.message), backend, limit_s)

    async def _require_leave(self, call: ControlCall) -> None:
        """Raises RequestFailed where a Triton refuses a client the API of models: nothing is drained for such a one."""
        for backend in self._backends:
            if backend.alive and ("grpc", "model-repository") in backend.apis.left:
                await self._routing.ask(backend, *call._replace(method=INDEX, message=b""))

    def _whole_index(self, indexes: Iterable[Iterable[IndexRow]]) -> list[IndexRow]:
        catalog = self._directory.catalog
        return whole_index(indexes, catalog.hidden, catalog.split)

    async def _statistics(self, call: ControlCall) -> bytes:
        name = first_string(call.message)
        if name in self._directory.catalog.split:
            own = {key: counts for key, counts in self._observability.statistics.snapshot().items() if key[0] == name}
            alone: bytes = merge_statistics((), own, split=(name,)).SerializeToString()
            return alone
        outcomes = await self._fan_out.all_of(call)
        answers = [outcome for outcome in outcomes if isinstance(outcome, bytes)]
        if not answers:
            answer_in(outcomes[0])
        catalog, counted = self._directory.catalog, self._observability.statistics.snapshot()
        responses = [service_pb2.ModelStatisticsResponse.FromString(answer) for answer in answers]
        merged: bytes = merge_statistics(responses, counted, catalog.hidden, catalog.split).SerializeToString()
        return merged

    async def _live(self, _call: ControlCall) -> bytes:
        serialized: bytes = service_pb2.ServerLiveResponse(live=not self.liveness.complaint()).SerializeToString()
        return serialized

    async def _ready(self, _call: ControlCall) -> bytes:
        serialized: bytes = service_pb2.ServerReadyResponse(ready=await self.is_ready()).SerializeToString()
        return serialized

    async def _health(self, _call: ControlCall) -> bytes:
        return _SERVING if await self.is_ready() else _NOT_SERVING


def _model_of(message: bytes) -> str:
    """The model of a request that loads or unloads one: field 2, after the name of a repository; "" if absent."""
    try:
        for _, value, end, tag in fields_of(message, 0, len(message)):
            if tag == _MODEL_NAME:
                return message[value:end].decode()
    except (WireError, ValueError):
        pass
    return ""


def _ready_answer(_split: SplitModel) -> bytes:
    serialized: bytes = service_pb2.ModelReadyResponse(ready=True).SerializeToString()
    return serialized


def _metadata_answer(split: SplitModel) -> bytes:
    serialized: bytes = split.metadata.SerializeToString()
    return serialized


def _config_answer(split: SplitModel) -> bytes:
    serialized: bytes = service_pb2.ModelConfigResponse(config=split.config).SerializeToString()
    return serialized
