"""What a call's headers say: read once for all calls in a row that say the same, as most of a connection do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from grpc import StatusCode

from tidegate_proxy.transport.http2.inflation import is_known
from tidegate_proxy.transport.http2.metadata import Header, metadata_of, timeout_s_of
from tidegate_proxy.transport.interface import Metadata

REMEMBERED_BYTES: Final = 1 << 12
"""The most bytes of headers that are kept for the next call: so much may each connection hold."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The headers of a call, read. Calls share it."""

    headers: Sequence[Header] = ()
    method: str = ""
    """Full name, such as `/inference.GRPCInferenceService/ModelInfer`."""
    metadata: Metadata = ()
    """As gRPC has it, keys in lower case."""
    encoding: str = "identity"
    """What messages are compressed with that are."""
    timeout_s: float | None = None
    """The client's time limit, if it has one."""
    http_status: bytes = b""
    """What HTTP says of a request that is no gRPC; empty: it is."""
    error: tuple[StatusCode, str] | None = None
    """Why the call cannot be taken; None: it can."""

    @property
    def is_small(self) -> bool:
        """Whether it is worth being kept."""
        return sum(len(name) + len(value) for name, value in self.headers) <= REMEMBERED_BYTES


def opening_of(headers: Sequence[Header]) -> Opening:
    """What these headers say."""
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
        return Opening(headers, http_status=b"405")
    if not content_type.startswith(b"application/grpc"):
        return Opening(headers, http_status=b"415")
    timeout_s, error, compressed_with = None, None, encoding.decode("latin-1")
    if not is_known(compressed_with):
        error = (StatusCode.UNIMPLEMENTED, f"messages compressed with {compressed_with!r} cannot be read here")
    try:
        timeout_s = timeout_s_of(timeout) if timeout else None
    except ValueError as wrong:
        error = (StatusCode.INTERNAL, str(wrong))
    metadata = tuple(metadata_of(headers))
    return Opening(headers, path.decode("latin-1"), metadata, compressed_with, timeout_s, error=error)
