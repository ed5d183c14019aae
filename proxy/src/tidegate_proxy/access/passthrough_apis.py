"""APIs that one Triton restricts, and that Tidegate leaves to it: their calls pass with the client's own headers."""

import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate_proxy.configuration.apis import Api, Protocol

Headers = Sequence[tuple[str, str]]

GRPC_PREFIX: Final = "triton-grpc-protocol-"
"""Prefix of the header with which Triton unlocks an API over gRPC."""


@dataclass(frozen=True, slots=True)
class PassthroughApis:
    """APIs that `restricted` of the configuration does not decide about, and those to which Tidegate lacks the key."""

    left: frozenset[tuple[Protocol, Api]] = frozenset()
    """APIs that this Triton decides about: it sees the client's headers and none of Tidegate's."""
    closed: frozenset[Api] = frozenset()
    """APIs that this Triton refuses to Tidegate itself, over gRPC."""
    answers_http_health: bool = False
    """Whether Tidegate answers health over HTTP from what it knows, as `restricted` says who may ask."""
    answered: frozenset[tuple[Protocol, Api]] = frozenset()
    """APIs of which this Triton said whether it restricts them."""
    unknown: frozenset[tuple[Protocol, Api]] = frozenset()
    """APIs of which it did not say so when it was asked last."""
    inference_keys: Mapping[Protocol, str] = field(default_factory=dict)
    """Headers that open inference and that Tidegate has, too, named as over HTTP: their clients are scheduled."""

    @property
    def schedules(self) -> bool:
        """Whether Tidegate can schedule this Triton's inferences."""
        return not self.closed & {"inference", "model-config"}

    @property
    def lists_models(self) -> bool:
        """Whether Tidegate can find out which models this Triton has."""
        return not self.closed >= {"model-repository", "statistics"}

    def shows_key(self, protocol: Protocol, metadata: Iterable[tuple[str, str | bytes]], headers: Headers) -> bool:
        """Whether a client may be scheduled: inference is not left to this Triton, or the client has the key.

        `headers`: what Tidegate has. Triton compares the first header of the name only, and so does this.
        """
        if (protocol, "inference") not in self.left:
            return True
        name = self.inference_keys.get(protocol)
        value = next((value for key, value in headers if key == name), None)
        sought = f"{GRPC_PREFIX}{name}" if protocol == "grpc" else name
        given = next((value for key, value in metadata if key == sought), None)
        return value is not None and given is not None and same(given, value.encode())


def same(given: str | bytes, value: bytes) -> bool:
    """Whether a client's value is the right one, in constant time."""
    return hmac.compare_digest(given if isinstance(given, bytes) else given.encode(errors="surrogatepass"), value)
