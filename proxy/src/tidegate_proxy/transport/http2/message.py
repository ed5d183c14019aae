"""gRPC messages on the wire: a flag (1: compressed), the length in four bytes, the message.

Limits hold before and after decompression, which proceeds in steps, as the result may be very large.
"""

import zlib
from collections import deque
from struct import Struct
from typing import Final

from grpc import StatusCode

ACCEPTED_ENCODINGS: Final = b"identity, deflate, gzip"
_WINDOW_BITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class MessageError(Exception):
    """Error: the message is rejected; carries the status for it."""

    def __init__(self, code: StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class MessageDecompression:
    """Decompression of one message, in steps. Each step may run in any thread, one at a time."""

    __slots__ = ("_data", "_encoding", "_inflater", "_limit", "_room", "is_done", "wire_bytes")

    def __init__(self, encoding: str, data: bytes, limit_bytes: int) -> None:
        """Create the message decompression. `limit_bytes`: of the whole message.

        Raises MessageError if the compression of `data` is unknown. `encoding`: `gzip` or `deflate`.
        """
        if encoding == "identity":
            raise MessageError(StatusCode.INTERNAL, "a message is compressed, and grpc-encoding does not say how")
        self._encoding = encoding
        self._data = data
        self.wire_bytes = len(data)
        """Size before decompression."""
        self._limit = limit_bytes
        self._room = limit_bytes
        self._inflater = zlib.decompressobj(_WINDOW_BITS[encoding])
        self.is_done = False

    def step(self, most_bytes: int) -> bytes:
        """Return the next piece, of at most `most_bytes`.

        Raises MessageError for a message that is too large or invalid.
        """
        try:
            piece = self._inflater.decompress(self._data, min(most_bytes, self._room + 1))
        except zlib.error as error:
            raise MessageError(StatusCode.INTERNAL, f"a message is not {self._encoding}: {error}") from error
        self._data = self._inflater.unconsumed_tail
        self._room -= len(piece)
        if self._room < 0:
            words = f"Received message larger than max (more than {self._limit} bytes when decompressed)"
            raise MessageError(StatusCode.RESOURCE_EXHAUSTED, words)
        self.is_done = self._inflater.eof
        if not self.is_done and not piece and not self._data:
            raise MessageError(StatusCode.INTERNAL, f"a message is not {self._encoding}: it ends too early")
        return piece


def is_known(encoding: str) -> bool:
    """Return whether messages with this compression can be read."""
    return encoding == "identity" or encoding in _WINDOW_BITS


INFLATED_AT_ONCE: Final = 1 << 20
_PREFIX: Final = Struct(">BI")
PREFIX_BYTES: Final = _PREFIX.size
JOINED_UP_TO: Final = 1 << 16
"""Size in bytes up to which a message is copied behind its prefix; a larger one is written separately."""
_SMALL: Final = 1 << 12
_COLLECTED: Final = 1 << 16
"""Pieces smaller than `_SMALL` are collected up to this many bytes: who sends single bytes costs no more than them."""


def prefix(size: int) -> bytes:
    """Return the prefix of an uncompressed message of `size` bytes."""
    return _PREFIX.pack(0, size)


def single_message(data: bytes, limit_bytes: int) -> bytes | None:
    """Return the message if `data` is exactly one uncompressed message, else None. Raises MessageError: too large."""
    if len(data) < PREFIX_BYTES:
        return None
    flag, size = _PREFIX.unpack_from(data)
    if flag or len(data) != size + PREFIX_BYTES:
        return None
    _check(size, limit_bytes)
    return data[PREFIX_BYTES:]


class MessageAssembler:
    """Assembler of messages from the pieces in which they arrive; too large ones are rejected by their prefix."""

    __slots__ = ("_at", "_encoding", "_have", "_limit", "_pieces", "_size")

    def __init__(self, encoding: str, limit_bytes: int) -> None:
        """Create the message assembler.

        `encoding`: compression of compressed messages; `limit_bytes`: of a message, compressed or not.
        """
        self._encoding = encoding
        self._limit = limit_bytes
        self._pieces: deque[bytes | bytearray] = deque()
        self._at = 0
        """So much of the first piece was taken."""
        self._have = 0
        self._size = -1
        """The size of the message that is coming, with its prefix; -1: not known yet."""

    @property
    def held_bytes(self) -> int:
        """Number of bytes received and not taken."""
        return self._have

    @property
    def has_message(self) -> bool:
        """Whether `take` has a message."""
        return 0 <= self._size <= self._have

    def add(self, data: bytes) -> None:
        """Add the next piece. Raises MessageError as soon as the message is known to be too large."""
        pieces = self._pieces
        if len(data) >= _SMALL or not pieces:
            pieces.append(data)
        elif isinstance(pieces[-1], bytearray) and len(pieces[-1]) < _COLLECTED:
            pieces[-1] += data
        else:
            pieces.append(bytearray(data))
        self._have += len(data)
        if self._size < 0:
            self._measure()

    def take(self) -> bytes | MessageDecompression | None:
        """Return the next message, or None while it is incomplete. Raises MessageError."""
        if not self.has_message:
            return None
        compressed = self._pieces[0][self._at]
        message = self._cut(self._size)
        self._size = -1
        self._measure()
        return MessageDecompression(self._encoding, message, self._limit) if compressed else message

    def take_inflated(self) -> bytes | None:
        """Return the next message, decompressed in this thread; see `take`."""
        taken = self.take()
        if not isinstance(taken, MessageDecompression):
            return taken
        parts = []
        while not taken.is_done:
            parts.append(taken.step(INFLATED_AT_ONCE))
        return b"".join(parts)

    def clear(self) -> None:
        """Discard everything held."""
        self._pieces.clear()
        self._at = self._have = 0
        self._size = -1

    def _cut(self, size: int) -> bytes:
        """Return the message in the next bytes, without its prefix: copied once."""
        pieces, first = self._pieces, self._pieces[0]
        self._have -= size
        begin, end = self._at + PREFIX_BYTES, self._at + size
        if end < len(first):
            self._at = end
            return bytes(memoryview(first)[begin:end])
        pieces.popleft()
        parts: list[bytes | bytearray | memoryview] = [memoryview(first)[begin:]]
        missing, self._at = end - len(first), 0
        while missing:
            piece = pieces[0]
            if len(piece) > missing:
                parts.append(memoryview(piece)[:missing])
                self._at, missing = missing, 0
            else:
                parts.append(pieces.popleft())
                missing -= len(piece)
        return b"".join(parts)

    def _measure(self) -> None:
        if self._have < PREFIX_BYTES:
            return
        pieces = self._pieces
        while len(pieces[0]) - self._at < PREFIX_BYTES:
            rest = pieces.popleft()[self._at :]
            pieces[0] = rest + pieces[0]
            self._at = 0
        flag, size = _PREFIX.unpack_from(pieces[0], self._at)
        if flag > 1:
            raise MessageError(StatusCode.INTERNAL, f"a message begins with {flag}, which is no flag of gRPC's")
        _check(size, self._limit)
        self._size = size + PREFIX_BYTES


def _check(size: int, limit_bytes: int) -> None:
    if size > limit_bytes:
        raise MessageError(
            StatusCode.RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {limit_bytes})"
        )
