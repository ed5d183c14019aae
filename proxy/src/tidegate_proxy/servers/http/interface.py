"""Interface between the HTTP server and the rest of the proxy."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from tidegate_proxy.access.gate import HttpRefusal
from tidegate_proxy.configuration.apis import Api
from tidegate_proxy.servers.http.routes import Route

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
"""Names in lower case, as the server library gives them; in the order in which they came, repetitions included."""
NAMES_EXTENSION: Final = "tidegate.names"
"""Key of the scope of a request: the names of its headers as the client wrote them, which are Triton's to match."""


@dataclass(frozen=True, slots=True)
class HttpCall:
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
class HttpAnswer:
    """A complete HTTP response with body."""

    status: int
    headers: Headers
    """Without its length."""
    body: bytes


Guard = Callable[[Api | None, Mapping[str, str]], HttpRefusal | None]
"""Why a request is refused, by the API of its route and its headers, before its body is read; None if it is not.

The API is None for a path that is no route of Triton's."""

Owner = Callable[[Callable[[str], str | None], Callable[[], str]], str]
"""Whose a request is, by what finds its headers and by what names its connection."""

Handler = Callable[[HttpCall], Awaitable[HttpAnswer]]
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
