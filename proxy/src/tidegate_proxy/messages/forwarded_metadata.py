"""Metadata and headers of clients that are forwarded to a Triton, or visible to a model as parameters."""

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tritonclient.grpc import model_config_pb2

from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.transport import Metadata

_OF_A_CONNECTION: Final = frozenset({"content-type", "te"})
"""Keys of what concerns the client's own connection."""
_OF_GRPC: Final = ("grpc-", ":")
"""How the other keys begin that do."""
OF_AN_EXCHANGE: Final = frozenset(
    {
        b"accept", b"accept-encoding", b"connection", b"content-encoding", b"content-length", b"content-type",
        b"expect", b"host", b"inference-header-content-length", b"keep-alive", b"te", b"transfer-encoding",
        b"upgrade", b"user-agent",
    }
)  # fmt: skip
"""HTTP headers that concern only how one request and its answer are transferred."""
MAX_VALUE: Final = 8000
"""Largest length of a value in bytes. Triton's HTTP server closes the connection over a longer one."""
_MOST_BYTES: Final = 7 << 10
"""The most bytes of metadata: with half a KiB of its own, Triton's gRPC server refuses some beyond 8 KiB, all of 16."""
_BYTES_OF_A_PAIR: Final = 32
"""Bytes that HTTP/2 counts for a header beside its name and value (RFC 9113, section 6.5.2)."""
_IN_KEYS: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-.")
_IN_VALUES: Final = frozenset(range(0x20, 0x7F))


def forwarded(metadata: Metadata, hidden: Container[str]) -> list[tuple[str, str | bytes]]:
    """Return the client's metadata without fields that concern only its connection. `hidden`: names not to forward."""
    return [
        (key, value)
        for key, value in metadata
        if key not in _OF_A_CONNECTION and not key.startswith(_OF_GRPC) and key not in hidden
    ]


def forwarded_with_all(several: Sequence[Metadata], hidden: Container[str]) -> list[tuple[str, str | bytes]]:
    """Return the metadata to forward with a batch: the pairs that all requests share."""
    common = forwarded(several[0], hidden)
    for metadata in several[1:]:
        if not common:
            break
        common = [pair for pair in common if pair in metadata]
    return common


def fits(metadata: Metadata) -> bool:
    """Return whether Triton's gRPC server accepts metadata of this size, as its HTTP server does."""
    return sum(len(key) + len(value) + _BYTES_OF_A_PAIR for key, value in metadata) <= _MOST_BYTES


def metadata_of(headers: Iterable[tuple[bytes, bytes]]) -> Metadata:
    """Convert HTTP headers, names in lower case, to metadata, without connection headers and names invalid in gRPC."""
    return tuple(
        (name.decode(), value.decode() or " ")  # as Triton reads an empty value
        for name, value in headers
        if name not in OF_AN_EXCHANGE
        and not name.startswith(b"grpc-")
        and not name.endswith(b"-bin")
        and len(value) <= MAX_VALUE
        and _IN_KEYS.issuperset(name)
        and _IN_VALUES.issuperset(value)
    )


DEAF_BACKENDS: Final = frozenset({"fil", "onnxruntime", "openvino", "pytorch", "tensorflow", "tensorrt"})
"""Backends that ignore request parameters whose names clients can choose."""
_TRACES: Final = frozenset({"traceparent", "tracestate"})


def may_read_headers(config: model_config_pb2.ModelConfig) -> bool:
    """Return whether a model can see the parameters of its requests."""
    return config.backend not in DEAF_BACKENDS or config.runtime.endswith(".py")


def own_headers(config: ServeConfig) -> frozenset[str]:
    """Return the lower-case names of headers that Tidegate reads by its configuration."""
    named = {config.app.header, config.clients.key}
    named |= {entry.header.name for entry in config.restricted if entry.header}
    named |= {name for triton in config.tritons for name in triton.headers}
    return frozenset(name for name in named if name) | (_TRACES if config.tracing else frozenset())


def keys_of(metadata: Metadata, patterns: Iterable[str]) -> str:
    """Return the metadata that a Triton with one of these patterns forwards: requests that differ in it share no
    batch."""
    pairs = [pair for pair in metadata if any(re.search(pattern, pair[0], re.IGNORECASE) for pattern in patterns)]
    return repr(sorted(pairs, key=repr)) if pairs else ""


@dataclass(frozen=True, slots=True)
class HeaderForwarding:
    """Known patterns by which the Tritons of a model forward HTTP headers."""

    patterns: tuple[str | None, ...]
    """Header patterns, case-insensitive; None: unknown, "": none."""
    own: frozenset[str] = frozenset()
    """Headers that Tidegate itself reads: they are ignored where a pattern is unknown."""

    def may_forward(self, name: str) -> bool:
        """Return whether a Triton may forward a header, with the name as the client wrote it.

        If a pattern is unknown, common headers that every client sends count as not forwarded.
        """
        return any(
            self._is_unknown(name) if pattern is None else bool(pattern and re.search(pattern, name, re.IGNORECASE))
            for pattern in self.patterns
        )

    def _is_unknown(self, name: str) -> bool:
        return name.lower() not in self.own and name.lower().encode("latin1") not in OF_AN_EXCHANGE
