"""Server side of gRPC: a listener, its clients' connections and their limits."""

import asyncio
import logging
import random
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import ngh2
from grpc import StatusCode
from ngh2.enums import ErrorCode, Setting
from ngh2.events import DataReceived, PingReceived, RequestReceived, SettingsReceived, StreamClosed, StreamReset

from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.outcome import own_fault
from tidegate_proxy.configuration.addresses import host_of, port_of
from tidegate_proxy.configuration.config import ServerTls
from tidegate_proxy.configuration.limits import LimitsConfig
from tidegate_proxy.transport.client_bounds import TOO_MUCH, ClientBounds, makes_room
from tidegate_proxy.transport.http2.connection import ALPN_PROTOCOLS, Http2Connection, configuration
from tidegate_proxy.transport.http2.headers import CallHeaders, Header, opening_of
from tidegate_proxy.transport.http2.message import MessageError
from tidegate_proxy.transport.http2.server_call import OK_TRAILERS, RESPONSE_HEADERS, Http2Call
from tidegate_proxy.transport.ports import listen_error
from tidegate_proxy.transport.tls import server_context

log = logging.getLogger(__name__)


HEADER_BYTES: Final = 1 << 16
"""Largest size in bytes of one request's headers, decoded."""
MAX_DETAILS: Final = 1 << 14
SHORTEST_DETAILS: Final = 1 << 8
BESIDE_DETAILS: Final = 1 << 9
"""Bytes of a client's limit reserved for the other headers of a status."""
KEEPALIVE_TIMEOUT_S: Final = 20.0
RESET_LIMITS: Final = (2000, 200)
"""Calls that a connection may begin and reset before their deadlines: at once, and per second."""
RESETS_IN_ALL: Final = (50_000, 5_000)
"""Calls that a connection may reset at all, at once and per second.

This is the capacity of one process, so that clients that leave at their deadlines in an overload are no flood.
libnghttp2's own default, 1000 and 33, would close their connections.
"""
AT_ITS_DEADLINE_S: Final = 0.1
HEARD_S: Final = 1.0
"""Seconds after which a client has received the notice to reconnect, at any distance."""
MAX_PING_STRIKES: Final = 2
"""Number of consecutive pings that may come too early, as in gRPC's core."""


class ServerConnection(Http2Connection):
    """HTTP/2 connection of one client."""

    def __init__(self, server: "Http2Server") -> None:
        limits = server.limits
        super().__init__(
            ngh2.Role.SERVER,
            # libnghttp2 cannot tell who resets at its deadline from who floods: its limit is the outer one.
            configuration(max_inbound_header_list_size=HEADER_BYTES, stream_reset_rate_limit=RESETS_IN_ALL),
            {Setting.MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams, Setting.MAX_HEADER_LIST_SIZE: HEADER_BYTES},
        )
        self.limits = limits
        self.bounds = server.bounds
        self.now_s = self._loop.time
        self.peer = ""
        self._server = server
        self._calls: dict[int, Http2Call] = {}
        self._reset_credit = float(RESET_LIMITS[0])
        self._began_s = self._reset_s = self.idle_since_s = self._taken_s = self.now_s()
        self.has_asked = False
        """Whether a call of it has ended."""
        self._opening = CallHeaders()
        """The headers of its latest call."""
        self._greeted = False
        """Whether it has said anything."""
        self._unread = 0
        """Bytes that it has not taken, as they were counted last."""
        self._leaving = False
        """Whether its client was sent elsewhere."""
        self._shut = False
        """Whether it takes no more calls."""
        self._takes_headers = MAX_DETAILS
        """Bytes of headers that it takes at a time."""
        self._pings = 0
        """In a row that came too early."""
        self._pinged_s = 0.0
        self.handlers |= {
            RequestReceived: self._requested,
            DataReceived: self._data,
            StreamReset: self._reset,
            StreamClosed: self._stream_closed,
            PingReceived: self._pinged,
            SettingsReceived: self._settings_received,
        }

    @property
    def is_busy(self) -> bool:
        """Whether calls are in flight."""
        return bool(self._calls)

    @property
    def host(self) -> str:
        """Address of the client without the port."""
        return self.peer.rpartition(":")[0]

    @property
    def most_details(self) -> int:
        """Largest length of a status's details that the client accepts: gRPC rejects a longer status.

        Some clients begin to reject at half of their announced limit.
        """
        return max(SHORTEST_DETAILS, min(self._takes_headers, MAX_DETAILS) // 2 - BESIDE_DETAILS)

    @property
    def open_calls(self) -> int:
        """Number of calls that have not ended."""
        return len(self._calls)

    def opened(self, transport: asyncio.Transport) -> None:
        """Start HTTP/2, unless there are too many connections."""
        self.peer = _peer_of(transport.get_extra_info("peername"))
        if not self._server.admits(self):
            transport.abort()
            return
        super().opened(transport)
        self.keep_alive(self.limits.keepalive_s, KEEPALIVE_TIMEOUT_S)

    def lost(self, reason: str) -> None:
        """End the calls, as their client is gone."""
        calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            self._forget(call)
        self.bounds.unread(-self._unread)
        self._unread = 0
        self._server.left(self)

    def retire(self) -> None:
        """Tell the client to reconnect, in GOAWAY's two steps: calls begun before the first arrives are answered."""
        if not self._leaving:
            self._leaving = True
            self._say(self.http2.send_shutdown_notice)
            self._loop.call_later(HEARD_S, self.shut_down)

    def shut_down(self) -> None:
        """Accept no more calls; close after those in flight."""
        self._leaving = self._shut = True
        self._say(lambda: self.http2.send_goaway(ErrorCode.NO_ERROR))
        self._end_if_done()

    def _say(self, goaway: Callable[[], None]) -> None:
        if self.transport:
            try:
                goaway()
            except ngh2.NGH2Error as error:
                log.debug("GOAWAY not sent", extra={"error": str(error)})
            self.wake()

    def _end_if_done(self) -> None:
        if self._shut and not self._calls and self.transport:
            self.flush()
            self.close()

    def count(self, limit: str) -> None:
        """Count an application of a limit, by its name in the configuration."""
        self.bounds.count("grpc", limit)

    def flooded(self) -> None:
        """Count a flood: the connection is being closed."""
        self.count("floods")

    def end_for(self, limit: str) -> None:
        """Close the connection at once, because of a limit.

        A connection that was closed gracefully, but whose client does not read the rest, ends here.
        """
        if not self.closed_because:
            self.count(limit)
        self.abort(f"limits.{limit}")

    @property
    def unread(self) -> int:
        """Number of bytes that the client has not read."""
        return self._unread

    def sweep(self) -> None:
        """Enforce time limits; called periodically."""
        limits, now_s = self.limits, self.now_s()
        if not self._greeted:
            self._greeted = self._heard
            if not self._greeted and now_s - self._began_s > limits.request_headers_timeout_s:
                self.end_for("request_headers_timeout_s")
                return
        for call in [call for call in self._calls.values() if call.until_s]:
            if now_s > call.until_s:
                self.count("request_timeout_s")
                if call.is_over:
                    call.limit_rest(None)
                    self._stop_sending(call, waits=False)
                else:
                    words = "the request did not come within its time limit"
                    self.fail(call, MessageError(StatusCode.DEADLINE_EXCEEDED, words))
        if self._unread and now_s - self._taken_s > limits.write_timeout_s:
            self.end_for("write_timeout_s")
        elif not self._calls and now_s - self.idle_since_s > limits.idle_timeout_s:
            self.terminate(ErrorCode.NO_ERROR, "idle")
        elif limits.max_connection_age_s is not None and now_s - self._began_s > self._server.age_s(self):
            self.retire()

    # Of calls ----------------------------------------------------------------------------------------------------

    def answer(self, call: Http2Call, message: bytes) -> None:
        """End a call with a message."""
        try:
            self.http2.send_response(call.stream_id, RESPONSE_HEADERS)
            self.write(call.stream_id, message)
            self.http2.send_trailers(call.stream_id, OK_TRAILERS)
        except ngh2.NGH2Error as error:  # the client has left, and is about to be noticed
            log.debug("response not sent", extra={"stream": call.stream_id, "error": str(error)})
        self.wake()

    def begin(self, call: Http2Call) -> None:
        """Send the headers before the first message of a stream."""
        try:
            self.http2.send_response(call.stream_id, RESPONSE_HEADERS)
        except ngh2.NGH2Error as error:
            log.debug("headers not sent", extra={"stream": call.stream_id, "error": str(error)})

    def flush(self) -> None:
        """Send written data as far as the client reads it; count the rest, and enforce its limit."""
        super().flush()
        unread = self.unread_bytes if self.transport else 0
        if unread == self._unread:
            return
        if unread < self._unread or not self._unread:
            self._taken_s = self.now_s()
        self.bounds.unread(unread - self._unread)
        self._unread = unread
        if unread > self.bounds.max_response_buffer_bytes_per_connection and len(self._calls) > 1:
            self.end_for("max_response_buffer_bytes_per_connection")
        elif self.bounds.unread_bytes > self.bounds.max_response_buffer_bytes:
            self._server.end_largest()

    def end(self, call: Http2Call, trailers: Sequence[Header], *, is_first: bool) -> None:
        """End a call with a status.

        `is_first`: whether no message was sent before.
        """
        try:
            if is_first:
                self.http2.send_response(call.stream_id, trailers, end_stream=True)
            else:
                self.http2.send_trailers(call.stream_id, trailers)
        except ngh2.NGH2Error as error:
            log.debug("status not sent", extra={"stream": call.stream_id, "error": str(error)})
        self.wake(None if call.sent_all else lambda _: self._stop_sending(call))

    def deliver_soon(self, call: Http2Call) -> None:
        """Schedule the delivery of a message that may have arrived."""
        self._loop.call_soon(call.deliver)

    def _requested(self, event: RequestReceived) -> None:
        stream_id, opening = event.stream_id, self._opening
        if event.headers != opening.headers:
            opening = opening_of(event.headers)
            self._opening = opening if opening.is_small else CallHeaders()
        if opening.http_status:
            headers = ((b":status", opening.http_status), (b"content-length", b"0"))
            self.http2.send_response(stream_id, headers, end_stream=True)
            return
        call = self._calls[stream_id] = Http2Call(self, stream_id, opening)
        self._pings = 0
        if opening.error:
            call.end(*opening.error)
            return
        if opening.timeout_s is not None:
            call.expires_in(opening.timeout_s, self._loop)
        try:
            self._server.accept(call)
            call.open()
            if event.end_stream:
                call.add(b"", is_last=True)
        except Exception as error:  # one call's fault must not end the connection of all others
            self.fail(call, error)

    def _data(self, event: DataReceived) -> None:
        call = self._calls.get(event.stream_id)
        if call is None:
            self.acknowledge(event.stream_id, len(event.data))
            return
        try:
            call.add(event.data, is_last=event.end_stream)
        except Exception as error:  # one call's fault must not end the connection of all others
            self.fail(call, error)

    def fail(self, call: Http2Call, error: Exception) -> None:
        """Fail one call because its data is invalid or because of an internal error."""
        if isinstance(error, MessageError):
            if error.code is StatusCode.RESOURCE_EXHAUSTED and error.details != TOO_MUCH:
                self.count("max_message_bytes")
            call.end(error.code, error.details)
        else:
            faults.report("a call", error)
            call.end(StatusCode.INTERNAL, own_fault().details)
        call.leave()

    def break_off(self, call: Http2Call, error: Exception) -> None:
        """End a call after an internal error at its end, whatever was written."""
        faults.report("the end of a call", error)
        try:
            self.http2.reset_stream(call.stream_id, ErrorCode.INTERNAL_ERROR)
        except ngh2.NGH2Error as refused:
            log.debug("stream refused", extra={"stream": call.stream_id, "error": str(refused)})
        self.wake()

    def _forget(self, call: Http2Call) -> None:
        try:
            call.forget()
        except Exception as error:  # the other calls of the connection go on
            faults.report("the end of a call", error)

    def _stop_sending(self, call: Http2Call, *, waits: bool = True) -> None:
        """A call has its status, and its client may still be sending."""
        try:
            if waits and self.http2.queued_body_size(call.stream_id):
                call.limit_rest(self.limits.request_timeout_s)  # a reset would overtake what is still to be written
            else:
                self.http2.reset_stream(call.stream_id, ErrorCode.NO_ERROR)
        except ngh2.NGH2Error as error:
            log.debug("stream error", extra={"stream": call.stream_id, "error": str(error)})
        self.wake()

    def _reset(self, event: StreamReset) -> None:
        call = self._calls.get(event.stream_id)
        now_s = self.now_s()
        if call and call.deadline_s is not None and call.deadline_s - now_s < AT_ITS_DEADLINE_S:
            return  # a client that leaves at its deadline is no flood
        burst, per_s = RESET_LIMITS
        self._reset_credit = min(burst, self._reset_credit + (now_s - self._reset_s) * per_s) - 1
        self._reset_s = now_s
        if self._reset_credit < 0 and not self.closed_because:
            self.flooded()
            self.terminate(ErrorCode.ENHANCE_YOUR_CALM, "too many calls are begun and reset")

    def _settings_received(self, event: SettingsReceived) -> None:
        self._takes_headers = event.settings.get(Setting.MAX_HEADER_LIST_SIZE, self._takes_headers)

    def _pinged(self, _event: PingReceived) -> None:
        now_s = self.now_s()
        early = not self._calls and now_s - self._pinged_s < self.limits.min_ping_interval_s
        self._pings = self._pings + 1 if early else 0
        self._pinged_s = now_s
        if self._pings > MAX_PING_STRIKES and not self.closed_because:
            self.count("min_ping_interval_s")
            self.terminate(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")

    def _stream_closed(self, event: StreamClosed) -> None:
        call = self._calls.pop(event.stream_id, None)
        if call:
            self._forget(call)
            self.has_asked = True
            if not self._calls:
                self.idle_since_s = self.now_s()
                self._end_if_done()


def _peer_of(name: object) -> str:
    match name:
        case (str(host), int(port), *rest):
            return f"ipv6:[{host}]:{port}" if rest else f"ipv4:{host}:{port}"
        case _:
            return "unknown"


SWEEP_S: Final = 0.25
"""Interval in seconds at which time limits are enforced."""
POLL_S: Final = 0.01
LISTEN_BACKLOG: Final = 1024


class Http2Server:
    """gRPC server that passes every call to `accept`. Use it only in the event loop's thread."""

    def __init__(
        self,
        accept: Callable[[Http2Call], None],
        limits: LimitsConfig,
        bounds: ClientBounds,
        *,
        reuse_port: bool = False,
    ) -> None:
        """Create the HTTP/2 server. `bounds` counts what is received and sent.

        `accept`: called with each new call. `reuse_port`: other processes may listen on the port.
        """
        self.accept = accept
        self.limits = limits
        self.bounds = bounds
        self._reuse_port = reuse_port
        self._loop = asyncio.get_running_loop()
        self._connections: dict[ServerConnection, float] = {}
        """Each with the share of `max_connection_age_s` that it gets, so that not all of them end at once."""
        self._listener: asyncio.Server | None = None
        self._sweeping: asyncio.TimerHandle | None = None
        self._stopping = False

    async def listen(self, address: str, tls: ServerTls | None = None) -> int:
        """Bind HOST:PORT and serve; return the port. Raises OSError if it cannot be bound, and TlsError."""
        try:
            await self._serve(
                tls, host=host_of(address).strip("[]"), port=port_of(address), reuse_port=self._reuse_port
            )
        except OSError as error:
            raise listen_error(address, error) from error
        assert self._listener is not None, "it was just made"
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def listen_on(self, port: socket.socket, tls: ServerTls | None = None) -> None:
        """Serve on a bound socket; other processes may listen on it too. Raises OSError and TlsError."""
        await self._serve(tls, sock=port)

    async def _serve(self, tls: ServerTls | None, **where: Any) -> None:  # noqa: ANN401 - as create_server has it
        context = server_context(tls, ALPN_PROTOCOLS) if tls else None
        self._listener = await self._loop.create_server(
            lambda: ServerConnection(self),
            ssl=context,
            ssl_handshake_timeout=self.limits.request_headers_timeout_s if context else None,
            backlog=LISTEN_BACKLOG,
            **where,
        )
        self._sweeping = self._loop.call_later(SWEEP_S, self._sweep)

    @property
    def is_listening(self) -> bool:
        """Whether new clients are accepted."""
        return self._listener is not None and self._listener.is_serving()

    def close_port(self) -> None:
        """Accept no new clients; connected ones are served."""
        if self._listener:
            self._listener.close()

    async def retire(self, within_s: float) -> None:
        """Tell clients to reconnect; return when they had time to receive that.

        Those that stay, or come, are served.
        """
        leaving = list(self._connections)
        for connection in leaving:
            connection.retire()
        until_s = self._loop.time() + min(HEARD_S, within_s)
        while any(one in self._connections for one in leaving) and self._loop.time() < until_s:
            await asyncio.sleep(POLL_S)

    async def stop(self, grace_s: float) -> bool:
        """Accept no more calls, cut off those in flight after `grace_s`; return whether all had ended before."""
        self._stopping = True
        if self._listener:
            self._listener.close()
        for connection in self._connections:
            connection.shut_down()
        until_s = self._loop.time() + grace_s
        while self.open_calls and self._loop.time() < until_s:
            await asyncio.sleep(POLL_S)
        drained = not self.open_calls
        for connection in list(self._connections):
            connection.flush()
            if not drained:
                connection.abort("Tidegate is shutting down")
            else:
                connection.close()
        if self._sweeping:
            self._sweeping.cancel()
        return drained

    @property
    def open_calls(self) -> int:
        """Number of calls that have not ended."""
        return sum(connection.open_calls for connection in self._connections)

    # For its connections -----------------------------------------------------------------------------------------

    def admits(self, connection: ServerConnection) -> bool:
        """Return whether another connection is accepted, if necessary instead of an idle one; count it."""
        if self._stopping:
            return False
        if len(self._connections) >= self.limits.max_connections:
            hosts = Counter(other.host for other in self._connections)
            idle = [other for other in self._connections if not other.is_busy]
            replaceable = makes_room(lambda: idle, hosts, connection.host)
            ended = min(replaceable, key=lambda other: (other.has_asked, other.idle_since_s), default=None)
            if ended is None:
                self.bounds.count("grpc", "max_connections")
                return False
            ended.end_for("max_connections")
        self._connections[connection] = random.uniform(0.9, 1.1)
        self.bounds.connections["grpc"] = len(self._connections)
        return True

    def left(self, connection: ServerConnection) -> None:
        """Remove a connection."""
        self._connections.pop(connection, None)
        self.bounds.connections["grpc"] = len(self._connections)

    def age_s(self, connection: ServerConnection) -> float:
        """Return the largest age of a connection, in seconds."""
        return (self.limits.max_connection_age_s or 0.0) * self._connections.get(connection, 1.0)

    def end_largest(self) -> None:
        """Close the connection with the most unread data, because the total limit is reached."""
        max(self._connections, key=lambda connection: connection.unread).end_for("max_response_buffer_bytes")

    def _sweep(self) -> None:
        for connection in list(self._connections):
            connection.sweep()
        self._sweeping = self._loop.call_later(SWEEP_S, self._sweep)
