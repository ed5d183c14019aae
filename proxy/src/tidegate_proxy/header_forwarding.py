"""Which headers of clients a Triton may make parameters of their requests, where a model may read these.

A Triton does so with `--http-header-forward-pattern` and `--grpc-header-forward-pattern`, of which it tells nobody. A
request over HTTP that is scheduled reaches it over gRPC, where the other pattern counts and names are in lower case: so
one whose headers a model may see goes on over HTTP (docs/decisions/0088).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tritonclient.grpc import model_config_pb2

from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.forwarded import OF_AN_EXCHANGE
from tidegate_proxy.transport import Metadata

DEAF_BACKENDS: Final = frozenset({"fil", "onnxruntime", "openvino", "pytorch", "tensorflow", "tensorrt"})
"""Backends that read no parameter of a request that a client is free to name."""
_TRACES: Final = frozenset({"traceparent", "tracestate"})


def may_read_headers(config: model_config_pb2.ModelConfig) -> bool:
    """Whether a model may see the parameters of its requests."""
    return config.backend not in DEAF_BACKENDS or config.runtime.endswith(".py")


def own_headers(config: ServeConfig) -> frozenset[str]:
    """Headers that the configuration has Tidegate read, by their lower-case names."""
    named = {config.app.header, config.clients.key}
    named |= {entry.header.name for entry in config.restricted if entry.header}
    named |= {name for triton in config.tritons for name in triton.headers}
    return frozenset(name for name in named if name) | (_TRACES if config.tracing else frozenset())


def keys_of(metadata: Metadata, patterns: Iterable[str]) -> str:
    """What a Triton with one of these patterns forwards of metadata: requests that differ in it share no batch."""
    pairs = [pair for pair in metadata if any(re.search(pattern, pair[0], re.IGNORECASE) for pattern in patterns)]
    return repr(sorted(pairs, key=repr)) if pairs else ""


@dataclass(frozen=True, slots=True)
class HeaderForwarding:
    """What is known of how the Tritons of a model forward headers of HTTP requests."""

    patterns: tuple[str | None, ...]
    """Their patterns, which match letters of either case; None: not known, empty: there is none."""
    own: frozenset[str] = frozenset()
    """Headers that Tidegate itself reads: they do not count where a pattern is not known."""

    def may_forward(self, name: str) -> bool:
        """Whether one of them may forward a header, named as the client wrote it.

        Where a pattern is not known, the headers that every client sends are taken not to be meant for models.
        """
        return any(
            self._is_unknown(name) if pattern is None else bool(pattern and re.search(pattern, name, re.IGNORECASE))
            for pattern in self.patterns
        )

    def _is_unknown(self, name: str) -> bool:
        return name.lower() not in self.own and name.lower().encode("latin1") not in OF_AN_EXCHANGE
