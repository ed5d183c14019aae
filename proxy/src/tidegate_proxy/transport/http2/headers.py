"""gRPC headers in HTTP/2: metadata, timeouts, the opening of a call, statuses, in both directions.

See grpc/doc/PROTOCOL-HTTP2.md and http-grpc-status-mapping.md. A header of more than 64 KiB makes libnghttp2 close the
connection with all its calls; a model's error message can be of any length, and Triton sends it in one header. So long
ones are truncated before libnghttp2 sees them.
"""

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from grpc import StatusCode
from ngh2.enums import ErrorCode

from tidegate_proxy.transport.http2.message import is_known
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
    """Return the metadata among a request's headers, as grpcio does: binary values decoded, the others as text."""
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
    """Convert metadata to headers. Raises ValueError for text that a header cannot carry."""
    headers: list[Header] = []
    for key, value in metadata:
        name = key.encode("ascii")
        if key.endswith("-bin"):
            headers.append((name, b64encode(value if isinstance(value, bytes) else value.encode()).rstrip(b"=")))
        else:
            headers.append((name, value if isinstance(value, bytes) else value.encode("latin-1")))
    return headers


def timeout_s_of(value: bytes) -> float:
    """Convert `grpc-timeout` to seconds. Raises ValueError."""
    found = _TIMEOUT.fullmatch(value)
    if not found:
        raise ValueError(f"grpc-timeout {value!r} is not up to eight digits and one of H, M, S, m, u, n")
    return int(found[1]) * _SECONDS[found[2]]


def timeout_of(seconds: float) -> bytes:
    """Convert seconds to `grpc-timeout`: rounded up, in the finest unit that needs at most eight digits."""
    for unit in (b"n", b"u", b"m", b"S", b"M"):
        count = max(0, -int(-seconds // _SECONDS[unit]))
        if count < 100_000_000:
            return b"%d%s" % (count, unit)
    return b"%dH" % min(99_999_999, int(seconds / 3600) + 1)


def quoted(details: str, most_bytes: int) -> bytes:
    """Encode a status's details as `grpc-message`: percent-encoded UTF-8, truncated if too long for the receiver."""
    message = quote(details[:most_bytes], safe=_PRINTABLE, errors="surrogateescape").encode("ascii")
    if b" " in (message[:1], message[-1:]):  # which not every client takes
        message = _BLANKS_AT_ENDS.sub(lambda blanks: b"%20" * len(blanks[0]), message)
    if len(message) <= most_bytes and len(details) <= most_bytes:
        return message
    return _WITHIN_A_BYTE.sub(b"", message[: most_bytes - len(_CUT_OFF)]) + _CUT_OFF


def unquoted(message: bytes) -> str:
    """Decode the details of a status."""
    return unquote(message.decode("latin-1"), errors="replace")


def _from_base64(value: bytes) -> bytes:
    value = value.strip()
    try:
        return b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except binascii.Error:
        return value


STATUS_BY_NUMBER: Final = {code.value[0]: code for code in StatusCode}
"""gRPC's status codes by their number."""
_OF_HTTP: Final = {
    400: StatusCode.INTERNAL,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.UNIMPLEMENTED,
    429: StatusCode.UNAVAILABLE,
    502: StatusCode.UNAVAILABLE,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.UNAVAILABLE,
}
_OF_RESET: Final = {
    ErrorCode.REFUSED_STREAM: StatusCode.UNAVAILABLE,
    ErrorCode.CANCEL: StatusCode.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: StatusCode.PERMISSION_DENIED,
}


def code_of_http(status: int) -> StatusCode:
    """Return the gRPC code for an HTTP status of a response that is not gRPC."""
    return _OF_HTTP.get(status, StatusCode.UNKNOWN)


def code_of_reset(error_code: int) -> StatusCode:
    """Return the gRPC code for a stream reset with an HTTP/2 error code."""
    return _OF_RESET.get(ErrorCode(error_code), StatusCode.INTERNAL) if error_code <= 0xD else StatusCode.INTERNAL


def name_of(error_code: int) -> str:
    """Return the name of an HTTP/2 error code."""
    return ErrorCode(error_code).name if error_code <= 0xD else f"error {error_code:#x}"


REMEMBERED_BYTES: Final = 1 << 12
"""Bytes of headers that each connection may keep for the next call."""


@dataclass(frozen=True, slots=True)
class CallHeaders:
    """Parsed headers of a call, shared between calls."""

    headers: Sequence[Header] = ()
    method: str = ""
    """Full method name, such as `/inference.GRPCInferenceService/ModelInfer`."""
    metadata: Metadata = ()
    """Metadata in gRPC form, keys in lower case."""
    encoding: str = "identity"
    """Compression of the messages."""
    timeout_s: float | None = None
    """Time limit of the client in seconds, if it has one."""
    http_status: bytes = b""
    """HTTP status for a request that is not gRPC; empty for gRPC."""
    error: tuple[StatusCode, str] | None = None
    """Error with which the call is rejected; None: it is accepted."""

    @property
    def is_small(self) -> bool:
        """Whether the headers are small enough to be kept."""
        return sum(len(name) + len(value) for name, value in self.headers) <= REMEMBERED_BYTES


def opening_of(headers: Sequence[Header]) -> CallHeaders:
    """Parse the headers of a call."""
    method = path = content_type = timeout = b""
    encoding = b"identity"
    for name, value in headers:
        if name == b":path":
            path = value
        elif name == b":method":
            method = value
        elif name == b"content-type":
            content_type = value
        elif name == b"grpc-timeout":
            timeout = value
        elif name == b"grpc-encoding":
            encoding = value
    if method != b"POST":
        return CallHeaders(headers, http_status=b"405")
    if not content_type.startswith(b"application/grpc"):
        return CallHeaders(headers, http_status=b"415")
    timeout_s, error, compressed_with = None, None, encoding.decode("latin-1")
    if not is_known(compressed_with):
        error = (StatusCode.UNIMPLEMENTED, f"messages compressed with {compressed_with!r} cannot be read here")
    try:
        timeout_s = timeout_s_of(timeout) if timeout else None
    except ValueError as wrong:
        error = (StatusCode.INTERNAL, str(wrong))
    metadata = tuple(metadata_of(headers))
    return CallHeaders(headers, path.decode("latin-1"), metadata, compressed_with, timeout_s, error=error)


_FRAME_HEAD: Final = 9
_HEADERS: Final = 0x1
_END_HEADERS: Final = 0x4
_PADDED: Final = 0x8
_PRIORITY: Final = 0x20
MAX_FRAME: Final = 1 << 15
"""Size in bytes of a header block in one frame from which it is examined."""
KEPT_BYTES: Final = 1 << 13
"""Largest name or value in bytes: more than HPACK's table (4 KiB), so that a decoder does not store it either."""


class HeaderBlocks:
    """Filter for the bytes of a connection that shortens long header blocks."""

    def __init__(self) -> None:
        self._left = 0
        """Bytes of the current frame that are still to come."""
        self._head = bytearray()
        """The beginning of a frame, as far as it has come, where it has not come whole."""
        self._block: bytearray | None = None
        """Part of a long header block received so far; None: nothing is held back."""
        self._opening = b""
        """The head of the frame that block began with."""
        self._is_last = False
        """Whether the current frame ends the block."""

    def shortened(self, data: memoryview) -> memoryview | bytes:
        """Return the bytes to pass to libnghttp2; some may be held back until more arrive."""
        if self._block is None and not self._head:
            at, size = self._left, len(data)
            while at + _FRAME_HEAD <= size:
                length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
                if data[at + 3] == _HEADERS and (length > MAX_FRAME or not data[at + 4] & _END_HEADERS):
                    break
                at += _FRAME_HEAD + length
            else:
                if at >= size:
                    self._left = at - size
                    return data
        return b"".join(self._pieces(data))

    def _pieces(self, data: memoryview) -> list[memoryview | bytes]:
        pieces: list[memoryview | bytes] = []
        while data:
            if not self._left:
                missing = _FRAME_HEAD - len(self._head)
                self._head += data[:missing]
                data = data[missing:]
                if len(self._head) == _FRAME_HEAD:
                    pieces.append(self._begun(bytes(self._head)))
                    self._head.clear()
                continue
            payload, data = data[: self._left], data[self._left :]
            self._left -= len(payload)
            if self._block is None:
                pieces.append(payload)
            else:
                self._block += payload
                if not self._left and self._is_last:
                    pieces.append(self._ended())
        return pieces

    def _begun(self, head: bytes) -> bytes:
        """A frame begins; what leaves of that."""
        self._left, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
        self._is_last = bool(flags & _END_HEADERS)
        if self._block is None:
            if kind != _HEADERS or (self._is_last and self._left <= MAX_FRAME):
                return head
            self._block, self._opening = bytearray(), head
        return b"" if self._left or not self._is_last else self._ended()

    def _ended(self) -> bytes:
        """A block is there as a whole; the frame that leaves in its place."""
        assert self._block is not None
        block, flags, stream = bytes(self._block), self._opening[4], self._opening[5:]
        self._block = None
        if flags & _PADDED:
            first = int.from_bytes(self._opening[:3])  # what continues it has no padding
            block = block[1 : first - block[0]] + block[first:]
        if flags & _PRIORITY:
            block = block[5:]
        block = shorter(block)
        flags = flags & ~(_PADDED | _PRIORITY) | _END_HEADERS
        return len(block).to_bytes(3) + bytes((_HEADERS, flags)) + stream + block


def shorter(block: bytes) -> bytes:
    """Truncate long names and values in a header block (RFC 7541, section 6).

    An invalid block is returned unmodified: its decoder reports the error.
    """
    fields, at = bytearray(), 0
    try:
        while at < len(block):
            kind = block[at]
            if kind & 0x80:  # a header from the table
                literals, start, (index, at) = 0, at, _integer(block, at, 7)
            elif kind & 0xE0 == 0x20:  # the table's size
                literals, start, (index, at) = 0, at, _integer(block, at, 5)
            else:
                start, (index, at) = at, _integer(block, at, 6 if kind & 0x40 else 4)
                literals = 1 if index else 2
            fields += block[start:at]
            for _ in range(literals):
                is_coded = block[at] & 0x80
                length, at = _integer(block, at, 7)
                text = block[at : at + length]
                at += length
                if length <= KEPT_BYTES:
                    fields += _length(length, is_coded) + text
                else:  # Huffman's code ends anywhere within a byte
                    text = b"?" * KEPT_BYTES if is_coded else text[: KEPT_BYTES - len(_CUT_OFF)] + _CUT_OFF
                    fields += _length(len(text), 0) + text
    except IndexError:
        return block
    return bytes(fields) if at == len(block) else block


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """Return the number there, with this many bits in its first byte, and where it ends. Raises IndexError."""
    most = (1 << bits) - 1
    value, at = block[at] & most, at + 1
    if value < most:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        value, shift, at = value + ((byte & 0x7F) << shift), shift + 7, at + 1
        if byte < 0x80:
            return value, at


def _length(value: int, is_coded: int) -> bytes:
    """Return the encoded length of a text; `is_coded`: 0x80 if Huffman's code is used."""
    if value < 0x7F:
        return bytes((is_coded | value,))
    written = bytearray((is_coded | 0x7F,))
    value -= 0x7F
    while value >= 0x80:
        written.append(0x80 | value & 0x7F)
        value >>= 7
    written.append(value)
    return bytes(written)
