"""The calling side: a connection to one server, made when it is first needed and again when it breaks."""

import asyncio
import ssl
from collections import deque
from collections.abc import Sequence
from typing import Final, TypeVar

import ngh2
from grpc import StatusCode
from ngh2.enums import ErrorCode

from tidegate_proxy.configuration.addresses import host_of, port_of
from tidegate_proxy.configuration.tritons import TritonTls
from tidegate_proxy.transport.http2.client_call import PendingCall, PendingStream, PendingUnary
from tidegate_proxy.transport.http2.client_connection import ClientConnection
from tidegate_proxy.transport.http2.connection import ALPN
from tidegate_proxy.transport.http2.metadata import Header, headers_of, timeout_of
from tidegate_proxy.transport.interface import Answered, Ended, Metadata
from tidegate_proxy.transport.tls import channel_context

CONNECT_S: Final = 5.0
CLOSE_S: Final = 1.0
"""How long a server may take to hear that a connection is closed."""
BACK_OFF_S: Final = (0.1, 1.0)
"""A server that restarts is to be found again at once, not after gRPC's usual two minutes."""
AnyCall = TypeVar("AnyCall", bound=PendingCall)
_FIRST: Final = (b":method", b"POST")
_LAST: Final[tuple[Header, ...]] = (
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)


class Channel:
    """Calls to one server. Methods and callbacks are for the event loop's thread."""

    def __init__(
        self,
        address: str,
        tls: TritonTls | None = None,
        keepalive_s: float | None = None,
    ) -> None:
        """`keepalive_s`: as the configuration's. Raises TlsError."""
        self._host, self._port = host_of(address).strip("[]"), port_of(address)
        self._context = channel_context(tls, ALPN) if tls else None
        self._server_name = tls.server_name or self._host if tls else None
        self.keepalive_s = keepalive_s
        self._loop = asyncio.get_running_loop()
        self._connection: ClientConnection | None = None
        self._others: set[ClientConnection] = set()
        """The connections that take no more calls and have some."""
        self._waiting: deque[PendingCall] = deque()
        self._connecting: asyncio.Task[None] | None = None
        self._back_off_s = BACK_OFF_S[0]
        self._not_before_s = 0.0
        self._why = ""
        self._closed = False
        scheme = b"https" if tls else b"http"
        authority = (tls.server_name if tls and tls.server_name else address).encode()
        self._before: tuple[Header, ...] = (_FIRST, (b":scheme", scheme), (b":authority", authority))
        self._paths: dict[str, tuple[Header, ...]] = {}

    def unary(
        self, method: str, message: bytes, then: Answered, metadata: Metadata = (), timeout_s: float | None = None
    ) -> PendingCall:
        """Send a message; `then` is called when the call is over, exactly once, and not before this returns."""
        return self._begun(PendingUnary(self._headers(method, metadata, timeout_s), message, then), timeout_s)

    def stream(
        self, method: str, then: Ended, metadata: Metadata = (), timeout_s: float | None = None
    ) -> PendingStream:
        """Begin a stream; `then` is called when it is over, exactly once, and not before this returns.

        A status of the server's comes after the messages that it sent, once they were received; nothing else waits.
        """
        return self._begun(PendingStream(self._headers(method, metadata, timeout_s), then), timeout_s)

    def push(self) -> None:
        """Have calls that were begun leave now, not with what else the present event leads to."""
        if self._connection:
            self._connection.push()

    def _begun(self, call: AnyCall, timeout_s: float | None) -> AnyCall:
        if timeout_s is not None:
            call.expires_in(timeout_s, self._loop)
        self.again(call)
        return call

    def _headers(self, method: str, metadata: Metadata, timeout_s: float | None) -> Sequence[Header]:
        headers = self._paths.get(method)
        if headers is None:
            headers = (*self._before, (b":path", method.encode("latin-1")), *_LAST)
            if len(self._paths) < 100:  # clients may ask for any name
                self._paths[method] = headers
        if timeout_s is not None:
            headers = (*headers, (b"grpc-timeout", timeout_of(timeout_s)))
        if metadata:
            headers = (*headers, *headers_of(metadata))
        return headers

    def again(self, call: PendingCall) -> None:
        """Send a call that no server has seen."""
        connection = self._connection
        call.connection = None
        if connection and connection.takes_calls and not self._waiting:
            self._begin(connection, call)
        elif self._closed:
            self._loop.call_soon(call.end, StatusCode.CANCELLED, "Tidegate is shutting down")
        elif connection is None and self._connecting is None and self._loop.time() < self._not_before_s:
            self._loop.call_soon(call.end, StatusCode.UNAVAILABLE, self._why)
        else:
            self._waiting.append(call)
            if connection is None and self._connecting is None:
                self._connecting = self._loop.create_task(self._connect())

    def left(self, connection: ClientConnection) -> None:
        """A connection takes no more calls."""
        if self._connection is connection:
            self._connection = None
            if connection.calls:
                self._others.add(connection)
            if self._waiting and self._connecting is None and not self._closed:
                self._connecting = self._loop.create_task(self._connect())
        elif connection.transport is None:
            self._others.discard(connection)

    def freed(self, connection: ClientConnection) -> None:
        """A connection takes calls: those that wait go first."""
        while self._waiting and connection.takes_calls:
            call = self._waiting.popleft()
            if not call.is_over:
                self._begin(connection, call)

    async def close(self) -> None:
        """End every call under way with CANCELLED."""
        self._closed = True
        if self._connecting:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        connections = [*self._others, *([self._connection] if self._connection else [])]
        for call in [*self._waiting, *(call for connection in connections for call in connection.calls.values())]:
            call.cancel()
        for connection in connections:
            connection.terminate(ErrorCode.NO_ERROR, "closed")
        try:
            async with asyncio.timeout(CLOSE_S):
                for connection in connections:
                    await connection.ended.wait()
        except TimeoutError:
            for connection in connections:
                connection.abort("closed")

    def _begin(self, connection: ClientConnection, call: PendingCall) -> None:
        try:
            connection.begin(call)
        except (ngh2.NGH2Error, ValueError) as error:
            self._loop.call_soon(call.end, StatusCode.INTERNAL, f"the call cannot be sent: {error}")

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await self._loop.create_connection(
                    lambda: ClientConnection(self),
                    self._host,
                    self._port,
                    ssl=self._context,
                    server_hostname=self._server_name,
                )
            if connection.transport is None:  # it broke before this task went on
                raise ConnectionError(connection.closed_because or "Socket closed")
        except (OSError, ssl.SSLError, TimeoutError) as error:
            self._connecting = None
            words = str(error) or f"no connection within {CONNECT_S:g} s"
            self._why = f"failed to connect to {self._host}:{self._port}: {words}"
            self._not_before_s = self._loop.time() + self._back_off_s
            self._back_off_s = min(2 * self._back_off_s, BACK_OFF_S[1])
            waiting, self._waiting = self._waiting, deque()
            for call in waiting:
                call.end(StatusCode.UNAVAILABLE, self._why)
            return
        self._connecting = None
        self._back_off_s = BACK_OFF_S[0]
        self._connection = connection
        self.freed(connection)
