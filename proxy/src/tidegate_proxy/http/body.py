"""The body of a client's request: read whole within its limit, or piece by piece."""

from collections.abc import AsyncIterator

from tidegate_proxy.http.compression import TooLarge
from tidegate_proxy.http.interface import Receive


class ClientLeft(Exception):
    """The client closed its connection."""


class RequestBody:
    """The body of one request; it can be read once."""

    def __init__(self, receive: Receive, announced_bytes: int | None, limit: int | None) -> None:
        """`announced_bytes`: the Content-Length. Raises TooLarge where that exceeds the limit already."""
        if limit is not None and announced_bytes is not None and announced_bytes > limit:
            raise TooLarge
        self._receive = receive
        self._limit = limit
        self._taken = 0
        self.complete = False
        """Whether its end was read."""

    async def whole(self) -> bytes:
        """All of it. Raises TooLarge, ClientLeft."""
        first = await self._next()
        if self.complete:
            return first
        pieces = [first]
        while not self.complete:
            pieces.append(await self._next())
        return b"".join(pieces)

    async def beginning(self, size: int) -> bytes:
        """All of it if it is short, else at least `size` bytes. Raises TooLarge, ClientLeft."""
        pieces: list[bytes] = []
        while not self.complete and self._taken < size:
            pieces.append(await self._next())
        return b"".join(pieces)

    async def pieces(self, beginning: bytes) -> AsyncIterator[bytes]:
        """The beginning, then the rest as it comes. Raises TooLarge, ClientLeft."""
        yield beginning
        while not self.complete:
            if piece := await self._next():
                yield piece

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        piece: bytes = message.get("body", b"")
        self.complete = not message.get("more_body", False)
        self._taken += len(piece)
        if self._limit is not None and self._taken > self._limit:
            raise TooLarge
        return piece
