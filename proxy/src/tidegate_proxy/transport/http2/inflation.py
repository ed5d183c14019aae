"""A compressed message, inflated step by step: a little of what is sent may be very much in the end."""

import zlib
from typing import Final

from grpc import StatusCode

ACCEPTED_ENCODINGS: Final = b"identity, deflate, gzip"
_WINDOW_BITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class MessageError(Exception):
    """A message that is not taken, with the status that says so."""

    def __init__(self, code: StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class Inflation:
    """One message. A step may be made in any thread, one at a time."""

    __slots__ = ("_data", "_encoding", "_inflater", "_limit", "_room", "is_done", "wire_bytes")

    def __init__(self, encoding: str, data: bytes, limit_bytes: int) -> None:
        """`limit_bytes`: of the whole message. Raises MessageError where it is not said how `data` is compressed."""
        if encoding == "identity":
            raise MessageError(StatusCode.INTERNAL, "a message is compressed, and grpc-encoding does not say how")
        self._encoding = encoding
        self._data = data
        self.wire_bytes = len(data)
        """Before it is inflated."""
        self._limit = limit_bytes
        self._room = limit_bytes
        self._inflater = zlib.decompressobj(_WINDOW_BITS[encoding])
        self.is_done = False

    def step(self, most_bytes: int) -> bytes:
        """The next piece, of up to so many bytes. Raises MessageError for too large a message, and for none."""
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
    """Whether messages compressed so can be read."""
    return encoding == "identity" or encoding in _WINDOW_BITS
