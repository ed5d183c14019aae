"""APIs that a Triton restricts and Tidegate leaves to it: their calls bypass Tidegate with the client's own headers."""

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
    """APIs that the configuration's `restricted` does not cover, and those for which Tidegate lacks the key."""

    left: frozenset[tuple[Protocol, Api]] = frozenset()
    """APIs that this Triton controls: it receives the client's headers and none of Tidegate's."""
    closed: frozenset[Api] = frozenset()
    """APIs that this Triton denies to Tidegate itself, over gRPC."""
    answers_http_health: bool = False
    """Whether Tidegate answers HTTP health requests itself, under the rules of `restricted`."""
    answered: frozenset[tuple[Protocol, Api]] = frozenset()
    """APIs for which this Triton reported whether it restricts them."""
    unknown: frozenset[tuple[Protocol, Api]] = frozenset()
    """APIs for which it did not report that when it was last asked."""
    inference_keys: Mapping[Protocol, str] = field(default_factory=dict)
    """Headers that open inference and that Tidegate has too, named as over HTTP: requests with them are scheduled."""

    @property
    def schedules(self) -> bool:
        """Whether Tidegate can schedule this Triton's inferences."""
        return not self.closed & {"inference", "model-config"}

    @property
    def lists_models(self) -> bool:
        """Whether Tidegate can list this Triton's models."""
        return not self.closed >= {"model-repository", "statistics"}

    def shows_key(self, protocol: Protocol, metadata: Iterable[tuple[str, str | bytes]], headers: Headers) -> bool:
        """Return whether a client's requests may be scheduled: inference is not restricted, or the client has the key.

        `protocol`: `grpc` or `http`; `metadata`: headers of the client's call; `headers`: Tidegate's own. Like Triton,
        this compares only the first header of the name.
        """
        if (protocol, "inference") not in self.left:
            return True
        name = self.inference_keys.get(protocol)
        value = next((value for key, value in headers if key == name), None)
        sought = f"{GRPC_PREFIX}{name}" if protocol == "grpc" else name
        given = next((value for key, value in metadata if key == sought), None)
        return value is not None and given is not None and same(given, value.encode())


def same(given: str | bytes, value: bytes) -> bool:
    """Compare a client's value with the right one in constant time."""
    return hmac.compare_digest(given if isinstance(given, bytes) else given.encode(errors="surrogatepass"), value)
