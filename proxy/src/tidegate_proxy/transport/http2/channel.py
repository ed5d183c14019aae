"""The calling side: a connection to one server, made when it is first needed and again when it breaks."""

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Sequence
from typing import Final

import ngh2
from grpc import StatusCode
from ngh2.enums import ErrorCode, Setting
from ngh2.events import DataReceived, GoAwayReceived, ResponseReceived, StreamClosed, StreamReset, TrailersReceived

from tidegate_proxy.access.tls import channel_context
from tidegate_proxy.configuration.addresses import host_of, port_of
from tidegate_proxy.configuration.config import TritonTls
from tidegate_proxy.transport.http2.connection import ALPN, Connection, configuration
from tidegate_proxy.transport.http2.message import JOINED_UP_TO, Assembler, MessageError, prefix
from tidegate_proxy.transport.http2.metadata import Header, headers_of, timeout_of, unquoted
from tidegate_proxy.transport.http2.status import CODES, code_of_http, code_of_reset, name_of
from tidegate_proxy.transport.interface import Answered, Metadata

log = logging.getLogger(__name__)

LONGEST_ANSWER: Final = (1 << 31) - 1
KEEPALIVE_TIMEOUT_S: Final = 20.0
CONNECT_S: Final = 5.0
BACK_OFF_S: Final = (0.1, 1.0)
"""A server that restarts is to be found again at once, not after gRPC's usual two minutes."""
STREAMS_PER_CONNECTION: Final = 1 << 29
"""Then another connection takes over: the numbers of a connection's streams come to an end at 2^31, every other one."""
_FIRST: Final = (b":method", b"POST")
_LAST: Final[tuple[Header, ...]] = (
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
    (b"user-agent", b"tidegate"),
)


class PendingCall:
    """A call that was sent, or waits for a connection."""

    __slots__ = (
        "_assembler",
        "_timer",
        "answer",
        "channel",
        "code",
        "connection",
        "details",
        "headers",
        "message",
        "stream_id",
        "then",
        "tries",
    )

    def __init__(self, channel: "Channel", headers: Sequence[Header], message: bytes, then: Answered) -> None:
        self.channel = channel
        self.headers = headers
        self.message = message
        self.then: Answered | None = then
        """None: it is over."""
        self.connection: ClientConnection | None = None
        self.stream_id = 0
        self.tries = 0
        self.code: StatusCode | None = None
        self.details = ""
        self.answer: bytes | None = None
        self._assembler: Assembler | None = None
        self._timer: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        """Give it up: unless it has ended, `then` is called with CANCELLED, and the server is told."""
        self._give_up(StatusCode.CANCELLED, "given up by Tidegate")

    def expires_in(self, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        """End it when its time is up."""
        self._timer = loop.call_later(seconds, self._give_up, StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def add(self, data: bytes) -> None:
        """Take in a part of the answer. Raises MessageError."""
        if self._assembler is None:
            self._assembler = Assembler("identity", LONGEST_ANSWER)
            self.answer = self._assembler.whole(data)
            if self.answer is not None:
                return
        self._assembler.add(data)
        if (message := self._assembler.take()) is not None:
            self.answer = message

    def end(self, code: StatusCode, details: str) -> None:
        """It is over; only the first end counts."""
        then, self.then = self.then, None
        if then is None:
            return
        if self._timer:
            self._timer.cancel()
        self.message = b""
        if code is StatusCode.OK and self.answer is None:
            code, details = StatusCode.INTERNAL, "the server sent no message"
        try:
            then(self.answer if code is StatusCode.OK else None, code, details)
        except Exception:  # one call's fault must not end the connection of all others
            log.exception("a call's callback failed")

    def _give_up(self, code: StatusCode, details: str) -> None:
        if self.then is None:
            return
        if self.connection:
            self.connection.reset(self.stream_id)
        self.end(code, details)


class ClientConnection(Connection):
    """One connection to the server."""

    def __init__(self, channel: "Channel") -> None:
        super().__init__(
            ngh2.Role.CLIENT, configuration(peer_max_concurrent_streams=(1 << 31) - 1), {Setting.ENABLE_PUSH: 0}
        )
        self._channel = channel
        self.calls: dict[int, PendingCall] = {}
        self.is_open = False
        """Whether calls may be begun."""
        self.handlers |= {
            ResponseReceived: self._headers,
            TrailersReceived: self._headers,
            DataReceived: self._data,
            StreamReset: self._reset,
            StreamClosed: self._stream_closed,
            GoAwayReceived: self._go_away,
        }

    @property
    def is_busy(self) -> bool:
        """Whether calls are under way."""
        return bool(self.calls)

    @property
    def takes_calls(self) -> bool:
        """Whether another call may be begun now."""
        return self.is_open and self.http2.can_send_request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Speak."""
        super().connection_made(transport)
        self.is_open = True
        if self._channel.keepalive_s:
            self.keep_alive(self._channel.keepalive_s, KEEPALIVE_TIMEOUT_S)

    def lost(self, reason: str) -> None:
        """Calls under way end with UNAVAILABLE."""
        self.is_open = False
        calls, self.calls = list(self.calls.values()), {}
        self._channel.left(self)
        for call in calls:
            call.end(StatusCode.UNAVAILABLE, reason)

    def begin(self, call: PendingCall) -> None:
        """Send a call."""
        http2 = self.http2
        stream_id = http2.send_request(call.headers)
        message = call.message
        if len(message) <= JOINED_UP_TO:
            http2.send_data(stream_id, prefix(len(message)) + message, end_stream=True)
        else:
            http2.send_data(stream_id, prefix(len(message)))
            http2.send_data(stream_id, message, end_stream=True)
        call.connection, call.stream_id = self, stream_id
        call.tries += 1
        self.calls[stream_id] = call
        if stream_id > 2 * STREAMS_PER_CONNECTION:
            self.retire()
        self.wake()

    def reset(self, stream_id: int) -> None:
        """Tell the server that nobody waits for a call."""
        if self.calls.pop(stream_id, None):
            try:
                self.http2.reset_stream(stream_id, ErrorCode.CANCEL)
            except ngh2.NGH2Error as error:
                log.debug("stream %d: %s", stream_id, error)
            self.wake()

    def retire(self) -> None:
        """Begin no more calls; end when those under way have."""
        self.is_open = False
        self._channel.left(self)
        self._close_if_done()

    def _close_if_done(self) -> None:
        if not self.calls and not self.is_open and self.transport:
            self.flush()
            self.transport.close()

    def _headers(self, event: ResponseReceived | TrailersReceived) -> None:
        call = self.calls.get(event.stream_id)
        if call is None:
            return
        status = b"200"
        for name, value in event.headers:
            if name == b":status":
                status = value
            elif name == b"grpc-status":
                call.code = CODES.get(int(value) if value.isdigit() else -1, StatusCode.UNKNOWN)
            elif name == b"grpc-message":
                call.details = unquoted(value)
        if status != b"200" and call.code is None:
            call.code = code_of_http(int(status))
            call.details = f"Received http2 header with status: {status.decode()}"

    def _data(self, event: DataReceived) -> None:
        call = self.calls.get(event.stream_id)
        data = event.data
        self.acknowledge(event.stream_id, len(data))
        if call:
            try:
                call.add(data)
            except MessageError as error:
                self.reset(event.stream_id)
                call.end(error.code, error.details)

    def _reset(self, event: StreamReset) -> None:
        call = self.calls.get(event.stream_id)
        if call is None or call.code is not None:
            return  # NO_ERROR after its status
        if event.error_code == ErrorCode.REFUSED_STREAM and call.tries < 2:  # the server did not look at it
            del self.calls[event.stream_id]
            self._channel.again(call)
            return
        call.code = code_of_reset(event.error_code)
        call.details = f"RST_STREAM with {name_of(event.error_code)}"

    def _stream_closed(self, event: StreamClosed) -> None:
        call = self.calls.pop(event.stream_id, None)
        if call:
            if call.code is None:
                call.code, call.details = StatusCode.UNKNOWN, "the server ended the stream without a status"
            call.end(call.code, call.details)
        if self.is_open:
            self._channel.freed(self)
        else:
            self._close_if_done()

    def _go_away(self, event: GoAwayReceived) -> None:
        unseen = [call for stream_id, call in self.calls.items() if stream_id > event.last_stream_id]
        for call in unseen:
            del self.calls[call.stream_id]
        self.closed_because = event.debug_data.decode("utf-8", "replace")
        self.retire()
        for call in unseen:
            self._channel.again(call)


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
        """Those that take no more calls and have some."""
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
        headers = self._paths.get(method)
        if headers is None:
            headers = (*self._before, (b":path", method.encode("latin-1")), *_LAST)
            if len(self._paths) < 100:  # clients may ask for any name
                self._paths[method] = headers
        if timeout_s is not None:
            headers = (*headers, (b"grpc-timeout", timeout_of(timeout_s)))
        if metadata:
            headers = (*headers, *headers_of(metadata))
        call = PendingCall(self, headers, message, then)
        if timeout_s is not None:
            call.expires_in(timeout_s, self._loop)
        self.again(call)
        return call

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
            if call.then is not None:
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
