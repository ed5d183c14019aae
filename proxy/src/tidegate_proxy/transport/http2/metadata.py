"""Headers of HTTP/2 as gRPC's metadata, and back (grpc/doc/PROTOCOL-HTTP2.md)."""

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, unquote

from tidegate_proxy.transport.interface import Metadata

Header = tuple[bytes, bytes]

_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_OF_THE_TRANSPORT: Final = frozenset(
    {b"te", b"content-type", b"grpc-encoding", b"grpc-timeout", b"grpc-accept-encoding", b"connection"}
)
"""Headers that are no metadata: they speak of the connection, or of how messages are written."""
_BLANKS_AT_ENDS: Final = re.compile(rb"^ +| +$")
_WITHIN_A_BYTE: Final = re.compile(rb"%[0-9A-F]?$")
_CUT_OFF: Final = b" ..."
_PRINTABLE: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


def metadata_of(headers: Iterable[Header]) -> list[tuple[str, str | bytes]]:
    """The metadata among a request's headers, as grpcio gives them: binary values decoded, the others as text."""
    metadata: list[tuple[str, str | bytes]] = []
    for name, value in headers:
        if name[:1] == b":" or name in _OF_THE_TRANSPORT:
            continue
        key = name.decode("latin-1")
        if not name.endswith(b"-bin"):
            metadata.append((key, value.decode("latin-1")))
        else:  # several values may stand in one header
            metadata += ((key, _from_base64(part)) for part in value.split(b","))
    return metadata


def headers_of(metadata: Metadata) -> list[Header]:
    """Metadata as headers. Raises ValueError for text that a header cannot carry."""
    headers: list[Header] = []
    for key, value in metadata:
        name = key.encode("ascii")
        if key.endswith("-bin"):
            headers.append((name, b64encode(value if isinstance(value, bytes) else value.encode()).rstrip(b"=")))
        else:
            headers.append((name, value if isinstance(value, bytes) else value.encode("latin-1")))
    return headers


def timeout_s_of(value: bytes) -> float:
    """`grpc-timeout` in seconds. Raises ValueError."""
    found = _TIMEOUT.fullmatch(value)
    if not found:
        raise ValueError(f"grpc-timeout {value!r} is not up to eight digits and one of H, M, S, m, u, n")
    return int(found[1]) * _SECONDS[found[2]]


def timeout_of(seconds: float) -> bytes:
    """Seconds as `grpc-timeout`: rounded up, in the finest unit in which eight digits hold it."""
    for unit in (b"n", b"u", b"m", b"S", b"M"):
        count = max(0, -int(-seconds // _SECONDS[unit]))
        if count < 100_000_000:
            return b"%d%s" % (count, unit)
    return b"%dH" % min(99_999_999, int(seconds / 3600) + 1)


def quoted(details: str, most_bytes: int) -> bytes:
    """A status's details as `grpc-message`: percent-encoded UTF-8, cut off where that is too long to be taken."""
    message = quote(details[:most_bytes], safe=_PRINTABLE, errors="surrogateescape").encode("ascii")
    if b" " in (message[:1], message[-1:]):  # which not every client takes
        message = _BLANKS_AT_ENDS.sub(lambda blanks: b"%20" * len(blanks[0]), message)
    if len(message) <= most_bytes and len(details) <= most_bytes:
        return message
    return _WITHIN_A_BYTE.sub(b"", message[: most_bytes - len(_CUT_OFF)]) + _CUT_OFF


def unquoted(message: bytes) -> str:
    """The details of a status."""
    return unquote(message.decode("latin-1"), errors="replace")


def _from_base64(value: bytes) -> bytes:
    value = value.strip()
    try:
        return b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except binascii.Error:
        return value
