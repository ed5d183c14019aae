"""One client's connection: its calls, and what it may cost."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import ngh2
from grpc import StatusCode
from ngh2.enums import ErrorCode, Setting
from ngh2.events import DataReceived, PingReceived, RequestReceived, SettingsReceived, StreamClosed, StreamReset

from tidegate_proxy.base.faults import faults
from tidegate_proxy.base.outcome import own_fault
from tidegate_proxy.configuration.limits import LimitsConfig
from tidegate_proxy.transport.client_bounds import TOO_MUCH, Bounds
from tidegate_proxy.transport.http2.call import HEADERS, OK, Call
from tidegate_proxy.transport.http2.connection import Connection, configuration
from tidegate_proxy.transport.http2.inflation import MessageError
from tidegate_proxy.transport.http2.metadata import Header
from tidegate_proxy.transport.http2.opening import Opening, opening_of

log = logging.getLogger(__name__)

HEADER_BYTES: Final = 1 << 16
"""The most bytes of one request's headers, decoded."""
LONGEST_DETAILS: Final = 1 << 14
SHORTEST_DETAILS: Final = 1 << 8
BESIDE_DETAILS: Final = 1 << 9
"""The bytes of a client's limit that are for the other headers that come with a status."""
KEEPALIVE_TIMEOUT_S: Final = 20.0
RESETS: Final = (2000, 200)
"""Calls that a connection may begin and reset before their deadlines: at once, and per second."""
RESETS_IN_ALL: Final = (50_000, 5_000)
"""Calls that it may reset at all, at once and per second: what one process answers, so that those who leave at their
deadlines when all is late are no flood. libnghttp2's own default, 1000 and 33, would end their connections."""
AT_ITS_DEADLINE_S: Final = 0.1
HEARD_S: Final = 1.0
"""After so long a client has heard that it is to go elsewhere, however far away it is."""
PINGS: Final = 2
"""That may come too early in a row, as with gRPC's own core."""


class Listener(Protocol):
    """Who takes connections, and the calls that come over them."""

    limits: LimitsConfig
    bounds: Bounds
    accept: Callable[[Call], None]

    def admits(self, connection: "ServerConnection") -> bool:
        """Whether there is room for one more connection."""

    def left(self, connection: "ServerConnection") -> None:
        """A connection is no more."""

    def age_s(self, connection: "ServerConnection") -> float:
        """How old a connection may get."""

    def end_largest(self) -> None:
        """All connections together have too much that is not read."""


class ServerConnection(Connection):
    """One client's connection."""

    def __init__(self, server: Listener) -> None:
        limits = server.limits
        super().__init__(
            ngh2.Role.SERVER,
            # libnghttp2 cannot tell who resets at its deadline from who floods: its limit is the outer one.
            configuration(max_inbound_header_list_size=HEADER_BYTES, stream_reset_rate_limit=RESETS_IN_ALL),
            {Setting.MAX_CONCURRENT_STREAMS: limits.max_streams, Setting.MAX_HEADER_LIST_SIZE: HEADER_BYTES},
        )
        self.limits = limits
        self.bounds = server.bounds
        self.now_s = self._loop.time
        self.peer = ""
        self._server = server
        self._calls: dict[int, Call] = {}
        self._reset_credit = float(RESETS[0])
        self._began_s = self._reset_s = self.idle_since_s = self._taken_s = self.now_s()
        self.has_asked = False
        """Whether a call of it has ended."""
        self._opening = Opening()
        """The headers of its latest call."""
        self._greeted = False
        """Whether it has said anything."""
        self._unread = 0
        """Bytes that it has not taken, as they were counted last."""
        self._leaving = False
        """Whether its client was told to go elsewhere."""
        self._shut = False
        """Whether it takes no more calls."""
        self._takes_headers = LONGEST_DETAILS
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
            SettingsReceived: self._told,
        }

    @property
    def is_busy(self) -> bool:
        """Whether calls are under way."""
        return bool(self._calls)

    @property
    def host(self) -> str:
        """The address that it comes from, without the port."""
        return self.peer.rpartition(":")[0]

    @property
    def most_details(self) -> int:
        """How long a status's details may be for its client to take them: gRPC's own refuse more, and the status.

        They begin to refuse, some of them, at half of what they say.
        """
        return max(SHORTEST_DETAILS, min(self._takes_headers, LONGEST_DETAILS) // 2 - BESIDE_DETAILS)

    @property
    def open_calls(self) -> int:
        """Calls that have not ended."""
        return len(self._calls)

    def opened(self, transport: asyncio.Transport) -> None:
        """Speak, unless there are too many already."""
        self.peer = _peer_of(transport.get_extra_info("peername"))
        if not self._server.admits(self):
            transport.abort()
            return
        super().opened(transport)
        self.keep_alive(self.limits.keepalive_s, KEEPALIVE_TIMEOUT_S)

    def lost(self, reason: str) -> None:
        """Nobody waits for an answer any more."""
        calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            self._forget(call)
        self.bounds.unread(-self._unread)
        self._unread = 0
        self._server.left(self)

    def retire(self) -> None:
        """Have its client go elsewhere, in GOAWAY's two steps: what it began before it heard the first is answered."""
        if not self._leaving:
            self._leaving = True
            self._say(self.http2.send_shutdown_notice)
            self._loop.call_later(HEARD_S, self.shut_down)

    def shut_down(self) -> None:
        """Take no more calls; when those under way have ended, so does the connection."""
        self._leaving = self._shut = True
        self._say(lambda: self.http2.send_goaway(ErrorCode.NO_ERROR))
        self._end_if_done()

    def _say(self, goaway: Callable[[], None]) -> None:
        if self.transport:
            try:
                goaway()
            except ngh2.NGH2Error as error:
                log.debug("no GOAWAY could be sent: %s", error)
            self.wake()

    def _end_if_done(self) -> None:
        if self._shut and not self._calls and self.transport:
            self.flush()
            self.transport.close()

    def count(self, limit: str) -> None:
        """A limit, by its name in the configuration, has ended or refused something."""
        self.bounds.count("grpc", limit)

    def flooded(self) -> None:
        """Count it: the connection is being ended."""
        self.count("floods")

    def end_for(self, limit: str) -> None:
        """End the connection at once: a limit asks for it.

        One that was ended gently, and takes nothing of what is left for it, comes to its end here.
        """
        if not self.closed_because:
            self.count(limit)
        self.abort(f"limits.{limit}")

    @property
    def unread(self) -> int:
        """Bytes that its client has not taken."""
        return self._unread

    def sweep(self) -> None:
        """Now and then: end what takes too long."""
        limits, now_s = self.limits, self.now_s()
        if not self._greeted:
            self._greeted = self._heard
            if not self._greeted and now_s - self._began_s > limits.head_timeout_s:
                self.end_for("head_timeout_s")
                return
        for call in [call for call in self._calls.values() if call.until_s]:
            if now_s > call.until_s:
                self.count("body_timeout_s")
                if call.is_over:
                    call.until_s = 0.0
                    self._stop_sending(call, waits=False)
                else:
                    words = "the request did not come within its time limit"
                    self.fail(call, MessageError(StatusCode.DEADLINE_EXCEEDED, words))
        if self._unread and now_s - self._taken_s > limits.send_timeout_s:
            self.end_for("send_timeout_s")
        elif not self._calls and now_s - self.idle_since_s > limits.idle_timeout_s:
            self.terminate(ErrorCode.NO_ERROR, "idle")
        elif limits.max_connection_age_s is not None and now_s - self._began_s > self._server.age_s(self):
            self.retire()

    # Of calls ----------------------------------------------------------------------------------------------------

    def answer(self, call: Call, message: bytes) -> None:
        """End a call with a message."""
        try:
            self.http2.send_response(call.stream_id, HEADERS)
            self.write(call.stream_id, message)
            self.http2.send_trailers(call.stream_id, OK)
        except ngh2.NGH2Error as error:  # the client has left, and is about to be noticed
            log.debug("no answer on stream %d: %s", call.stream_id, error)
        self.wake()

    def begin(self, call: Call) -> None:
        """Send the headers that come before the first message of a stream."""
        try:
            self.http2.send_response(call.stream_id, HEADERS)
        except ngh2.NGH2Error as error:
            log.debug("no headers on stream %d: %s", call.stream_id, error)

    def flush(self) -> None:
        """Send what was written, as far as it is read; what is not read is counted, and may be too much."""
        super().flush()
        unread = self.unread_bytes if self.transport else 0
        if unread == self._unread:
            return
        if unread < self._unread or not self._unread:
            self._taken_s = self.now_s()
        self.bounds.unread(unread - self._unread)
        self._unread = unread
        if unread > self.bounds.max_unread_bytes_per_connection and len(self._calls) > 1:
            self.end_for("max_unread_bytes_per_connection")
        elif self.bounds.unread_bytes > self.bounds.max_unread_bytes:
            self._server.end_largest()

    def end(self, call: Call, trailers: Sequence[Header], *, is_first: bool) -> None:
        """End a call with a status."""
        try:
            if is_first:
                self.http2.send_response(call.stream_id, trailers, end_stream=True)
            else:
                self.http2.send_trailers(call.stream_id, trailers)
        except ngh2.NGH2Error as error:
            log.debug("no status on stream %d: %s", call.stream_id, error)
        self.wake(None if call.sent_all else lambda _: self._stop_sending(call))

    def deliver_soon(self, call: Call) -> None:
        """A message is asked for that may have come."""
        self._loop.call_soon(call.deliver)

    def _requested(self, event: RequestReceived) -> None:
        stream_id, opening = event.stream_id, self._opening
        if event.headers != opening.headers:
            opening = opening_of(event.headers)
            self._opening = opening if opening.is_small else Opening()
        if opening.http_status:
            headers = ((b":status", opening.http_status), (b"content-length", b"0"))
            self.http2.send_response(stream_id, headers, end_stream=True)
            return
        call = self._calls[stream_id] = Call(self, stream_id, opening)
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

    def fail(self, call: Call, error: Exception) -> None:
        """What came cannot be taken, or a fault of ours met it: end the call alone."""
        if isinstance(error, MessageError):
            if error.code is StatusCode.RESOURCE_EXHAUSTED and error.details != TOO_MUCH:
                self.count("max_message_bytes")
            call.end(error.code, error.details)
        else:
            faults.report("a call", error)
            call.end(StatusCode.INTERNAL, own_fault().details)
        call.leave()

    def break_off(self, call: Call, error: Exception) -> None:
        """A fault of ours met the end of a call: its client is told that there is no more, whatever was written."""
        faults.report("the end of a call", error)
        try:
            self.http2.reset_stream(call.stream_id, ErrorCode.INTERNAL_ERROR)
        except ngh2.NGH2Error as refused:
            log.debug("stream %d: %s", call.stream_id, refused)
        self.wake()

    def _forget(self, call: Call) -> None:
        try:
            call.forget()
        except Exception as error:  # the other calls of the connection go on
            faults.report("the end of a call", error)

    def _stop_sending(self, call: Call, *, waits: bool = True) -> None:
        """A call has its status, and its client may still be sending."""
        try:
            if waits and self.http2.queued_body_size(call.stream_id):
                call.until_s = (
                    self.now_s() + self.limits.body_timeout_s
                )  # a reset would overtake what is still to be written
            else:
                self.http2.reset_stream(call.stream_id, ErrorCode.NO_ERROR)
        except ngh2.NGH2Error as error:
            log.debug("stream %d: %s", call.stream_id, error)
        self.wake()

    def _reset(self, event: StreamReset) -> None:
        call = self._calls.get(event.stream_id)
        now_s = self.now_s()
        if call and call.deadline_s is not None and call.deadline_s - now_s < AT_ITS_DEADLINE_S:
            return  # who leaves at its deadline floods nobody
        burst, per_s = RESETS
        self._reset_credit = min(burst, self._reset_credit + (now_s - self._reset_s) * per_s) - 1
        self._reset_s = now_s
        if self._reset_credit < 0 and not self.closed_because:
            self.flooded()
            self.terminate(ErrorCode.ENHANCE_YOUR_CALM, "too many calls are begun and reset")

    def _told(self, event: SettingsReceived) -> None:
        self._takes_headers = event.settings.get(Setting.MAX_HEADER_LIST_SIZE, self._takes_headers)

    def _pinged(self, _event: PingReceived) -> None:
        now_s = self.now_s()
        early = not self._calls and now_s - self._pinged_s < self.limits.min_ping_interval_s
        self._pings = self._pings + 1 if early else 0
        self._pinged_s = now_s
        if self._pings > PINGS and not self.closed_because:
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
