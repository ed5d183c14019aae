"""HTTP/2 connection in the event loop: common part of the server and client sides.

Data written while an event is handled, or by the responses of one batch, leaves in one write.
"""

import asyncio
import logging
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

import ngh2
from ngh2.enums import ErrorCode, Setting
from ngh2.events import ConnectionClosed, Event, PingAcknowledged, RequestReceived

from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.transport.http2.headers import name_of
from tidegate_proxy.transport.http2.message import JOINED_UP_TO, prefix
from tidegate_proxy.transport.tls import close_once

log = logging.getLogger(__name__)

ALPN_PROTOCOLS: Final = ("h2",)
"""ALPN protocols of both sides."""
READ_BYTES: Final = 1 << 18
"""Largest number of bytes read at once."""
WRITE_BYTES: Final = 1 << 15
"""Largest number of bytes taken from libnghttp2 at once; larger ones are allocated from fresh pages each time."""
CONNECTION_WINDOW: Final = 64 << 20
STREAM_WINDOW: Final = 4 << 20
FRAME_BYTES: Final = 1 << 16
"""Largest frame in bytes that is accepted; `ngh2` collects each frame in a buffer that grows."""
CALLS_PER_TURN: Final = 32
"""Calls that one connection may begin before others are served; hundreds may arrive in one read."""
AHEAD_BYTES: Final = 1 << 18
"""Bytes of a stream that may wait for its reader before the next message is held back."""


class _Shared(threading.local):
    """State that the connections of one event loop share."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(READ_BYTES))
        """Receive buffer; emptied before another connection reads."""
        self.woken: list[Http2Connection] | None = None
        """Connections that what was read has given something to send; None: nothing is being taken in."""


_shared: Final = _Shared()


class Http2Connection(asyncio.BufferedProtocol):
    """Driver of one `ngh2.Connection`. Use all methods only in the event loop's thread."""

    def __init__(self, role: ngh2.Role, config: ngh2.Configuration, settings: dict[int, int]) -> None:
        """Create the HTTP/2 connection. `settings`: those of HTTP/2 beyond the window sizes."""
        self.http2 = ngh2.Connection(role, config)
        self._shared = _shared
        self._settings = {
            Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            Setting.MAX_FRAME_SIZE: FRAME_BYTES,
            **settings,
        }
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.ended = asyncio.Event()
        """Event that is set when the connection is lost."""
        self._awake = False
        """Whether a flush is to come."""
        self._paused = False
        """Whether the peer reads too slowly."""
        self._flushed: list[Callable[[None], None]] = []
        """Called once what was written is on its way."""
        self._senders: list[tuple[int, Callable[[None], None]]] = []
        """Streams that wait for their readers before they send more."""
        self._taken: dict[int, int] = {}
        """Bytes that came and were taken since the last flush, by stream."""
        self._keepalive: asyncio.TimerHandle | None = None
        self._ping_due: asyncio.TimerHandle | None = None
        self._heard = False
        """Whether anything came since the last look."""
        self.closed_because = ""
        """Reason why this side closed the connection; "" if it did not."""
        self._events: deque[Event] = deque()
        """Events of the connection that were not handled yet; no more is read until they are."""
        self.handlers: dict[type[Event], Callable[[Any], None]] = {
            PingAcknowledged: self._answered,
            ConnectionClosed: self._closed,
        }
        """Handlers by event type; other events are ignored."""

    # What a side adds --------------------------------------------------------------------------------------------

    @abstractmethod
    def lost(self, reason: str) -> None:
        """Handle the loss of the connection."""

    def flooded(self) -> None:
        """Handle a flood: the peer has sent too many useless frames, and the connection is being closed."""
        log.warning("too many empty frames, connection closed", extra={"connection": type(self).__name__})

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether calls are in flight."""

    # asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio when connected; an internal error closes the connection."""
        try:
            self.opened(cast("asyncio.Transport", transport))
        except Exception as error:
            faults.report("a new connection", error)
            cast("asyncio.Transport", transport).abort()

    def opened(self, transport: asyncio.Transport) -> None:
        """Start HTTP/2."""
        self.transport = transport
        self.http2.initiate_connection(self._settings)
        self.http2.set_local_window_size(CONNECTION_WINDOW)
        self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer to read into."""
        return self._shared.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes that were read; send the results on any connection."""
        self._awake = self._heard = True
        woken: list[Http2Connection] = []
        self._shared.woken = woken
        try:
            self._answer_what_was_read(nbytes)
        finally:
            for connection in woken:
                connection.flush_safely()
            self._shared.woken = None

    def _answer_what_was_read(self, nbytes: int) -> None:
        try:
            self.take_in(self._shared.buffer[:nbytes])
            self._dispatch()
        except ngh2.DenialOfServiceError as error:
            self.flooded()
            self.abort(str(error))
        except ngh2.NGH2Error as error:
            self.flush()  # GOAWAY says to the peer what was wrong
            self.abort(str(error))
        else:
            self.flush()

    def take_in(self, data: memoryview) -> None:
        """Process received bytes. Raises ngh2.NGH2Error."""
        self.http2.receive_data(data)

    def eof_received(self) -> bool:
        """Close the connection, as the peer sends no more."""
        return False

    def pause_writing(self) -> None:
        """Called by asyncio when the write buffer is full: leave data to HTTP/2's flow control."""
        self._paused = True

    def resume_writing(self) -> None:
        """Called by asyncio when the write buffer has drained: continue writing."""
        self._paused = False
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the calls in flight."""
        self.transport = None
        self.ended.set()
        for handle in (self._keepalive, self._ping_due):
            if handle:
                handle.cancel()
        self._flushed.clear()
        self._senders.clear()
        self._events.clear()
        self.lost(self.closed_because or (str(exc) if exc else "Socket closed"))

    def acknowledge(self, stream_id: int, amount: int) -> None:
        """Acknowledge data received on a stream: the peer may send as much again after the next flush."""
        if amount:
            self._taken[stream_id] = self._taken.get(stream_id, 0) + amount
            self.wake()

    def _acknowledge_all(self) -> None:
        taken, self._taken = self._taken, {}
        for stream_id, amount in taken.items():
            try:
                self.http2.acknowledge_received_data(amount, stream_id)
            except ngh2.NGH2Error as error:
                log.debug("stream error", extra={"stream": stream_id, "error": str(error)})

    # Writing -----------------------------------------------------------------------------------------------------

    def wake(self, then: Callable[[None], None] | None = None) -> None:
        """Schedule a flush, once for all data written meanwhile; `then` is called at that time."""
        if then:
            self._flushed.append(then)
        if not self._awake:
            self._awake = True
            if (woken := self._shared.woken) is None:
                self._loop.call_soon(self.flush)
            else:
                woken.append(self)

    def send(
        self, stream_id: int, message: bytes, then: Callable[[None], None] | None = None, *, is_last: bool = False
    ) -> None:
        """Send a message; `then` is called when the stream's reader is ready for more.

        `is_last`: it is the last one.
        """
        try:
            self.write(stream_id, message, is_last=is_last)
        except ngh2.NGH2Error as error:  # the peer has left, and is about to be noticed
            log.debug("message not sent", extra={"stream": stream_id, "error": str(error)})
            return
        if then:
            self._senders.append((stream_id, then))
        self.wake()

    def write(self, stream_id: int, message: bytes, *, is_last: bool = False) -> None:
        """Write a message, to be sent with the next flush. Raises ngh2.NGH2Error.

        `is_last`: whether the stream ends with it.
        """
        if len(message) <= JOINED_UP_TO:
            self.http2.send_data(stream_id, prefix(len(message)) + message, end_stream=is_last)
        else:
            self.http2.send_data(stream_id, prefix(len(message)))
            self.http2.send_data(stream_id, message, end_stream=is_last)

    def push(self) -> None:
        """Send written data now, before the rest of the current event is handled."""
        transport = self.transport
        if transport is None:
            return
        try:
            self._write_out(transport)
        except ngh2.NGH2Error as error:
            self.abort(str(error))

    def _write_out(self, transport: asyncio.Transport) -> None:
        while not self._paused and self.http2.want_write and (data := self.http2.data_to_send(WRITE_BYTES)):
            transport.write(data)

    def flush_safely(self) -> None:
        """Flush; an error closes only this connection."""
        try:
            self.flush()
        except Exception as error:
            faults.report("sending what was written", error)
            self.abort("a fault of Tidegate's own")

    def flush(self) -> None:
        """Send written data, as far as the peer reads it."""
        self._awake = False
        transport = self.transport
        if transport is None:
            return
        try:
            if self._taken:
                self._acknowledge_all()
            self._write_out(transport)
            self._dispatch()  # streams that were closed by what was sent
        except ngh2.NGH2Error as error:
            self.abort(str(error))
            return
        if not self._paused:
            if self._flushed:
                flushed, self._flushed = self._flushed, []
                for then in flushed:
                    _call_back(then)
            if self._senders:
                self._let_go_on()
        if not self.http2.want_read and not self.http2.want_write:
            self.close()

    def _let_go_on(self) -> None:
        senders, self._senders = self._senders, []
        for stream_id, then in senders:
            if self.http2.queued_body_size(stream_id) > AHEAD_BYTES:
                self._senders.append((stream_id, then))
            else:
                _call_back(then)

    def _dispatch(self) -> None:
        """Handle what came, unless what came before still waits; the rest of what is much waits for the next turn."""
        waits, events, handlers = bool(self._events), self._events, self.handlers
        events.extend([event for event in self.http2.events() if type(event) in handlers])
        if events and not waits:
            self._handle_some()

    def _handle_some(self) -> None:
        """Handle the events of one turn."""
        events, handlers, calls = self._events, self.handlers, 0
        while events and calls < CALLS_PER_TURN:
            event = events.popleft()
            calls += type(event) is RequestReceived
            handlers[type(event)](event)
        if events and self.transport:
            self.transport.pause_reading()
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Have another turn."""
        if self.transport is None:
            return
        self._awake = True
        try:
            self._handle_some()
        except Exception as error:
            faults.report("what came over a connection", error)
            self.abort("a fault of Tidegate's own")
            return
        if not self._events:
            self.transport.resume_reading()
        self.flush_safely()

    @property
    def unread_bytes(self) -> int:
        """Bytes that were written and not read by the peer."""
        return self.http2.queued_body_size() + (self.transport.get_write_buffer_size() if self.transport else 0)

    def close(self) -> None:
        """Close the connection once written bytes are sent."""
        if self.transport:
            close_once(self.transport)

    def abort(self, reason: str) -> None:
        """End the connection at once."""
        self.closed_because = self.closed_because or reason
        if self.transport:
            self.transport.abort()

    def terminate(self, error_code: ErrorCode, reason: str) -> None:
        """Close the connection with GOAWAY, which carries the reason."""
        self.closed_because = self.closed_because or reason
        try:
            self.http2.send_goaway(error_code, debug_data=reason.encode()[:256])
        except ngh2.NGH2Error as error:
            log.debug("GOAWAY not sent", extra={"error": str(error)})
        self.flush()
        self.close()

    # Keepalive ---------------------------------------------------------------------------------------------------

    def keep_alive(self, every_s: float, timeout_s: float) -> None:
        """Ping a peer that is silent while calls are in flight, from now on; close if it stays silent."""
        self._keepalive = self._loop.call_later(every_s, self._look, every_s, timeout_s)

    def _look(self, every_s: float, timeout_s: float) -> None:
        if not self._heard and self.is_busy and self._ping_due is None:
            self.http2.ping(b"tidegate")
            self.wake()
            self._ping_due = self._loop.call_later(timeout_s, self._unanswered)
        self._heard = False
        self._keepalive = self._loop.call_later(every_s, self._look, every_s, timeout_s)

    def _unanswered(self) -> None:
        self._ping_due = None
        if not self._heard:
            self.abort("keepalive ping was not answered")

    def _answered(self, _event: PingAcknowledged) -> None:
        if self._ping_due:
            self._ping_due.cancel()
            self._ping_due = None

    def _closed(self, event: ConnectionClosed) -> None:
        if event.error_code == ErrorCode.ENHANCE_YOUR_CALM and not self.closed_because:
            self.flooded()  # as libnghttp2 sees it
        words = event.debug_data.decode("utf-8", "replace")
        self.closed_because = self.closed_because or words or f"HTTP/2: {name_of(event.error_code)}"


def _call_back(then: Callable[[None], None]) -> None:
    try:
        then(None)
    except Exception as error:  # one call's fault must not end the connection of all others
        faults.report("what waited for a message to be sent", error)


def configuration(**options: Any) -> ngh2.Configuration:  # noqa: ANN401 - ngh2's own names and types
    """Return the configuration of a connection whose windows grow as messages are read, not as bytes arrive."""
    return ngh2.Configuration(auto_window_update=False, **options)
