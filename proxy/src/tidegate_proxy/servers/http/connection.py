"""HTTP connections: the transport of responses, one connection, and all of them with eviction of idle ones."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterator
from itertools import chain
from typing import Final

import httptools
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.servers.http.exchange import HttpExchange
from tidegate_proxy.servers.http.infer_response import error
from tidegate_proxy.servers.http.interface import NAMES_EXTENSION, Application, HttpLimits, Receive, Scope, Send
from tidegate_proxy.servers.http.routes import NoNormalForm, normal_form
from tidegate_proxy.transport.client_bounds import TOO_MUCH, ClientBounds, Served, makes_room
from tidegate_proxy.transport.tls import close_once

log = logging.getLogger(__name__)


_MAX_EARLY_BYTES: Final = len(b"HTTP/1.1 ")
_FIRST_PAUSE_S: Final = 0.02
"""Between the first two bytes that are sent early; each pause is twice the one before."""


class AnswerTransport:
    """Transport of a response in the client's HTTP version, which may send bytes before there is a response."""

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        self._transport = transport
        self._cycle = cycle
        self._version = b"HTTP/%b " % cycle.scope["http_version"].encode()
        self._in_head = not cycle.response_started
        self._early_bytes = 0

    def send_early(self) -> float:
        """Send one byte that any response can begin with; return the seconds until the next one, 0 if there is none.

        A head begins with the version, and the length of a chunk may begin with zeros (RFC 9112, section 7.1).
        """
        if self._early_bytes == _MAX_EARLY_BYTES or not (self._in_head or self._cycle.chunked_encoding):
            return 0.0
        self._transport.write(self._version[self._early_bytes :][:1] if self._in_head else b"0")
        self._early_bytes += 1
        return _FIRST_PAUSE_S * 2.0 ** (self._early_bytes - 1)

    def write(self, data: bytes) -> None:
        """Write data; the first is the head."""
        if self._in_head:
            self._in_head = False
            line, _, rest = data.partition(b"\r\n")
            if self._version == b"HTTP/1.0 " and self._cycle.keep_alive:
                rest = b"connection: keep-alive\r\n" + rest
            data = (self._version + line.partition(b" ")[2])[self._early_bytes :] + b"\r\n" + rest
        self._transport.write(data)

    def close(self) -> None:
        """Close the connection after pending writes."""
        close_once(self._transport)

    def is_closing(self) -> bool:
        """Return whether it is closed, or about to be."""
        return self._transport.is_closing()


def transport_of(cycle: RequestResponseCycle) -> AnswerTransport:
    """Replace the server library's transport of a response, and return the new one."""
    if not isinstance(cycle.transport, AnswerTransport):
        cycle.transport = AnswerTransport(cycle.transport, cycle)  # type: ignore[assignment]
    return cycle.transport  # type: ignore[return-value]


SWEEP_S: Final = 0.25
RESERVED_CONNECTIONS: Final = 16
"""Connections beyond the limit that are accepted for health requests only, if none can be evicted."""
PROGRESS_BYTES: Final = 1 << 16
"""Bytes of progress within which a reader is not considered stuck."""


class HttpConnections:
    """HTTP connections of one event loop, in tables ordered by time: the oldest entry comes first."""

    def __init__(self, limits: HttpLimits, bounds: ClientBounds, served: Served) -> None:
        self._limits = limits
        self._bounds = bounds
        self._served: Served = served
        self._held: Counter[HttpConnection] = Counter()
        """The bytes that count as in flight, beside bodies: of requests and heads, by connection."""
        self._open: dict[HttpConnection, None] = {}
        self._hosts: Counter[str] = Counter()
        """How many of those come from where."""
        self._new: dict[HttpConnection, float] = {}
        """The connections that have asked for nothing, and since when, by the loop's clock; as below."""
        self._idle: dict[HttpConnection, float] = {}
        self._heads: dict[HttpConnection, float] = {}
        self._bodies: dict[HttpConnection, float] = {}
        self._unread: dict[HttpConnection, tuple[float, int]] = {}
        """And how much it had not taken then."""
        self.retiring = False
        """Whether the server is about to stop: every connection ends with its next response."""
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(SWEEP_S, self._sweep)
        bounds.connections[served] = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> "Iterator[HttpConnection]":
        return iter(list(self._open))

    def retire(self) -> None:
        """Close every connection after its next response, because the server is about to stop."""
        self.retiring = True
        for connection in self:
            connection.retire()

    def close(self) -> None:
        """Stop enforcing timeouts."""
        self._timer.cancel()

    def opened(self, connection: "HttpConnection") -> bool:
        """Add a connection and return whether it may send any request; otherwise health requests only, or it was
        closed."""
        if len(self._open) >= self._limits.connections:
            self._bounds.count(self._served, "max_connections")
            while len(self._open) >= self._limits.connections and self._make_room(connection.host):
                pass
        full = len(self._open) >= self._limits.connections
        self._open[connection] = None
        self._hosts[connection.host] += 1
        self._new[connection] = self._loop.time()
        self._bounds.connections[self._served] = len(self._open)
        if len(self._open) > self._limits.connections + RESERVED_CONNECTIONS:
            self._end(connection)
        return not full

    def take(self, connection: "HttpConnection", size: int) -> bool:
        """Count bytes held for a connection; return False, and count nothing, if a limit is reached."""
        if not self._bounds.take(size, connection.host):
            self._bounds.count(self._served, "max_bytes_in_flight")
            return False
        self._held[connection] += size
        return True

    def give_back(self, connection: "HttpConnection", size: int) -> None:
        """Release bytes held for a connection."""
        size = min(size, self._held[connection])
        self._held[connection] -= size
        self._bounds.give_back(size, connection.host)

    def closed(self, connection: "HttpConnection") -> None:
        """Remove a connection."""
        self._bounds.give_back(self._held.pop(connection, 0), connection.host)
        if connection in self._open:
            del self._open[connection]
            self._hosts[connection.host] -= 1
            if not self._hosts[connection.host]:
                del self._hosts[connection.host]
        self._remove_from_books(connection)
        self.stop_write_timeout(connection)
        self._bounds.connections[self._served] = len(self._open)

    def _remove_from_books(self, connection: "HttpConnection") -> None:
        for book in (self._new, self._idle, self._heads, self._bodies):
            book.pop(connection, None)

    def awaits_head(self, connection: "HttpConnection") -> None:
        """Start the timeout for the head of a request."""
        self._new.pop(connection, None)
        self._idle.pop(connection, None)
        self._bodies.pop(connection, None)
        self._heads.setdefault(connection, self._loop.time())  # it may be parsed again

    def awaits_body(self, connection: "HttpConnection") -> None:
        """Start the timeout for the body, after the head."""
        self._heads.pop(connection, None)
        self._bodies[connection] = self._loop.time()

    def owes_nothing(self, connection: "HttpConnection") -> None:
        """Stop the timeouts, as the request is complete."""
        self._heads.pop(connection, None)
        self._bodies.pop(connection, None)

    def start_idle_timeout(self, connection: "HttpConnection") -> None:
        """Start the idle timeout, after a response."""
        if connection in self._open and connection not in self._heads and connection not in self._bodies:
            self._idle[connection] = self._loop.time()

    def start_write_timeout(self, connection: "HttpConnection") -> None:
        """Start the send timeout, as the client reads too slowly."""
        size = connection.unread_bytes
        self.stop_write_timeout(connection)
        self._unread[connection] = (self._loop.time(), size)
        self._bounds.unread(size)
        self._make_memory()

    def stop_write_timeout(self, connection: "HttpConnection") -> None:
        """Stop the send timeout, as the client has read everything, or never will."""
        if before := self._unread.pop(connection, None):
            self._bounds.unread(-before[1])

    def _sweep(self) -> None:
        self._timer = self._loop.call_later(SWEEP_S, self._sweep)
        limits, now = self._limits, self._loop.time()
        for book, limit_s, name in (
            (self._heads, limits.head_s, "request_headers_timeout_s"),
            (self._bodies, limits.body_s, "request_timeout_s"),
            (self._new, limits.idle_s, "idle_timeout_s"),
            (self._idle, limits.idle_s, "idle_timeout_s"),
        ):
            self._end_overdue(book, now, limit_s, name)
        for connection, (since, size) in list(self._unread.items()):
            left = connection.unread_bytes
            if left <= size - PROGRESS_BYTES:
                self.start_write_timeout(connection)
            elif limits.send_s is not None and now - since > limits.send_s:
                self._end(connection, "write_timeout_s")
        self._make_memory()

    def _end_overdue(self, book: "dict[HttpConnection, float]", now: float, limit_s: float | None, name: str) -> None:
        if limit_s is None:
            return
        while book:
            connection, since = next(iter(book.items()))
            if now - since <= limit_s:
                return
            if connection.is_paused:  # it is we who do not read
                del book[connection]
                book[connection] = now
            else:
                self._end(connection, name, notify=True)

    def _make_room(self, host: str) -> bool:
        """End the slowest of those that may make room. False where none owes anything: all wait for Tidegate."""
        slowest_first = (self._heads, self._new, self._idle, self._bodies)
        ended = next(makes_room(lambda: chain(*slowest_first), self._hosts, host), None)
        if ended is not None:
            self._end(ended)
        return ended is not None

    def _make_memory(self) -> None:
        """End those that have taken least of what was written for them, while all together hold too much."""
        while self._unread and self._bounds.unread_bytes > self._bounds.max_response_buffer_bytes:
            self._end(
                max(self._unread, key=lambda connection: self._unread[connection][1]), "max_response_buffer_bytes"
            )

    def _end(self, connection: "HttpConnection", limit: str = "", *, notify: bool = False) -> None:
        if limit:
            self._bounds.count(self._served, limit)
        if notify and connection.close_after_answers():
            self._remove_from_books(connection)
            return
        self.closed(connection)
        if notify:
            connection.turn_away()
        else:
            connection.abort()


_OFFERS: Final = frozenset({b"connection", b"upgrade", b"http2-settings"})
_MAX_REPETITIONS: Final = 8
"""Headers of one read that may repeat another: each has the rest of the read parsed again."""
_READ_AHEAD: Final = 8
"""Requests that may wait behind another on a connection that is still read: only a read shows that a client left."""
_REQUEST_BYTES: Final = 4096
"""Bytes counted for an open request beside headers and body: objects, task, table entries."""
_TIMED_OUT: Final = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: 58\r\n\r\n"
    b'{"error":"the request did not come within its time limit"}'
)


class HttpConnection(HttpToolsProtocol):
    """HTTP connection. Its heads have a size limit, and input that is not HTTP closes it silently, as with Triton."""

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        connections: HttpConnections,
        limits: HttpLimits,
        health_only: Application,
    ) -> None:
        """Create the HTTP connection.

        `health_only` replaces the application on connections accepted for health requests only.
        """
        super().__init__(config, state, {})
        self._connections = connections
        self._limits = limits
        self._health_only = health_only
        self._unfinished_bytes = 0
        """Bytes of a head, of a chunk's first line or of trailers that have no end yet."""
        self._between_requests = False
        """Whether the latest read began where a request may begin, and none has begun in it."""
        self._head_lines: int | None = None
        """Lines of an unfinished head that came with earlier reads; None: it began in the midst of a read."""
        self._in_head = False
        self._in_body = False
        self._has_body = False
        """Whether the latest read brought a part of a body."""
        self._costs: deque[int] = deque()
        """Bytes that each unanswered request holds beside its body."""
        self._opened_at = 0.0
        self._answered: RequestResponseCycle | None = None
        """The request whose answer is next."""
        self._half_closed = False
        """Whether the client has shut down its side, or has left."""
        self._ignores_input = False
        """Whether Tidegate drops all further bytes of the client."""

    # What the connections' books ask ------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """Address of the client without the port."""
        return self.client[0] if self.client else ""

    @property
    def is_paused(self) -> bool:
        """Whether Tidegate has paused reading."""
        return self.flow.read_paused

    @property
    def unread_bytes(self) -> int:
        """Number of bytes written and not read by the client."""
        return self.transport.get_write_buffer_size()

    def turn_away(self) -> None:
        """Close the connection; a client in the middle of a request gets an error first, unless responses are
        pending.
        """
        if self.close_after_answers():
            return
        answering = self.cycle and not self.cycle.response_complete
        awaited = not self.cycle.response_started and self.cycle.more_body if answering else self._in_head
        if awaited and not self.transport.is_closing():
            self.transport.write(_TIMED_OUT)
        close_once(self.transport)

    def close_after_answers(self) -> bool:
        """Discard further input, and close after the responses to complete requests; return False if there are none."""
        complete = [cycle for cycle in self._unanswered() if not cycle.more_body]
        if not complete or self.transport.is_closing():
            return False
        complete[-1].keep_alive = False
        self._ignores_input = True
        self._connections.owes_nothing(self)
        return True

    def abort(self) -> None:
        """Close the connection at once, discarding everything."""
        self.transport.abort()

    # The transport ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by asyncio when connected; an internal error closes the connection."""
        try:
            self._opened(transport)
        except Exception as error:
            faults.report("a new connection", error)
            transport.abort()

    def _opened(self, transport: asyncio.Transport) -> None:
        self._take_both_lengths()
        super().connection_made(transport)
        self._opened_at = self.loop.time()
        if not self._connections.opened(self):
            self.app = self._health_only

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer a client that has closed its sending side (`printf ...

        | nc`), as Triton does; return whether it stays open.

        A client that has disconnected looks the same, until something is sent.
        """
        if self.transport.get_extra_info("sslcontext") or not self.close_after_answers():
            return False
        self._half_closed = True
        self._probe()
        return True

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Application) -> None:  # type: ignore[override]
        self._answered = cycle
        super()._start_asgi_task(cycle, app)  # type: ignore[arg-type]
        if self._half_closed:
            self._probe()

    def _probe(self) -> None:
        """Send a byte of the answer early, and more later: the one after a client has left meets a reset."""
        cycle = self._answered
        if cycle is None or cycle.response_complete or self.transport.is_closing():
            return
        if pause_s := transport_of(cycle).send_early():
            self.loop.call_later(pause_s, self._probe)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when the connection is lost."""
        self._connections.closed(self)
        for cycle in self._unanswered():  # the library knows of the latest only
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def _unanswered(self) -> Iterator[RequestResponseCycle]:
        """The requests without a whole answer, the oldest first."""
        if self._answered is not None and not self._answered.response_complete:
            yield self._answered
        yield from (cycle for cycle, _ in reversed(self.pipeline))

    def pause_writing(self) -> None:
        """Called by asyncio when the write buffer is full."""
        super().pause_writing()
        self._connections.start_write_timeout(self)

    def resume_writing(self) -> None:
        """Called by asyncio when the write buffer has drained."""
        super().resume_writing()
        self._connections.stop_write_timeout(self)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio with received bytes."""
        if self._ignores_input:
            return
        size = len(data)
        self._has_body = False
        self._between_requests = not (self._in_head or self._in_body)
        repetitions = 0
        while data and not (self._ignores_input or self.transport.is_closing()):
            try:
                self.parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as offer:
                data = self._declined() + data[offer.args[0] :]
            except httptools.HttpParserError:
                repetitions += 1
                data = self._without_repeated_length(data) if repetitions <= _MAX_REPETITIONS else b""
                if not data:
                    self._refuse()
                    return
        # The parser collects what is unfinished, so that is bounded by the limit and one read.
        if self._in_head or (self._in_body and not self._has_body):
            if self._in_head and self._head_lines is not None:
                self._head_lines += data.count(b"\n")
            self._unfinished_bytes += size
            if self._unfinished_bytes > self._limits.head_bytes:
                log.warning("client headers too large", extra={"limit_bytes": self._limits.head_bytes})
                self._refuse()
            elif not self._connections.take(self, size):
                self.turn_away()
        elif self._unfinished_bytes:
            self._connections.give_back(self, self._unfinished_bytes)
            self._unfinished_bytes = 0

    def _refuse(self) -> None:
        """End it because of its latest request; those before it are answered."""
        if not self.close_after_answers():
            close_once(self.transport)

    def shutdown(self) -> None:
        """Close the connection if it is idle, or else after the response in flight."""
        if not self.transport.is_closing():
            super().shutdown()

    def retire(self) -> None:
        """Close the connection after the response in flight; later responses close it themselves."""
        if self.cycle and not self.cycle.response_complete:
            self.cycle.keep_alive = False

    # The parser ---------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Handle the beginning of a request."""
        self._in_head, self._in_body = True, False
        self._head_lines = 0 if self._between_requests else None
        self._between_requests = False
        self._connections.awaits_head(self)
        super().on_message_begin()
        self._names: list[bytes] = []
        self.scope[NAMES_EXTENSION] = self._names  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        """Handle the end of a head: pass the request to the application.

        Raises HttpParserError for a transfer encoding other than `chunked`.
        """
        self._in_head, self._in_body = False, True
        self._connections.awaits_body(self)
        if self.parser.should_upgrade():
            return
        if any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in self.headers):
            raise httptools.HttpParserError("a transfer encoding beside chunked")  # or it would parse on
        application = self.app
        try:
            target = normal_form(self.url)
        except NoNormalForm as refused:
            target = b"/"
            self.app = _refusing(str(refused))
        cost = _REQUEST_BYTES + sum(len(name) + len(value) for name, value in self.headers)
        if not self._connections.take(self, cost):
            cost = 0
            if not target.startswith(b"/v2/health/"):
                self.app = _refusing(TOO_MUCH, 429)
        self._costs.append(cost)
        self.url = b"/"  # the library would parse it once more, otherwise than we do
        is_read = not self.flow.read_paused
        super().on_headers_complete()
        if is_read and self._may_read_ahead():
            self.flow.resume_reading()
        self.app = application
        raw_path, _, self.scope["query_string"] = target.partition(b"?")
        self.scope["raw_path"], self.scope["path"] = raw_path, raw_path.decode()
        if self.scope["http_version"] == "1.0":
            self.cycle.keep_alive = self.parser.should_keep_alive()
            self.cycle.waiting_for_100_continue = False
            transport_of(self.cycle)
        if self._connections.retiring or self._is_old() or self._has_both_lengths():
            self.cycle.keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a header; one after the body is a trailer, which is ignored."""
        if self._in_head:
            super().on_header(name, value)
            self._names.append(name)

    def on_body(self, body: bytes) -> None:
        """Handle a part of a body."""
        self._has_body = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Handle the end of a request's body."""
        self._in_body = False
        self._connections.owes_nothing(self)
        if not self.parser.should_upgrade():
            super().on_message_complete()
            if self.cycle.response_complete:
                self._connections.start_idle_timeout(self)

    def on_response_complete(self) -> None:
        """Handle the end of a response."""
        self._connections.give_back(self, self._costs.popleft())
        super().on_response_complete()
        self._unset_keepalive_if_required()  # the connections' books know how long it may be idle
        if next(self._unanswered(), None) is None:
            self._connections.start_idle_timeout(self)

    def _may_read_ahead(self) -> bool:
        """Whether few and small requests wait for their turn."""
        waiting = self.pipeline
        return len(waiting) <= _READ_AHEAD and sum(len(cycle.body) for cycle, _ in waiting) <= HIGH_WATER_LIMIT

    def _is_old(self) -> bool:
        age_s = self._limits.age_s
        return age_s is not None and self.loop.time() - self._opened_at > age_s

    def _has_both_lengths(self) -> bool:
        """RFC 9112, section 6.1: a client that took the length at its word is cut off."""
        return {b"content-length", b"transfer-encoding"} <= {name for name, _ in self.headers}

    def _take_both_lengths(self) -> None:
        """Triton takes a request with Content-Length and chunks: the chunks count, and it is the last one here."""
        self.parser.set_dangerous_leniencies(lenient_chunked_length=True, lenient_data_after_close=True)

    def _without_repeated_length(self, data: bytes) -> bytes:
        """The head so far, and what follows it, without a Content-Length that says what the one before it does.

        Two equal ones are one (RFC 9110, section 8.6), and Triton takes them. b"" where the parser refused another
        line, or where it is not certain which line that was.
        """
        if not self._in_head or self._head_lines is None:
            return b""
        number = 1 + len(self.headers) - self._head_lines  # no line of a head that the parser takes is folded
        lines = data.split(b"\r\n", number + 1)
        if number < 0 or len(lines) < number + 2:
            return b""
        name, _, value = lines[number].partition(b":")
        if (name.lower(), value.strip(b" \t")) != (b"content-length", dict(self.headers).get(b"content-length")):
            return b""
        self._between_requests = True
        return self._begin_again(self._written()) + lines[-1]

    def _written(self) -> list[tuple[bytes, bytes]]:
        """The headers so far with their names as the client wrote them."""
        return [(name, value) for name, (_, value) in zip(self._names, self.headers, strict=True)]

    def _declined(self) -> bytes:
        """The head of a request that offers another protocol, without the offer; the parser starts again with it.

        Some clients offer HTTP/2 with every first request. The parser would take the request's body for the
        beginning of the other protocol. A tunnel is refused as Triton does it, by closing.
        """
        if self.parser.get_method() == b"CONNECT":
            self._refuse()
            return b""
        kept = [header for header in self._written() if header[0].lower() not in _OFFERS]
        if any(name == b"connection" and b"close" in value.lower() for name, value in self.headers):
            kept.append((b"connection", b"close"))
        return self._begin_again(kept) + b"\r\n"

    def _begin_again(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """The request's line and these headers; another parser starts with them."""
        line = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        self.parser = httptools.HttpRequestParser(self)
        self._take_both_lengths()
        return b"\r\n".join([line, *(b"%b: %b" % header for header in headers), b""])


def _refusing(words: str, status: int = 400) -> Application:
    """An application that refuses one request. The server library reads its body and throws it away."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await HttpExchange(scope, receive, send).reply(error(status, words))

    return answer
