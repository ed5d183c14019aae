"""Fan-out of calls to every live Triton, answered as by one server, over gRPC and HTTP."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from tritonclient.grpc import service_pb2

from tidegate_proxy.base.outcome import Outcome, RequestFailed, answer_in
from tidegate_proxy.observability.model_statistics import RequestCounts, merge_statistics
from tidegate_proxy.service.passthrough import Routing
from tidegate_proxy.transport import Metadata
from tidegate_proxy.tritons.backend import Backend
from tidegate_proxy.tritons.split_models import SPLIT_MODEL_VERSION

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class IndexRow(NamedTuple):
    """Model version and its state in a repository index."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


class AnswerRule(Enum):
    """Rule that combines the responses of several Tritons into one."""

    ANY = auto()
    """The first positive response, else the first."""
    EVERY = auto()
    """All must succeed: the first failure, otherwise the first response."""
    INDEX = auto()
    """One index merged from all; without any, the first failure."""


@dataclass(frozen=True)
class ControlVerb:
    """Control operation of a server."""

    rule: AnswerRule
    method: str
    """Method of the gRPC service."""
    routes: tuple[tuple[str, str], ...]
    """Routes of the HTTP service: methods and patterns."""
    changes_models: bool = False
    """Whether the call may change the served models."""


CONTROL_VERBS: Final = (
    ControlVerb(AnswerRule.ANY, "ServerLive", (("GET", "/v2/health/live"),)),
    ControlVerb(AnswerRule.ANY, "ServerReady", (("GET", "/v2/health/ready"),)),
    ControlVerb(AnswerRule.ANY, "ModelReady", (("GET", "/v2/models/{model}/ready"),)),
    ControlVerb(AnswerRule.INDEX, "RepositoryIndex", (("POST", "/v2/repository/index"),)),
    ControlVerb(
        AnswerRule.EVERY, "RepositoryModelLoad", (("POST", "/v2/repository/models/{model}/load"),), changes_models=True
    ),
    ControlVerb(
        AnswerRule.EVERY,
        "RepositoryModelUnload",
        (("POST", "/v2/repository/models/{model}/unload"),),
        changes_models=True,
    ),
    ControlVerb(AnswerRule.EVERY, "SystemSharedMemoryRegister", (("POST", "/v2/systemsharedmemory/register"),)),
    ControlVerb(AnswerRule.EVERY, "SystemSharedMemoryUnregister", (("POST", "/v2/systemsharedmemory/unregister"),)),
    ControlVerb(AnswerRule.EVERY, "CudaSharedMemoryRegister", (("POST", "/v2/cudasharedmemory/register"),)),
    ControlVerb(AnswerRule.EVERY, "CudaSharedMemoryUnregister", (("POST", "/v2/cudasharedmemory/unregister"),)),
    ControlVerb(AnswerRule.EVERY, "TraceSetting", (("POST", "/v2/trace/setting"),)),
    ControlVerb(AnswerRule.EVERY, "LogSettings", (("POST", "/v2/logging"),)),
)


class QueriedTriton(Protocol):
    """Address and liveness of a Triton that a codec calls."""

    @property
    def alive(self) -> bool:
        """Whether the Triton is live, as far as is known."""


AnyTriton = TypeVar("AnyTriton", bound=QueriedTriton)


class ProtocolCodec(ABC, Generic[AnyTriton, Question, Answer]):
    """Codec of one protocol: calls a Triton, and reads and writes responses."""

    @abstractmethod
    async def ask(self, triton: AnyTriton, question: Question) -> Answer:
        """Return the response to a call; a failure counts as a response."""

    @abstractmethod
    def succeeded(self, answer: Answer) -> bool:
        """Return whether the operation succeeded."""

    @abstractmethod
    def says_yes(self, answer: Answer) -> bool:
        """Return whether the response says ready, or live."""

    @abstractmethod
    def index_in(self, answer: Answer) -> Iterable[IndexRow]:
        """Return the repository index in a response."""

    @abstractmethod
    def statistics_in(self, answer: Answer) -> service_pb2.ModelStatisticsResponse:
        """Return the model statistics in a response."""

    @abstractmethod
    def statistics_as(self, statistics: service_pb2.ModelStatisticsResponse, like: Answer) -> Answer:
        """Encode statistics as a response, otherwise equal to `like`."""

    @abstractmethod
    def index_as(self, index: Sequence[IndexRow], like: Answer) -> Answer:
        """Encode an index as a response, otherwise equal to `like`."""


MODEL_CHANGES: Final = frozenset(route for verb in CONTROL_VERBS if verb.changes_models for route in verb.routes)
"""Routes that may change the served models."""

Changing = Callable[[ControlVerb, Question, AnyTriton], AbstractAsyncContextManager[None]]
"""Context around a call that changes the models of one Triton."""


def no_change_tracking(_verb: ControlVerb, _question: object, _triton: object) -> AbstractAsyncContextManager[None]:
    """Return a context that does nothing."""
    return nullcontext()


class FanOut(Generic[AnyTriton, Question, Answer]):
    """Fan-out over one protocol to all live Tritons."""

    def __init__(
        self,
        tritons: Sequence[AnyTriton],
        codec: ProtocolCodec[AnyTriton, Question, Answer],
        whole: Callable[[Iterable[Iterable[IndexRow]]], list[IndexRow]] | None = None,
        changing: Changing[Question, AnyTriton] = no_change_tracking,
        width: Callable[[], int] = lambda: 1,
    ) -> None:
        """Create the fan-out.

        `whole`: merges the repository indexes of several Tritons; default `whole_index`. `width`: number of Tritons
        that change models at a time.
        """
        self._width = width
        self._changing = changing
        self._tritons = tritons
        self._codec = codec
        self._whole = whole or whole_index

    async def all_of(
        self, question: Question, ask: Callable[[AnyTriton, Question], Awaitable[Answer]] | None = None
    ) -> list[Answer]:
        """Send a call to all live Tritons; return their responses in the order of the Tritons.

        If no Triton is live, only the first is called. `question`: the call; `ask`: sends it to one Triton, None: the
        codec does.
        """
        ask = ask or self._codec.ask
        return await asyncio.gather(*(ask(triton, question) for triton in self._asked()))

    async def answer(
        self,
        verb: ControlVerb,
        question: Question,
        ask: Callable[[AnyTriton, Question], Awaitable[Answer]] | None = None,
    ) -> Answer:
        """Return the combined response of the Tritons.

        `ask`: sends the question to one Triton; None: the codec does.
        """
        if verb.changes_models:  # of one after the other, so that the others serve
            room = asyncio.Semaphore(self._width())
            answers = await asyncio.gather(
                *(self._change(room, verb, question, triton, ask) for triton in self._asked())
            )
        else:
            answers = await self.all_of(question, ask)
        codec, first = self._codec, answers[0]
        if verb.rule is AnswerRule.ANY:
            return next((answer for answer in answers if codec.says_yes(answer)), first)
        if verb.rule is AnswerRule.EVERY:
            return next((answer for answer in answers if not codec.succeeded(answer)), first)
        given = [answer for answer in answers if codec.succeeded(answer)]
        return codec.index_as(self._whole(map(codec.index_in, given)), given[0]) if given else first

    async def statistics(
        self,
        question: Question,
        counted: Mapping[tuple[str, str], RequestCounts] | None = None,
        hidden: Collection[str] = (),
        split: Collection[str] = (),
    ) -> Answer:
        """Return the merged statistics, summed by model; the first failure if none answers.

        `counted`: statistics that Tidegate keeps for scheduled models; None: pass on what a single Triton reports.
        `hidden`: models to leave out; `split`: models that only `counted` has.
        """
        codec, answers = self._codec, await self.all_of(question)
        given = [answer for answer in answers if codec.succeeded(answer)]
        if not given or (len(given) == 1 and counted is None):
            return (given or answers)[0]
        merged = merge_statistics([*map(codec.statistics_in, given)], counted or {}, hidden, split)
        return codec.statistics_as(merged, given[0])

    async def first_done(self, question: Question) -> Answer | None:
        """Call one after the other until one succeeds; return the first failure if none does, None if none is live."""
        first: Answer | None = None
        for triton in self._tritons:
            if triton.alive:
                answer = await self._codec.ask(triton, question)
                if self._codec.succeeded(answer):
                    return answer
                first = answer if first is None else first
        return first

    def _asked(self) -> Sequence[AnyTriton]:
        return [triton for triton in self._tritons if triton.alive] or self._tritons[:1]

    async def _change(
        self,
        room: asyncio.Semaphore,
        verb: ControlVerb,
        question: Question,
        triton: AnyTriton,
        ask: Callable[[AnyTriton, Question], Awaitable[Answer]] | None,
    ) -> Answer:
        async with room, self._changing(verb, question, triton):
            return await (ask or self._codec.ask)(triton, question)


def whole_index(
    indexes: Iterable[Iterable[IndexRow]], hidden: Collection[str] = (), split: Collection[str] = ()
) -> list[IndexRow]:
    """Return every model and version once, ordered by name as in Triton; ready if it is ready on any Triton.

    A Triton lists loadable models without a version: these are kept for models loaded nowhere. `hidden` models are left
    out; `split` ones are added though no Triton has them by that name.
    """
    models = {(name, SPLIT_MODEL_VERSION): IndexRow(name, SPLIT_MODEL_VERSION, "READY") for name in split}
    for index in indexes:
        for model in index:
            key = (model.name, model.version)
            if model.name not in hidden and (key not in models or model.state == "READY"):
                models[key] = model
    known = {name for name, version in models if version}
    return [models[name, version] for name, version in sorted(models) if version or name not in known]


class ControlCall(NamedTuple):
    """Control-plane call of a client."""

    method: str
    """Full method name."""
    message: bytes = b""
    metadata: Metadata = ()
    remaining_s: float | None = None
    """Seconds until the client's deadline, if it has one."""


Responder = Callable[[ControlCall], Awaitable[bytes]]
"""Handler of the calls of one method. Raises RequestFailed."""


class GrpcAnswers(ProtocolCodec[AnyTriton, ControlCall, Outcome]):
    """Decoder and encoder of control responses over gRPC: serialized messages, or failures."""

    def succeeded(self, answer: Outcome) -> bool:
        """Return whether the call succeeded."""
        return not isinstance(answer, RequestFailed)

    def says_yes(self, answer: Outcome) -> bool:
        """Return whether the response is positive: for all of these calls it has one field with one number."""
        return isinstance(answer, bytes) and bool(service_pb2.ModelReadyResponse.FromString(answer).ready)

    def index_in(self, answer: Outcome) -> Iterable[IndexRow]:
        """Return the repository index in a response."""
        return index_of(answer_in(answer))

    def statistics_in(self, answer: Outcome) -> service_pb2.ModelStatisticsResponse:
        """Return the model statistics in a response."""
        return service_pb2.ModelStatisticsResponse.FromString(answer_in(answer))

    def statistics_as(self, statistics: service_pb2.ModelStatisticsResponse, like: Outcome) -> Outcome:
        """Encode statistics as a response."""
        serialized: bytes = statistics.SerializeToString()
        return serialized

    def index_as(self, index: Sequence[IndexRow], like: Outcome) -> Outcome:
        """Encode an index as a response."""
        response = service_pb2.RepositoryIndexResponse()
        for row in index:
            response.models.add(**row._asdict())
        serialized: bytes = response.SerializeToString()
        return serialized


class GrpcCodec(GrpcAnswers[Backend]):
    """Client of a Triton's gRPC port for control calls."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def ask(self, triton: Backend, question: ControlCall) -> Outcome:
        """Send a call to a Triton and return its response."""
        try:
            return await self._routing.ask(triton, *question)
        except RequestFailed as failure:
            return failure


def index_of(answer: bytes) -> list[IndexRow]:
    """Return the models of a serialized RepositoryIndexResponse."""
    response = service_pb2.RepositoryIndexResponse.FromString(answer)
    return [IndexRow(model.name, model.version, model.state, model.reason) for model in response.models]
