"""HTTP exchange: one request, its body and its response, between the server library and the application."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from tidegate_proxy.base import refusal
from tidegate_proxy.messages.forwarded_metadata import HeaderForwarding, metadata_of
from tidegate_proxy.servers.http.compression import TooLarge
from tidegate_proxy.servers.http.interface import (
    NAMES_EXTENSION,
    Headers,
    HttpAnswer,
    HttpCall,
    Message,
    Receive,
    Scope,
    Send,
)
from tidegate_proxy.servers.http.routes import Route
from tidegate_proxy.transport import Metadata
from tidegate_proxy.transport.client_bounds import ClientBounds, TooMuchInFlight

_OK: Final = 200
_REASON_HEADER: Final = refusal.REASON_HEADER.encode()
_LONGEST_NUMBER = 18
"""Digits that surely fit 64 bits."""
_ONCE = frozenset({b"content-encoding", b"inference-header-content-length", b"content-length", b"transfer-encoding"})


_PIECE_BYTES: Final = 1 << 16
"""A Triton keeps the pieces of a body on its stack: of bytes that come one by one, a million end it."""


class ClientLeft(Exception):
    """Error: the client closed its connection."""


class RequestBody:
    """Body of a request, which can be read once."""

    def __init__(self, receive: Receive, announced_bytes: int | None, limit: int | None, bounds: ClientBounds) -> None:
        """Create the request body.

        `limit`: largest size in bytes, None: no limit. `announced_bytes`: the Content-Length. Bytes read count in
        `bounds` until they are released.
        """
        self._receive = receive
        self._announced_bytes = announced_bytes
        self._limit = limit
        self._bounds = bounds
        self.owner = ""
        """Client that the body belongs to; set it before reading."""
        self._held = 0
        self._closed = False
        self._lock = threading.Lock()
        """A body may be inflated in another thread, and its client leave meanwhile."""
        self._taken = 0
        self._ahead = b""
        """Bytes that were read and not returned yet."""
        self.complete = False
        """Whether the whole body was read."""

    async def whole(self) -> bytes:
        """Return the whole body. Raises TooLarge, TooMuchInFlight, ClientLeft."""
        if self.complete:
            return self._take_ahead()
        first = await self._next()
        if self.complete:
            return first
        pieces = [first]
        while not self.complete:
            pieces.append(await self._next())
        return b"".join(pieces)

    async def read_ahead(self) -> None:
        """Read the whole body, for the next call that returns it. Raises what `whole` raises."""
        self._ahead = await self.whole()

    def _take_ahead(self) -> bytes:
        taken, self._ahead = self._ahead, b""
        return taken

    async def beginning(self, size: int) -> bytes:
        """Return the whole body if it is short, otherwise at least its first `size` bytes."""
        if self.complete:
            return self._take_ahead()
        pieces: list[bytes] = []
        while not self.complete and self._taken < size:
            pieces.append(await self._next())
        return b"".join(pieces)

    async def pieces(self, beginning: bytes) -> AsyncIterator[bytes]:
        """Yield the beginning, then the rest as it arrives; each piece is released when the next is requested."""
        yield beginning
        self.release()
        while not self.complete:
            if piece := await self.beginning(self._taken + _PIECE_BYTES):
                yield piece
            self.release()

    def hold(self, size: int) -> None:
        """Count bytes held for this request after decompression. Raises TooMuchInFlight."""
        with self._lock:
            if self._closed:
                raise ClientLeft
            if not self._bounds.take(size, self.owner):
                self._bounds.count("http", "max_bytes_in_flight")
                raise TooMuchInFlight
            self._held += size

    def release(self) -> None:
        """Release everything held for it."""
        with self._lock:
            self._bounds.give_back(self._held, self.owner)
            self._held = 0

    def close(self) -> None:
        """Release everything held for it, now and in the future."""
        self._closed = True
        self.release()

    async def discard(self) -> None:
        """Read the rest and discard it: a client that is still sending would not read a response."""
        while not self.complete:
            message = await self._receive()
            self.complete = message["type"] == "http.disconnect" or not message.get("more_body", False)

    async def _next(self) -> bytes:
        if self._limit is not None and (self._announced_bytes or 0) > self._limit:
            raise self._too_large()
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        piece: bytes = message.get("body", b"")
        self.complete = not message.get("more_body", False)
        self._taken += len(piece)
        if self._limit is not None and self._taken > self._limit:
            raise self._too_large()
        self.hold(len(piece))
        return piece

    def _too_large(self) -> TooLarge:
        self._bounds.count("http", "max_message_bytes")
        return TooLarge()


class HttpExchange:
    """Header of a request, and the channel for its response.

    Create it in the task that serves the request: that task ends when the client leaves.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: bytes = scope["raw_path"]
        self.receive = receive
        self.content_length: int | None = None
        self.content_encodings: list[bytes] = []
        """Content encodings of the request; only Triton knows which one applies."""
        self.accept_encoding = b""
        self.json_length: int | None = None
        """Value of Inference-Header-Content-Length."""
        self.odd = False
        """Whether the head has something that only Triton can interpret as Triton does."""
        self.client_left = False
        self.status = 0
        """Status of the response once it is sent."""
        self.is_rejected = False
        """Whether the response says why Tidegate rejected the request."""
        self.owner = ""
        """Client of the request, once it is identified."""
        self._body: RequestBody | None = None
        self.body_error: Exception | None = None
        """Error because of which the body was not forwarded completely."""
        self._peer: tuple[str, int] | None = scope.get("client")
        self._query: bytes = scope["query_string"]
        self._headers: Headers = scope["headers"]
        names: list[bytes] = scope.get(NAMES_EXTENSION) or [name for name, _ in self._headers]
        self._written: Headers = [(name, value) for name, (_, value) in zip(names, self._headers, strict=True)]
        """The same with their names as the client wrote them."""
        """Headers in order of arrival.

        Trailing blanks of values are kept, as Triton does (contrary to RFC 9110, section 5.5).
        """
        self._send = send
        self._task = asyncio.current_task()
        self._watch: asyncio.Task[None] | None = None
        self.started = False
        """Whether a part of the response was sent to the client."""
        self._answered = False
        self._read_headers()

    def _read_headers(self) -> None:
        seen = set()
        for name, raw in self._headers:
            value = raw.strip(b" \t")
            if name == b"accept-encoding":
                self.accept_encoding = self.accept_encoding or value
            elif name in _ONCE:
                self.odd |= name in seen
                seen.add(name)
                if name == b"content-encoding":
                    self.content_encodings.append(value)
                elif name == b"transfer-encoding":
                    self.odd |= value != b"chunked"
                elif not value.isdigit() or len(value) > _LONGEST_NUMBER:
                    self.odd = True
                elif name == b"content-length":
                    self.content_length = int(value)
                else:
                    self.json_length = int(value)
        if b"transfer-encoding" in seen:
            # The chunks say where the body ends (RFC 9112, section 6.3), here and to whom it is passed on.
            self.content_length = None
            self._drop(frozenset({b"content-length"}))

    def body(self, limit: int | None, bounds: ClientBounds) -> RequestBody:
        """Return the body, read within a limit; bytes held of it count in `bounds`."""
        self._body = RequestBody(self.receive, self.content_length, limit, bounds)
        return self._body

    def belongs_to(self, owner: str) -> None:
        """Assign the request, and the bytes held for it, to a client."""
        self.owner = owner
        if self._body:
            self._body.owner = owner

    def hold(self, size: int) -> None:
        """Count bytes held after decompression. Raises what the body raises."""
        if self._body:
            self._body.hold(size)

    def body_failed(self, error: Exception) -> None:
        """Store why the body could not be forwarded completely, as its consumer would hide the cause."""
        self.body_error = error

    def header(self, name: str) -> str | None:
        """Return the first header of a lower-case name, as Triton does, or None."""
        wanted = name.encode()
        return next((value.decode("latin1") for key, value in self._headers if key == wanted), None)

    def peer(self) -> str:
        """Return the address of the connection."""
        return "{}:{}".format(*self._peer) if self._peer else ""

    @property
    def content_encoding(self) -> bytes:
        """Encoding of the body; b"" if none is given."""
        return self.content_encodings[-1] if self.content_encodings else b""

    @property
    def metadata(self) -> Metadata:
        """Headers that accompany an inference, scheduled or not."""
        return metadata_of(self._headers)

    def call(self, body: bytes, route: Route) -> HttpCall:
        """Return the request for handlers and Tritons."""
        return HttpCall(self.method, self.path, self._query, self._written, body, route)

    def first_headers(self) -> dict[str, str]:
        """Return the headers by name; of repeated ones the first, as Triton does."""
        return {name.decode("latin1"): value.strip(b" \t").decode("latin1") for name, value in reversed(self._headers)}

    def hide(self, names: frozenset[str]) -> None:
        """Remove headers that must not be forwarded to a Triton."""
        if names:
            self._drop(frozenset(name.encode("latin1") for name in names))

    def _drop(self, names: frozenset[bytes]) -> None:
        self._headers = [pair for pair in self._headers if pair[0] not in names]
        self._written = [pair for pair in self._written if pair[0].lower() not in names]

    def may_reach_model(self, forwarding: HeaderForwarding) -> bool:
        """Return whether a Triton may turn one of its headers into a parameter of its inference."""
        return any(forwarding.may_forward(name.decode("latin1")) for name, _ in self._written)

    def watch(self) -> None:
        """Cancel the task when the client leaves, from now on; the body must have been read."""
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._cancel_when_client_leaves())

    def end_watch(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.cancel()

    async def send(self, message: Message) -> None:
        """Send a part of the response."""
        self.started = True
        self.status = message.get("status", self.status)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._answered = True
        await self._send(message)

    async def reply(self, answer: HttpAnswer) -> None:
        """Send a whole response; its length is added."""
        self.started = True
        self.status = answer.status
        self.is_rejected = answer.status != _OK and any(name == _REASON_HEADER for name, _ in answer.headers)
        headers = [*answer.headers, (b"content-length", str(len(answer.body)).encode())]
        await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})
        self._answered = True
        await self._send({"type": "http.response.body", "body": answer.body})

    @asynccontextmanager
    async def replying(self, answer: HttpAnswer) -> AsyncIterator[None]:
        """Send a whole response, but end it only with the block: until then the client may continue to send."""
        self.started = True
        headers = [*answer.headers, (b"content-length", str(len(answer.body)).encode())]
        await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": answer.body, "more_body": True})
        try:
            yield
        finally:
            self._answered = True
            await self._send({"type": "http.response.body", "body": b""})

    async def _cancel_when_client_leaves(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        if not self._answered:  # afterwards the server library says "disconnect" too
            self.client_left = True
            assert self._task is not None
            self._task.cancel()
