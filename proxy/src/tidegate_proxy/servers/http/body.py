"""The body of a client's request: read whole within its limit, or piece by piece."""

import threading
from collections.abc import AsyncIterator
from typing import Final

from tidegate_proxy.servers.http.compression import TooLarge
from tidegate_proxy.servers.http.interface import Receive
from tidegate_proxy.transport.client_bounds import Bounds, TooMuchInFlight

_PIECE_BYTES: Final = 1 << 16
"""A Triton keeps the pieces of a body on its stack: of bytes that come one by one, a million end it."""


class ClientLeft(Exception):
    """The client closed its connection."""


class RequestBody:
    """The body of one request; it can be read once."""

    def __init__(self, receive: Receive, announced_bytes: int | None, limit: int | None, bounds: Bounds) -> None:
        """`announced_bytes`: the Content-Length. What is read counts among `bounds` until it is released."""
        self._receive = receive
        self._announced_bytes = announced_bytes
        self._limit = limit
        self._bounds = bounds
        self.owner = ""
        """Whose it is; to be set before it is read."""
        self._held = 0
        self._closed = False
        self._lock = threading.Lock()
        """A body may be inflated in another thread, and its client leave meanwhile."""
        self._taken = 0
        self.complete = False
        """Whether its end was read."""

    async def whole(self) -> bytes:
        """All of it. Raises TooLarge, TooMuchInFlight, ClientLeft; as below."""
        first = await self._next()
        if self.complete:
            return first
        pieces = [first]
        while not self.complete:
            pieces.append(await self._next())
        return b"".join(pieces)

    async def beginning(self, size: int) -> bytes:
        """All of it if it is short, else at least `size` bytes."""
        pieces: list[bytes] = []
        while not self.complete and self._taken < size:
            pieces.append(await self._next())
        return b"".join(pieces)

    async def pieces(self, beginning: bytes) -> AsyncIterator[bytes]:
        """The beginning, then the rest as it comes; what was given is released when more is asked for."""
        yield beginning
        self.release()
        while not self.complete:
            if piece := await self.beginning(self._taken + _PIECE_BYTES):
                yield piece
            self.release()

    def hold(self, size: int) -> None:
        """So many bytes more are held for this request: what it was inflated to. Raises TooMuchInFlight."""
        with self._lock:
            if self._closed:
                raise ClientLeft
            if not self._bounds.take(size, self.owner):
                self._bounds.count("http", "max_bytes_in_flight")
                raise TooMuchInFlight
            self._held += size

    def release(self) -> None:
        """Nothing of it is held any more."""
        with self._lock:
            self._bounds.give_back(self._held, self.owner)
            self._held = 0

    def close(self) -> None:
        """Nothing of it is held any more, or will be."""
        self._closed = True
        self.release()

    async def discard(self) -> None:
        """Read the rest and forget it: a client that is still sending would not see an answer."""
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
