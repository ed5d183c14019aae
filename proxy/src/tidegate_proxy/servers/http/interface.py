"""What the HTTP front asks of the rest of the proxy."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from typing import Protocol as Interface

from tritonclient.grpc import service_pb2

from tidegate_proxy.access.gate import HttpRefusal
from tidegate_proxy.configuration.apis import Api, Protocol
from tidegate_proxy.servers.http.routes import Route

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
"""Names in lower case, as the server library gives them; in the order in which they came, repetitions included."""
NAMES: Final = "tidegate.names"
"""Key of the scope of a request: the names of its headers as the client wrote them, which are Triton's to match."""


class Triton(Interface):
    """A Triton behind the front."""

    @property
    def http_url(self) -> str:
        """Where its HTTP service is: `http://host:port`."""

    @property
    def alive(self) -> bool:
        """Whether it is worth asking."""

    @property
    def forwarded(self) -> set[Any]:
        """Calls to it that are under way, each with a method `cancel`, which is called when it is given up."""

    def http_headers(self, api: Api) -> Sequence[tuple[str, str]]:
        """What opens an API that it restricts for a client's call."""

    def passes(self, model: str) -> None:
        """A call about a model is passed on to it."""

    def passed(self, model: str) -> None:
        """Such a call is over."""


AnyTriton = TypeVar("AnyTriton", bound=Triton)


class Routing(Interface[AnyTriton]):
    """Says which Triton answers what is not scheduled."""

    def route(self, model: str, protocol: Protocol, api: Api | None) -> AnyTriton:
        """For a call of an API about a model that is no inference; "" for one about none."""

    def route_http_inference(
        self, model: str, sequence: str, header: service_pb2.ModelInferRequest | None
    ) -> AnyTriton:
        """For an inference; `sequence`: the id of its sequence, "" where it is of none; `header`: what it says of its
        tensors. Neither needs to be known but where `looks_inside` says so."""

    def looks_inside(self, model: str) -> bool:
        """Whether it matters what is in an inference of this model."""

    async def unreachable(self, triton: AnyTriton, details: str) -> None:
        """A Triton could not be reached: from now on it may be another's turn."""

    def may_try_again(self, lost: AnyTriton, model: str, tries: int) -> bool:
        """Whether an inference that was tried so often, the last time in vain with this Triton, is sent to another."""


class Scheduling(Interface):
    """The scheduler."""

    async def infer(
        self,
        message: bytes,
        remaining_s: float | None,
        metadata: Sequence[tuple[str, str | bytes]] = (),
        owner: str = "",
    ) -> bytes:
        """Have a request scheduled; cancelling the call cancels the request.

        `message`: a serialized inference.ModelInferRequest with raw_input_contents. `remaining_s`: how long the client
        waits; None, always so over HTTP, where only the model and the request's parameters limit it.
        `metadata`: headers by which the client's trace goes on. `owner`: whose request it is.
        Gives a serialized ModelInferResponse with raw_output_contents. Raises NotSchedulable where Triton has to see
        the request as it came, RequestFailed where the client gets an error instead.
        """


class PassedThrough(Interface):
    """Is told of inferences that a Triton answered, not the scheduler."""

    def __call__(self, model: str, version: str, *, sent_ns: int, ok: bool) -> None:
        """One that was sent on at this instant of the monotonic clock is over."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request of a client, its body read."""

    method: str
    path: bytes
    """In its normal form, of which nothing more is decoded."""
    query: bytes
    headers: Headers
    """With their names as the client wrote them."""
    body: bytes
    route: Route


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response."""

    status: int
    headers: Headers
    """Without its length."""
    body: bytes


Guard = Callable[[Api | None, Mapping[str, str]], HttpRefusal | None]
"""Why a request is refused, by the API of its route and its headers, before its body is read; None if it is not.

The API is None for a path that is no route of Triton's."""

Owner = Callable[[Callable[[str], str | None], Callable[[], str]], str]
"""Whose a request is, by what finds its headers and by what names its connection."""

Handler = Callable[[Call], Awaitable[Answer]]
"""Answers a route in Tidegate itself."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """How much of a client is taken, and for how long; None is no limit, as Triton has none."""

    body_bytes: int | None = None
    """Size of a body, compressed and inflated. Larger ones are refused with 413, before they are read."""
    head_bytes: int = 1 << 20
    """Size of the request line and headers, give or take one read. Connections that send more are closed."""
    connections: int = 1 << 30
    """How many may be open. Who has most of them makes room for the next one."""
    head_s: float | None = None
    """From the first byte of a request to the end of its headers."""
    body_s: float | None = None
    """From there to the end of its body."""
    idle_s: float | None = None
    """From an answer to the next request."""
    send_s: float | None = None
    """How long a client may take nothing of an answer that waits for it."""
    age_s: float | None = None
    """With the first answer after so long a connection ends, so that its client makes another one."""
