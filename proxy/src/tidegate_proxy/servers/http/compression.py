"""Compressed bodies as in Triton: gzip and deflate, selected by name."""

import re
import zlib
from collections.abc import Callable, Iterator
from typing import Final

from tidegate_proxy.messages.request import NotSchedulable

_NUMBER = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WINDOW_BITS: Final = {b"gzip": 31, b"deflate": 15}
COMPRESSED_ENCODINGS: Final = frozenset(_WINDOW_BITS)
"""Content encodings of compressed bodies."""
_EITHER: Final = 47
"""Tells zlib to see for itself which of the two it has before it, as Triton does."""

_STEP: Final = 1 << 18
"""Bytes that are inflated, and held beside the result, at a time."""


class TooLarge(Exception):
    """Error: a body exceeds the limit."""


def response_encoding(accept_encoding: bytes) -> bytes:
    """Return the encoding that Triton chooses for this Accept-Encoding: gzip, deflate, or none (b"")."""
    chosen, highest = "identity", 0.0
    for entry in accept_encoding.decode("latin1").split(","):
        name, weighted, weight_text = entry.lstrip(" ").partition(";q=")
        if name != "identity" and name.encode() not in COMPRESSED_ENCODINGS:
            continue
        number = _NUMBER.match(weight_text)
        if weighted and not number:
            continue
        weight = float(number[0]) if number else 1.0
        if weight > highest:
            chosen, highest = name, weight
    return b"" if chosen == "identity" else chosen.encode()


def compress(pieces: list[bytes | memoryview], encoding: bytes) -> bytes:
    """Return the pieces as one compressed body, with zlib's default settings, as in Triton."""
    compressor = zlib.compressobj(wbits=_WINDOW_BITS[encoding])
    return b"".join([*map(compressor.compress, pieces), compressor.flush()])


def decompress(body: bytes, limit: int | None, hold: Callable[[int], None]) -> bytes:
    """Decompress a gzip or deflate body piece by piece, so that a small body cannot fill the memory.

    `hold` is called for every piece before the next one, and may raise. Raises TooLarge beyond `limit` bytes, and
    NotSchedulable for anything but one complete stream.
    """
    pieces: list[bytes] = []
    inflation = BodyDecompression(limit)
    for piece in inflation.pieces(body):
        hold(len(piece))
        pieces.append(piece)
    if not inflation.is_whole:
        raise NotSchedulable("the compressed body is truncated, or something follows it")
    return b"".join(pieces)


class BodyDecompression:
    """Incremental decompression of a body. Raises TooLarge if the result exceeds the limit."""

    def __init__(self, limit: int | None) -> None:
        self._stream = zlib.decompressobj(wbits=_EITHER)
        self._limit = limit
        self._inflated = 0
        self._is_followed = False

    @property
    def is_whole(self) -> bool:
        """Whether exactly one complete stream was read."""
        return self._stream.eof and not self._stream.unused_data and not self._is_followed

    def pieces(self, compressed: bytes) -> Iterator[bytes]:
        """Return the decompressed pieces, of bounded size, of a part of the body.

        Raises NotSchedulable if it is not compressed, or if data follows the end of the stream.
        """
        view = memoryview(compressed)
        for start in range(0, len(view), _STEP):
            left: bytes | memoryview = view[start : start + _STEP]
            self._is_followed |= self._stream.eof
            while not self._stream.eof:
                try:
                    piece = self._stream.decompress(left, _STEP)
                except zlib.error as error:
                    raise NotSchedulable("the body is not compressed as its header says") from error
                self._inflated += len(piece)
                if self._limit is not None and self._inflated > self._limit:
                    raise TooLarge
                yield piece
                left = self._stream.unconsumed_tail
                if not left and len(piece) < _STEP:
                    break
