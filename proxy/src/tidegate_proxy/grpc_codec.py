"""gRPC's codec of what concerns every Triton: the client's message goes to each as it is."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from tritonclient.grpc import service_pb2

from tidegate_proxy.backend import Backend
from tidegate_proxy.fan_out import AnyTriton, Codec, IndexRow
from tidegate_proxy.outcome import Outcome, RequestFailed, answer_in
from tidegate_proxy.routing import Routing
from tidegate_proxy.transport import Metadata


class ControlCall(NamedTuple):
    """A call of a client that is no inference."""

    method: str
    """Its full name."""
    message: bytes = b""
    metadata: Metadata = ()
    remaining_s: float | None = None
    """Until the client's deadline, if it has one."""


Responder = Callable[[ControlCall], Awaitable[bytes]]
"""Answers the calls of one method. Raises RequestFailed with what a client is to be told."""


class GrpcAnswers(Codec[AnyTriton, ControlCall, Outcome]):
    """Reads what is said over gRPC: a serialized answer, or a failure."""

    def succeeded(self, answer: Outcome) -> bool:
        """Whether it has done what it was asked."""
        return not isinstance(answer, RequestFailed)

    def says_yes(self, answer: Outcome) -> bool:
        """Whether it says so of itself, or of a model: the answers to all of these have one field, of one number."""
        return isinstance(answer, bytes) and bool(service_pb2.ModelReadyResponse.FromString(answer).ready)

    def index_in(self, answer: Outcome) -> Iterable[IndexRow]:
        """The index that it has given."""
        return index_of(answer_in(answer))

    def index_as(self, index: Sequence[IndexRow], like: Outcome) -> Outcome:
        """An index as an answer."""
        response = service_pb2.RepositoryIndexResponse()
        for row in index:
            response.models.add(**row._asdict())
        serialized: bytes = response.SerializeToString()
        return serialized


class GrpcCodec(GrpcAnswers[Backend]):
    """Asks a Triton on its gRPC port."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def ask(self, triton: Backend, question: ControlCall) -> Outcome:
        """What it says."""
        try:
            return await self._routing.ask(triton, *question)
        except RequestFailed as failure:
            return failure


def index_of(answer: bytes) -> list[IndexRow]:
    """What a serialized RepositoryIndexResponse says."""
    response = service_pb2.RepositoryIndexResponse.FromString(answer)
    return [IndexRow(model.name, model.version, model.state, model.reason) for model in response.models]
