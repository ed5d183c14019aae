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
"""Headers with lower-case names, in the order in which they came, repetitions included."""
NAMES_EXTENSION: Final = "tidegate.names"
"""Key in a request's scope: the names of its headers as the client wrote them, for matching by Triton."""


@dataclass(frozen=True, slots=True)
class HttpCall:
    """Request of a client whose body has been read."""

    method: str
    path: bytes
    """Normalized path, without further decoding."""
    query: bytes
    headers: Headers
    """Headers with their names as the client wrote them."""
    body: bytes
    route: Route


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A complete HTTP response with body."""

    status: int
    headers: Headers
    """Headers without Content-Length."""
    body: bytes


Guard = Callable[[Api | None, Mapping[str, str]], HttpRefusal | None]
"""Function that returns why a request is rejected, by API and headers, before its body is read, or None.

The API is None for a path that is no route of Triton.
"""

Owner = Callable[[Callable[[str], str | None], Callable[[], str]], str]
"""Function that returns the client of a request, given functions that return a header and the peer address."""

Handler = Callable[[HttpCall], Awaitable[HttpAnswer]]
"""Handler that answers a route in Tidegate itself."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits on clients; None is no limit, as in Triton."""

    body_bytes: int | None = None
    """Largest body in bytes, compressed and decompressed. Larger ones are rejected with 413 before they are read."""
    head_bytes: int = 1 << 20
    """Largest request line and headers in bytes, within one read. Connections that send more are closed."""
    connections: int = 1 << 30
    """Largest number of open connections. The client with the most makes room for a new one."""
    head_s: float | None = None
    """Time limit from the first byte of a request to the end of its headers."""
    body_s: float | None = None
    """Time limit from there to the end of its body."""
    idle_s: float | None = None
    """Time limit from a response to the next request."""
    send_s: float | None = None
    """Time limit for a client that reads nothing of a pending response."""
    age_s: float | None = None
    """Age after which a connection ends with its next response, so that its client reconnects."""
