"""Compressed bodies, as Triton reads and writes them: gzip and deflate, asked for by name."""

import re
import zlib
from typing import Final

from tidegate_proxy.envelope import NotSchedulable

_NUMBER = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WINDOW_BITS: Final = {b"gzip": 31, b"deflate": 15}
EITHER: Final = 47
"""Tells zlib to see for itself which of the two it has before it, as Triton does."""


class TooLarge(Exception):
    """A body exceeds the limit."""


def response_encoding(accept_encoding: bytes) -> bytes:
    """The encoding that Triton chooses for this Accept-Encoding: gzip, deflate, or none (b"")."""
    chosen, highest = "identity", 0.0
    for entry in accept_encoding.decode("latin1").split(","):
        name, weighted, weight_text = entry.lstrip(" ").partition(";q=")
        if name not in ("identity", "gzip", "deflate"):
            continue
        number = _NUMBER.match(weight_text)
        if weighted and not number:
            continue
        weight = float(number[0]) if number else 1.0
        if weight > highest:
            chosen, highest = name, weight
    return b"" if chosen == "identity" else chosen.encode()


def compress(pieces: list[bytes | memoryview], encoding: bytes) -> bytes:
    """The pieces as one compressed body, with zlib's own settings, as Triton has them."""
    compressor = zlib.compressobj(wbits=_WINDOW_BITS[encoding])
    return b"".join([*map(compressor.compress, pieces), compressor.flush()])


def decompress(body: bytes, limit: int | None) -> bytes:
    """The content of a gzip or deflate body; stops at `limit` bytes, so that a small body cannot fill the memory.

    Raises TooLarge beyond the limit, NotSchedulable for what is not one whole compressed stream.
    """
    stream = zlib.decompressobj(wbits=EITHER)
    try:
        content = stream.decompress(body, 0 if limit is None else limit + 1)
    except zlib.error as error:
        raise NotSchedulable("the body is not compressed as its header says") from error
    if limit is not None and len(content) > limit:
        raise TooLarge
    if not stream.eof or stream.unused_data:
        raise NotSchedulable("the compressed body is truncated, or something follows it")
    return content
