"""Link between a frontend and a shard: frames, in order, in both directions."""

import asyncio
import socket
from collections.abc import Callable
from typing import Final, Protocol, cast

from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.frontends.frames import FRAME_HEADER, MAX_INLINE_BYTES, FrameType

_LARGE: Final = 1 << 16
"""Size in bytes of a frame from which its parts are collected before they are joined."""


class LinkEnd(Protocol):
    """Interface of the receiver of a link's frames."""

    def take(self, kind: int, number: int, payload: bytes) -> None:
        """Handle one frame of the link.

        `kind`: type of the frame; `number`: its call or exchange, 0: none; `payload`: its content.
        """

    def lost(self) -> None:
        """Handle the loss of the link; called once, as the last."""


class Link(asyncio.Protocol):
    """Link that transports frames over a stream socket. Use it only in the event loop's thread.

    Frames sent within one iteration of the loop leave in one write, because uvloop combines a socket's writes.
    """

    def __init__(self, make_end: Callable[["Link"], LinkEnd]) -> None:
        self._make_end = make_end
        self._largest: int | None = None
        """Frames may carry no more bytes; None: no limit."""
        self._end: LinkEnd | None = None
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        """The beginning of a frame whose end has not come."""
        self._large = (0, 0)
        """Kind and number of a large one that has not come whole."""
        self._parts: list[bytes] = []
        """Pieces of the payload that have arrived."""
        self._missing = 0
        """Bytes of it that have not come; 0: there is no such frame."""

    @property
    def is_open(self) -> bool:
        """Whether frames may be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def limit(self, largest: int | None) -> None:
        """End the link if a frame has a larger payload; None: no limit."""
        self._largest = largest

    def send(self, kind: FrameType, number: int = 0, payload: bytes = b"") -> None:
        """Send a frame; on a lost link it is discarded, and the end was or will be notified.

        `number`: its call or exchange, 0: none; `payload`: its content.
        """
        if not self.is_open:
            return
        assert self._transport is not None, "is_open"
        head = FRAME_HEADER.pack(kind, number, len(payload))
        if len(payload) <= MAX_INLINE_BYTES:
            self._transport.write(head + payload)
        else:
            self._transport.writelines((head, payload))

    @property
    def connection(self) -> socket.socket | None:
        """The socket of the link."""
        found: socket.socket | None = self._transport.get_extra_info("socket") if self._transport else None
        return found

    def hand_over(self, make_end: Callable[["Link"], LinkEnd]) -> None:
        """Replace the receiver of frames, from the next frame on. `make_end`: creates the new one for this link."""
        self._end = make_end(self)

    def abort(self) -> None:
        """Close at once, discarding unsent frames."""
        if self._transport:
            self._transport.abort()

    def close(self) -> None:
        """Send pending bytes, then close."""
        if self._transport:
            self._transport.close()

    # For the event loop ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio when the link is connected."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by name
        self._end = self._make_end(self)

    def connection_lost(self, _error: Exception | None) -> None:
        """Called by asyncio when the link is lost."""
        if self._end:
            self._end.lost()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio with received bytes."""
        try:
            if self._missing:
                data = self._add(data)
            if data:
                self._read(self._rest + data if self._rest else data)
        except Exception as error:
            faults.report("a link between a frontend and its shard", error)
            self.abort()

    def _read(self, data: bytes) -> None:
        """Take the frames that are whole, and keep what is left."""
        assert self._end is not None, "it was made with the connection"
        at, size, self._rest = 0, len(data), b""
        while size - at >= FRAME_HEADER.size:
            kind, number, length = FRAME_HEADER.unpack_from(data, at)
            if self._largest is not None and length > self._largest:
                self.abort()
                return
            begin = at + FRAME_HEADER.size
            end = begin + length
            if end > size:
                if length >= _LARGE:
                    self._large, self._missing = (kind, number), end - size
                    self._parts.append(data[begin:])
                    return
                break
            self._end.take(kind, number, data[begin:end])
            at = end
        self._rest = data[at:] if at else data

    def _add(self, data: bytes) -> bytes:
        """More of a large frame; what is behind it. What it carries is put together once."""
        assert self._end is not None, "it was made with the connection"
        missing = self._missing
        self._missing = max(0, missing - len(data))
        self._parts.append(data if len(data) <= missing else data[:missing])
        if self._missing:
            return b""
        payload = b"".join(self._parts)
        self._parts.clear()
        self._end.take(*self._large, payload)
        return data[missing:]
