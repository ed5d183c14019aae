"""Client side of gRPC: a channel to a Triton, its connection, which is restored when it breaks, and its calls."""

import asyncio
import logging
import ssl
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import ngh2
from grpc import StatusCode
from ngh2.enums import ErrorCode, Setting
from ngh2.events import DataReceived, GoAwayReceived, ResponseReceived, StreamClosed, StreamReset, TrailersReceived

from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.tasks import cancel
from tidegate_proxy.configuration.addresses import host_of, port_of
from tidegate_proxy.configuration.tritons import TritonTls
from tidegate_proxy.transport.http2.connection import ALPN_PROTOCOLS, Http2Connection, configuration
from tidegate_proxy.transport.http2.headers import (
    STATUS_BY_NUMBER,
    Header,
    HeaderBlocks,
    code_of_http,
    code_of_reset,
    headers_of,
    name_of,
    timeout_of,
    unquoted,
)
from tidegate_proxy.transport.http2.message import MessageAssembler, MessageError, is_known, single_message
from tidegate_proxy.transport.interface import Answered, Ended, Metadata
from tidegate_proxy.transport.tls import channel_context

log = logging.getLogger(__name__)


MAX_ANSWER: Final = (1 << 31) - 1


class PendingCall:
    """Call that is in flight, or waits for a connection."""

    __slots__ = (
        *("_assembler", "_timer"),
        *("code", "connection", "details", "encoding", "headers", "is_over", "stream_id", "tries"),
    )

    def __init__(self, headers: Sequence[Header]) -> None:
        self.headers = headers
        self.connection: ClientConnection | None = None
        self.stream_id = 0
        self.tries = 0
        self.encoding = "identity"
        """Compression of the server's messages."""
        self.code: StatusCode | None = None
        """Status, as soon as it has arrived."""
        self.details = ""
        self.is_over = False
        self._assembler: MessageAssembler | None = None
        self._timer: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        """End the call with CANCELLED and notify the server, unless the call has ended."""
        self._give_up(StatusCode.CANCELLED, "given up by Tidegate")

    def expires_in(self, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        """End the call with DEADLINE_EXCEEDED after `seconds`."""
        self._timer = loop.call_later(seconds, self._give_up, StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def end(self, code: StatusCode, details: str) -> None:
        """End the call; only the first end counts."""
        if self.is_over:
            return
        self.is_over = True
        if self._timer:
            self._timer.cancel()
        try:
            self.ended(code, details)
        except Exception as error:  # one call's fault must not end the connection of all others
            faults.report("the end of a call", error)

    def fail(self, error: MessageError) -> None:
        """Fail the call because the server sent something invalid."""
        self._give_up(error.code, error.details)

    @property
    @abstractmethod
    def may_be_sent_again(self) -> bool:
        """Whether the messages of a call that the server did not process are still available."""

    @abstractmethod
    def begun(self) -> None:
        """Send pending messages, as the headers were written."""

    @abstractmethod
    def add(self, data: bytes) -> None:
        """Add data from the server. Raises MessageError."""

    @abstractmethod
    def status_came(self, code: StatusCode, details: str) -> None:
        """Handle the server's status."""

    @abstractmethod
    def ended(self, code: StatusCode, details: str) -> None:
        """Notify the caller that the call has ended; subclasses call it at most once."""

    def _give_up(self, code: StatusCode, details: str) -> None:
        if self.is_over:
            return
        if self.connection:
            self.connection.reset(self.stream_id)
        self.end(code, details)


class PendingUnary(PendingCall):
    """A unary call in flight: one message, one response."""

    __slots__ = ("_answer", "_message", "_then")

    def __init__(self, headers: Sequence[Header], message: bytes, then: Answered) -> None:
        super().__init__(headers)
        self._message = message
        self._then = then
        self._answer: bytes | None = None

    @property
    def may_be_sent_again(self) -> bool:
        """Whether the call can be sent again on another connection: always, because the message is kept."""
        return True

    def begun(self) -> None:
        """Send the message, as the headers were written."""
        assert self.connection
        self.connection.send(self.stream_id, self._message, is_last=True)

    def add(self, data: bytes) -> None:
        """Add a part of the response. Raises MessageError."""
        if self.connection:
            self.connection.acknowledge(self.stream_id, len(data))
        if self._assembler is None:
            if self._answer is None and (message := single_message(data, MAX_ANSWER)) is not None:
                self._answer = message
                return
            self._assembler = MessageAssembler(self.encoding, MAX_ANSWER)
        self._assembler.add(data)
        if (message := self._assembler.take_inflated()) is not None:
            self._answer = message

    def status_came(self, code: StatusCode, details: str) -> None:
        """Handle the server's status."""
        if code is StatusCode.OK and self._answer is None:
            code, details = StatusCode.INTERNAL, "the server sent no message"
        self.end(code, details)

    def ended(self, code: StatusCode, details: str) -> None:
        """Call the callback with the response, or the status."""
        self._message = b""
        self._then(self._answer if code is StatusCode.OK else None, code, details)


class PendingStream(PendingCall):
    """Streaming call in flight: any number of messages in both directions."""

    __slots__ = (
        *("_has_sent", "_is_closed", "_outbox", "_then"),
        *("_is_delivering", "_receiver", "_status", "_unacknowledged"),
    )

    def __init__(self, headers: Sequence[Header], then: Ended) -> None:
        super().__init__(headers)
        self._then = then
        self._outbox: deque[tuple[bytes, Callable[[object], None]]] = deque()
        """Messages to send once there is a connection."""
        self._has_sent = False
        self._is_closed = False
        """Whether there are no more messages to be sent."""
        self._receiver: Callable[[bytes], None] | None = None
        self._is_delivering = False
        self._unacknowledged = 0
        """Bytes that came since the last message was taken: the server may not send as many again yet."""
        self._status: tuple[StatusCode, str] | None = None
        """Status that follows messages not taken yet."""

    @property
    def may_be_sent_again(self) -> bool:
        """Whether the call can be sent again: no message was sent yet."""
        return not self._has_sent

    def send(self, message: bytes, then: Callable[[object], None]) -> None:
        """Send a message; `then` is called, with an unused argument, when the next one may be sent."""
        if self.is_over or self._is_closed:
            return
        self._outbox.append((message, then))
        self._write()

    def half_close(self) -> None:
        """Signal that there are no more messages, after those that are pending."""
        if self.is_over or self._is_closed:
            return
        self._is_closed = True
        self._write()

    def receive(self, then: Callable[[bytes], None]) -> None:
        """Call `then` with the next message, unless the stream ends before it. One at a time."""
        if self.is_over:
            return
        self._receiver = then
        self._acknowledge()
        try:
            self._deliver()
        except MessageError as error:
            self.fail(error)

    def begun(self) -> None:
        """Send pending messages, as the headers were written."""
        self._write()

    def add(self, data: bytes) -> None:
        """Add data from the server. Raises MessageError."""
        if self._assembler is None:
            self._assembler = MessageAssembler(self.encoding, MAX_ANSWER)
        self._assembler.add(data)
        self._unacknowledged += len(data)
        if self._receiver:
            self._acknowledge()
        self._deliver()

    def status_came(self, code: StatusCode, details: str) -> None:
        """Handle the server's status, which is reported after its messages."""
        self._status = (code, details)
        self._deliver()

    def ended(self, code: StatusCode, details: str) -> None:
        """Discard unread messages, and call the callback."""
        self._outbox.clear()
        self._receiver = None
        self._acknowledge()
        self._then(code, details)

    def _write(self) -> None:
        connection = self.connection
        if connection is None:
            return
        while self._outbox:
            message, then = self._outbox.popleft()
            self._has_sent = True
            connection.send(self.stream_id, message, then)
        if self._is_closed:
            self._has_sent = True
            connection.half_close(self.stream_id)

    def _acknowledge(self) -> None:
        amount, self._unacknowledged = self._unacknowledged, 0
        if self.connection:
            self.connection.acknowledge(self.stream_id, amount)

    def _deliver(self) -> None:
        if self._is_delivering:
            return  # a receiver asks for more: no recursion
        self._is_delivering = True
        try:
            while self._assembler and (receiver := self._receiver):
                message = self._assembler.take_inflated()
                if message is None:
                    break
                self._receiver = None
                receiver(message)
        finally:
            self._is_delivering = False
        if self._status and not (self._assembler and self._assembler.has_message):
            self.end(*self._status)


KEEPALIVE_TIMEOUT_S: Final = 20.0
STREAMS_PER_CONNECTION: Final = 1 << 29
"""Streams after which a new connection is used: stream numbers end at 2^31, and only every other one is used."""


class ClientConnection(Http2Connection):
    """HTTP/2 connection to the server."""

    def __init__(self, channel: "Channel") -> None:
        super().__init__(
            ngh2.Role.CLIENT, configuration(peer_max_concurrent_streams=(1 << 31) - 1), {Setting.ENABLE_PUSH: 0}
        )
        self._channel = channel
        self._header_blocks = HeaderBlocks()
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
        """Whether calls are in flight."""
        return bool(self.calls)

    @property
    def takes_calls(self) -> bool:
        """Whether another call may be begun now."""
        return self.is_open and self.http2.can_send_request

    def opened(self, transport: asyncio.Transport) -> None:
        """Start HTTP/2."""
        super().opened(transport)
        self.is_open = True
        if self._channel.keepalive_s:
            self.keep_alive(self._channel.keepalive_s, KEEPALIVE_TIMEOUT_S)

    def take_in(self, data: memoryview) -> None:
        """Process received bytes; a long error message of one call must not end the connection of all others."""
        self.http2.receive_data(self._header_blocks.shortened(data))

    def lost(self, reason: str) -> None:
        """End calls in flight with UNAVAILABLE."""
        self.is_open = False
        calls, self.calls = list(self.calls.values()), {}
        self._channel.left(self)
        for call in calls:
            call.end(StatusCode.UNAVAILABLE, reason)

    def begin(self, call: PendingCall) -> None:
        """Send a call."""
        stream_id = self.http2.send_request(call.headers)
        call.connection, call.stream_id = self, stream_id
        call.tries += 1
        self.calls[stream_id] = call
        call.begun()
        if stream_id > 2 * STREAMS_PER_CONNECTION:
            self.retire()
        self.wake()

    def half_close(self, stream_id: int) -> None:
        """Signal that all messages of a stream are sent."""
        try:
            self.http2.end_stream(stream_id)
        except ngh2.NGH2Error as error:
            log.debug("stream error", extra={"stream": stream_id, "error": str(error)})
        self.wake()

    def reset(self, stream_id: int) -> None:
        """Tell the server that a call was cancelled."""
        if self.calls.pop(stream_id, None):
            try:
                self.http2.reset_stream(stream_id, ErrorCode.CANCEL)
            except ngh2.NGH2Error as error:
                log.debug("stream error", extra={"stream": stream_id, "error": str(error)})
            self.wake()

    def retire(self) -> None:
        """Begin no more calls, and close after those in flight."""
        self.is_open = False
        self._channel.left(self)
        self._close_if_done()

    def _close_if_done(self) -> None:
        if not self.calls and not self.is_open and self.transport:
            self.flush()
            self.close()

    def _headers(self, event: ResponseReceived | TrailersReceived) -> None:
        call = self.calls.get(event.stream_id)
        if call is None:
            return
        status = b"200"
        for name, value in event.headers:
            if name == b":status":
                status = value
            elif name == b"grpc-status":
                call.code = STATUS_BY_NUMBER.get(int(value) if value.isdigit() else -1, StatusCode.UNKNOWN)
            elif name == b"grpc-message":
                call.details = unquoted(value)
            elif name == b"grpc-encoding":
                call.encoding = value.decode("latin-1")
        if status != b"200" and call.code is None:
            call.code = code_of_http(int(status))
            call.details = f"Received http2 header with status: {status.decode()}"
        if not is_known(call.encoding):
            words = f"the server compresses messages with {call.encoding!r}, which was not asked for"
            call.fail(MessageError(StatusCode.INTERNAL, words))

    def _data(self, event: DataReceived) -> None:
        call = self.calls.get(event.stream_id)
        if call is None:
            self.acknowledge(event.stream_id, len(event.data))
            return
        try:
            call.add(event.data)
        except MessageError as error:
            call.fail(error)

    def _reset(self, event: StreamReset) -> None:
        call = self.calls.get(event.stream_id)
        if call is None or call.code is not None:
            return  # NO_ERROR after its status
        refused = event.error_code == ErrorCode.REFUSED_STREAM  # the server did not look at it
        if refused and call.tries < 2 and call.may_be_sent_again:
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
            try:
                call.status_came(call.code, call.details)
            except Exception as error:  # one call's fault must not end the connection of all others
                faults.report("the end of a call", error)
                call.end(StatusCode.INTERNAL, "the end of the call met a fault of Tidegate's own")
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
            if call.may_be_sent_again:
                self._channel.again(call)
            else:
                call.end(StatusCode.UNAVAILABLE, self.closed_because or "the server ends the connection")


CONNECT_S: Final = 5.0
CLOSE_S: Final = 1.0
"""Time limit in seconds for the closing handshake of a connection."""
BACK_OFF_S: Final = (0.1, 1.0)
"""Bounds in seconds of the reconnect backoff: shorter than gRPC's two minutes, for a server that restarts."""
AnyCall = TypeVar("AnyCall", bound=PendingCall)
_FIRST: Final = (b":method", b"POST")
_LAST: Final[tuple[Header, ...]] = (
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)


class Channel:
    """Channel to one server. Use methods and callbacks only in the event loop's thread."""

    def __init__(
        self,
        address: str,
        tls: TritonTls | None = None,
        keepalive_s: float | None = None,
    ) -> None:
        """Create the channel. `keepalive_s`: as in the configuration. Raises TlsError.

        `address`: HOST:PORT of the server.
        """
        self._host, self._port = host_of(address).strip("[]"), port_of(address)
        self._context = channel_context(tls, ALPN_PROTOCOLS) if tls else None
        self._server_name = tls.server_name or self._host if tls else None
        self.keepalive_s = keepalive_s
        self._loop = asyncio.get_running_loop()
        self._connection: ClientConnection | None = None
        self._others: set[ClientConnection] = set()
        """The connections that take no more calls and are not closed."""
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
        """Send a message; `then` is called exactly once when the call has ended, and not before this returns."""
        return self._begun(PendingUnary(self._headers(method, metadata, timeout_s), message, then), timeout_s)

    def stream(
        self, method: str, then: Ended, metadata: Metadata = (), timeout_s: float | None = None
    ) -> PendingStream:
        """Begin a stream; `then` is called exactly once when it has ended, and not before this returns.

        The server's status is reported after its messages were received; other ends are reported at once.
        """
        return self._begun(PendingStream(self._headers(method, metadata, timeout_s), then), timeout_s)

    def push(self) -> None:
        """Send calls that were begun now, instead of at the end of the current event."""
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
        """Send a call again that no server has processed."""
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
        """Remove a connection that takes no more calls."""
        if self._connection is connection:
            self._connection = None
            if connection.transport:
                self._others.add(connection)
            if self._waiting and self._connecting is None and not self._closed:
                self._connecting = self._loop.create_task(self._connect())
        elif connection.transport is None:
            self._others.discard(connection)

    def freed(self, connection: ClientConnection) -> None:
        """Begin waiting calls on a connection that takes calls."""
        while self._waiting and connection.takes_calls:
            call = self._waiting.popleft()
            if not call.is_over:
                self._begin(connection, call)

    async def close(self) -> None:
        """End every call in flight with CANCELLED; return when no connection is open."""
        self._closed = True
        await cancel(self._connecting)
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
                await connection.ended.wait()

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
