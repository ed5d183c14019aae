"""Messages on the wire: a flag (1: compressed), the length in four bytes, the message.

Limits hold before and after decompression.
"""

import zlib
from struct import Struct
from typing import Final

from grpc import StatusCode

_PREFIX: Final = Struct(">BI")
PREFIX_BYTES: Final = _PREFIX.size
JOINED_UP_TO: Final = 1 << 16
"""A message up to this many bytes is copied behind its prefix; a larger one follows it by itself."""
ACCEPTED_ENCODINGS: Final = b"identity, deflate, gzip"
_WINDOW_BITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class MessageError(Exception):
    """A message that is not taken, with the status that says so."""

    def __init__(self, code: StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


def prefix(size: int) -> bytes:
    """What stands before a message of `size` bytes that is not compressed."""
    return _PREFIX.pack(0, size)


class Assembler:
    """Puts messages together from the pieces in which they come; what is too large is refused by its prefix."""

    __slots__ = ("_chunks", "_encoding", "_have", "_limit", "_size")

    def __init__(self, encoding: str, limit_bytes: int) -> None:
        """`encoding`: what compressed messages are compressed with; `limit_bytes`: of a message, compressed or not."""
        self._encoding = encoding
        self._limit = limit_bytes
        self._chunks: list[bytes] = []
        self._have = 0
        self._size = -1
        """Of the message that is coming, with its prefix; -1: not known yet."""

    @property
    def held_bytes(self) -> int:
        """What has come and is no message yet."""
        return self._have

    @property
    def has_message(self) -> bool:
        """Whether `take` has one to give."""
        return 0 <= self._size <= self._have

    def whole(self, data: bytes) -> bytes | None:
        """The message, where `data` is exactly one uncompressed message and nothing else is held; else None.

        Raises MessageError for one that is too large.
        """
        if self._have or len(data) < PREFIX_BYTES:
            return None
        flag, size = _PREFIX.unpack_from(data)
        if flag or len(data) != size + PREFIX_BYTES:
            return None
        self._check(size)
        return data[PREFIX_BYTES:]

    def add(self, data: bytes) -> None:
        """Take the next piece. Raises MessageError as soon as it is known that the message is too large."""
        self._chunks.append(data)
        self._have += len(data)
        if self._size < 0:
            self._measure()

    def take(self) -> bytes | None:
        """The next message, or None while it is not complete. Raises MessageError."""
        if not self.has_message:
            return None
        held = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        compressed, size = held[0], self._size
        message = held[PREFIX_BYTES:size]
        self._chunks = [held[size:]] if len(held) > size else []
        self._have -= size
        self._size = -1
        self._measure()
        return self._inflated(message) if compressed else message

    def clear(self) -> None:
        """Forget what is held."""
        self._chunks.clear()
        self._have = 0
        self._size = -1

    def _measure(self) -> None:
        if self._have < PREFIX_BYTES:
            return
        if len(self._chunks[0]) < PREFIX_BYTES:
            self._chunks = [b"".join(self._chunks)]
        flag, size = _PREFIX.unpack_from(self._chunks[0])
        if flag > 1:
            raise MessageError(StatusCode.INTERNAL, f"a message begins with {flag}, which is no flag of gRPC's")
        self._check(size)
        self._size = size + PREFIX_BYTES

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise MessageError(
                StatusCode.RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {self._limit})"
            )

    def _inflated(self, message: bytes) -> bytes:
        if self._encoding == "identity":
            raise MessageError(StatusCode.INTERNAL, "a message is compressed, and grpc-encoding does not say how")
        inflater = zlib.decompressobj(_WINDOW_BITS[self._encoding])
        try:
            inflated = inflater.decompress(message, self._limit + 1)
        except zlib.error as error:
            raise MessageError(StatusCode.INTERNAL, f"a message is not {self._encoding}: {error}") from error
        if len(inflated) > self._limit:
            words = f"Received message larger than max (more than {self._limit} bytes when decompressed)"
            raise MessageError(StatusCode.RESOURCE_EXHAUSTED, words)
        if not inflater.eof:
            raise MessageError(StatusCode.INTERNAL, f"a message is not {self._encoding}: it ends too early")
        return inflated


def is_known(encoding: str) -> bool:
    """Whether messages compressed so can be read."""
    return encoding == "identity" or encoding in _WINDOW_BITS
