"""Which APIs are not for everybody: what Triton's --grpc-restricted-protocol and --http-restricted-api do.

Codes and words are Triton's. It compares the first header of the name only, and so is done here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from tidegate_proxy.access.left_apis import GRPC_PREFIX, same
from tidegate_proxy.access.refusal import GrpcRefusal, HttpRefusal, http_refusal
from tidegate_proxy.configuration.access import HeaderKey, Restriction
from tidegate_proxy.configuration.apis import METHOD_API, Api, Protocol
from tidegate_proxy.configuration.tritons import TritonAddress

FORBIDDEN: Final = 403


class RestrictionError(Exception):
    """A key that cannot be read; the message names the file and the remedy."""


@dataclass(frozen=True)
class _Key:
    """What opens an API; None: nothing does."""

    name: str
    value: bytes


class Restrictions:
    """The rules, ready to be asked. Immutable: make a new one to change them."""

    def __init__(self, restrictions: Sequence[Restriction]) -> None:
        """Raises RestrictionError for a `value_file` that cannot be used."""
        over_grpc = _keys(restrictions, "grpc")
        self._of_method = {method: over_grpc[api] for method, api in METHOD_API.items() if api in over_grpc}
        self._over_http = _keys(restrictions, "http")

    def refusal(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> GrpcRefusal | None:
        """Why a call of a gRPC method, by its full name, is refused; None if it is not."""
        if method not in self._of_method:
            return None
        key = self._of_method[method]
        if key is None:
            return GrpcRefusal(grpc.StatusCode.PERMISSION_DENIED, "This protocol is closed")
        name = GRPC_PREFIX + key.name
        given = next((value for given_name, value in metadata if given_name == name), None)
        if given is not None and same(given, key.value):
            return None
        return GrpcRefusal(grpc.StatusCode.UNAVAILABLE, f"This protocol is restricted, expecting header '{name}'")

    def http_refusal(self, api: Api | None, headers: Mapping[str, str]) -> HttpRefusal | None:
        """Why a request is refused; None if it is not.

        `api` is that of its route, None where it has none. `headers` are found by their lower-case names.
        """
        if api is None or api not in self._over_http:
            return None
        key = self._over_http[api]
        if key is None:
            return http_refusal(FORBIDDEN, "This API is closed")
        given = headers.get(key.name)
        if given is None or not same(given, key.value):
            return http_refusal(FORBIDDEN, f"This API is restricted, expecting header '{key.name}'")
        return None


def headers_of(triton: TritonAddress) -> tuple[tuple[str, str], ...]:
    """What opens the APIs that a Triton restricts, as over HTTP. Raises RestrictionError."""
    return tuple((name, _read(path)) for name, path in triton.headers.items())


def _keys(restrictions: Sequence[Restriction], protocol: Protocol) -> dict[Api, _Key | None]:
    return {
        api: key
        for restriction in restrictions
        if protocol in restriction.protocols and not restriction.open
        for key in [_key_of(restriction.header)]
        for api in restriction.apis
    }


def _key_of(header: HeaderKey | None) -> _Key | None:
    if header is None:
        return None
    if header.value is not None:
        return _Key(header.name, header.value.get_secret_value().encode())
    assert header.value_file is not None
    return _Key(header.name, _read(header.value_file).encode())


def _read(path: Path) -> str:
    try:
        value = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise RestrictionError(f"{path}: {why}; a value_file holds the value of a header, nothing else") from error
    if not value or not value.isascii() or not value.isprintable():
        raise RestrictionError(f"{path}: it must hold one line of ASCII, the value of a header")
    return value
