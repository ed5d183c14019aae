"""One connection to a server: its calls."""

import asyncio
import logging
from typing import Final, Protocol

import ngh2
from grpc import StatusCode
from ngh2.enums import ErrorCode, Setting
from ngh2.events import DataReceived, GoAwayReceived, ResponseReceived, StreamClosed, StreamReset, TrailersReceived

from tidegate_proxy.base.faults import faults
from tidegate_proxy.transport.http2.client_call import PendingCall
from tidegate_proxy.transport.http2.connection import Connection, configuration
from tidegate_proxy.transport.http2.header_blocks import HeaderBlocks
from tidegate_proxy.transport.http2.inflation import MessageError, is_known
from tidegate_proxy.transport.http2.metadata import unquoted
from tidegate_proxy.transport.http2.status import CODES, code_of_http, code_of_reset, name_of

log = logging.getLogger(__name__)

KEEPALIVE_TIMEOUT_S: Final = 20.0
STREAMS_PER_CONNECTION: Final = 1 << 29
"""Then another connection takes over: the numbers of a connection's streams come to an end at 2^31, every other one."""


class Caller(Protocol):
    """Who makes connections, and calls over them."""

    keepalive_s: float | None

    def again(self, call: PendingCall) -> None:
        """Send a call that no server has seen."""

    def left(self, connection: "ClientConnection") -> None:
        """A connection takes no more calls."""

    def freed(self, connection: "ClientConnection") -> None:
        """A connection takes calls."""


class ClientConnection(Connection):
    """One connection to the server."""

    def __init__(self, channel: Caller) -> None:
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
        """Whether calls are under way."""
        return bool(self.calls)

    @property
    def takes_calls(self) -> bool:
        """Whether another call may be begun now."""
        return self.is_open and self.http2.can_send_request

    def opened(self, transport: asyncio.Transport) -> None:
        """Speak."""
        super().opened(transport)
        self.is_open = True
        if self._channel.keepalive_s:
            self.keep_alive(self._channel.keepalive_s, KEEPALIVE_TIMEOUT_S)

    def take_in(self, data: memoryview) -> None:
        """Have what was read understood: one call's long error must not end the connection of all others."""
        self.http2.receive_data(self._header_blocks.shortened(data))

    def lost(self, reason: str) -> None:
        """Calls under way end with UNAVAILABLE."""
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
        """Say that a stream's messages are all sent."""
        try:
            self.http2.end_stream(stream_id)
        except ngh2.NGH2Error as error:
            log.debug("stream %d: %s", stream_id, error)
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
