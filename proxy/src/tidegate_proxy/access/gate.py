"""Access control gate: decides whether a call is allowed and which client it belongs to.

Credentials are checked first (bearer tokens and API keys from files: one a line, in plain text or as `sha256:` and 64
hexadecimal digits; blank lines and comments are ignored), then restricted APIs, like Triton's
--grpc-restricted-protocol and --http-restricted-api: codes and messages are Triton's, and as with Triton only the first
header of a name counts. The dashboard is open to clients that may see its data.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import grpc

from tidegate_proxy.access.passthrough_apis import GRPC_PREFIX, same
from tidegate_proxy.access.tenants import Tenant, Tenants, why_rejected
from tidegate_proxy.base.labels import MAX_LABEL_CHARACTERS, digest, may_be_secret
from tidegate_proxy.base.outcome import RequestFailed
from tidegate_proxy.configuration.access import ApiRestriction, AuthenticationConfig, HeaderKey
from tidegate_proxy.configuration.addresses import is_local, names_this_machine
from tidegate_proxy.configuration.apis import METHOD_API, Api, Protocol
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.tritons import TritonAddress


class GrpcRefusal(NamedTuple):
    """Status and message with which a gRPC call is rejected."""

    code: grpc.StatusCode
    details: str


class HttpRefusal(NamedTuple):
    """Status and message with which an HTTP request is rejected."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...]


def http_refusal(status: int, words: str, *headers: tuple[str, str]) -> HttpRefusal:
    """Build a rejection in Triton's format: JSON without blanks, under Triton's content type."""
    body = json.dumps({"error": words}, separators=(",", ":"), ensure_ascii=False).encode()
    return HttpRefusal(status, body, (("content-type", "text/plain"), *headers))


Find = Callable[[str], str | bytes | None]
"""Function that returns the first header of a lower-case name, or None."""
HTTP_UNAUTHORIZED: Final = 401
_SCHEME: Final = "bearer "
_COMMENT: Final = re.compile(r"(?:^|[ \t])#.*")
_CREDENTIAL: Final = re.compile(r"""[!$-&(-+\--~]+""")
"""Quotes, commas and `#` are those of another format, or the rest of a line that was not meant to be a comment."""
_OTHER_HASH: Final = re.compile(r"(?:sha-?\d+|md5|bcrypt|argon2\w*|blake\w*):|\$\w+\$", re.IGNORECASE)
_HASHED: Final = re.compile(r"sha256:([0-9a-fA-F]{64})")


class CredentialFileError(Exception):
    """Error: a file of tokens or API keys is invalid; the message names file, line and remedy, never the secret."""


class Authenticator:
    """Accepted credentials. Immutable: create a new one when the files have changed."""

    def __init__(self, config: AuthenticationConfig) -> None:
        """Read the credential files. Raises CredentialFileError."""
        self._tokens = _credentials_in(config.tokens_file) if config.tokens_file else frozenset()
        self._api_keys = _credentials_in(config.api_keys_file) if config.api_keys_file else frozenset()
        self._header = config.header
        self._open = frozenset(config.open)
        self._open_methods = frozenset(method for method, api in METHOD_API.items() if api in self._open)
        ways = ["'authorization: Bearer TOKEN'"] * bool(self._tokens) + [f"'{self._header}: KEY'"] * bool(
            self._api_keys
        )
        self._missing = f"Authentication required, expecting header {' or '.join(ways)}"
        self.headers: Final = frozenset({"authorization", self._header})
        """Lower-case names of the headers that carry credentials; they are not forwarded to a Triton."""

    def refusal(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> GrpcRefusal | None:
        """Return why a call of a gRPC method, given by its full name, is rejected, or None if it is allowed."""
        if method in self._open_methods:
            return None
        first: dict[str, str | bytes] = {}
        for name, value in metadata:
            if name in self.headers:
                first.setdefault(name, value)
        words = self._why_not(first.get)
        return None if words is None else GrpcRefusal(grpc.StatusCode.UNAUTHENTICATED, words)

    def http_refusal(self, api: Api | None, headers: Mapping[str, str]) -> HttpRefusal | None:
        """Return why an HTTP request is rejected, or None if it is allowed.

        `api`: API of its route, or None. `headers`: by lower-case name.
        """
        if api in self._open:
            return None
        words = self._why_not(headers.get)
        if words is None:
            return None
        # RFC 6750, section 3; for API keys there is no scheme that anybody has registered.
        scheme = "Bearer" if self._tokens else "ApiKey"
        error = "" if words is self._missing or not self._tokens else ', error="invalid_token"'
        return http_refusal(HTTP_UNAUTHORIZED, words, ("www-authenticate", f'{scheme} realm="tidegate"{error}'))

    def credential(self, find: Find) -> bytes | None:
        """Return the digest of the valid credential that a call carries, in any accepted form, or None.

        `find` returns the first header of a lower-case name.
        """
        # Digests are looked up: the time says nothing about a secret, as no client can choose a digest.
        if (key := find(self._header)) is not None and (digest := _digest(key.strip())) in self._api_keys:
            return digest
        if (authorization := find("authorization")) is not None:
            text = authorization.decode(errors="replace") if isinstance(authorization, bytes) else authorization
            digest = _digest(text[len(_SCHEME) :].strip())
            if text[: len(_SCHEME)].lower() == _SCHEME and digest in self._tokens:
                return digest
        return None

    def _why_not(self, find: Find) -> str | None:
        if self.credential(find) is not None:
            return None
        if all(find(name) is None for name in self.headers):
            return self._missing
        return "Authentication failed, the credential is not known"


def _digest(secret: str | bytes) -> bytes:
    return hashlib.sha256(secret if isinstance(secret, bytes) else secret.encode(errors="surrogatepass")).digest()


def _credentials_in(path: Path) -> frozenset[bytes]:
    """Digests of the credentials in a file: one a line, in clear or as `sha256:` and 64 hexadecimal digits.

    Blank lines do not count, nor do comments, which begin with `#` at a line's beginning or after a blank.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise CredentialFileError(f"{path}: {why}; it must hold one token or API key per line") from error
    digests = set()
    for number, line in enumerate(lines, 1):
        words = _COMMENT.sub("", line).split()
        if not words:
            continue
        if len(words) > 1 or not _CREDENTIAL.fullmatch(words[0]):
            raise CredentialFileError(
                f"{path}, line {number}: a credential is one word of ASCII without quotes, commas or '#'; "
                "a comment begins with '#' at the line's beginning or after a blank"
            )
        if _OTHER_HASH.match(words[0]) and not words[0].startswith("sha256:"):
            raise CredentialFileError(
                f"{path}, line {number}: hashes are written sha256: and 64 hexadecimal digits, no other way"
            )
        hashed = _HASHED.fullmatch(words[0])
        if words[0].startswith("sha256:") and not hashed:
            raise CredentialFileError(f"{path}, line {number}: after sha256: there must be 64 hexadecimal digits")
        digests.add(bytes.fromhex(hashed[1]) if hashed else _digest(words[0]))
    if not digests:
        raise CredentialFileError(f"{path}: it has no credential, so that no client could call")
    return frozenset(digests)


HTTP_FORBIDDEN: Final = 403


class RestrictionError(Exception):
    """Error: a key of a restricted API cannot be read; the message names the file and the remedy."""


@dataclass(frozen=True)
class _Key:
    """Header that unlocks an API; None: nothing unlocks it."""

    name: str
    value: bytes


class Restrictions:
    """Rules for restricted APIs. Immutable: create a new one to change them."""

    def __init__(self, restrictions: Sequence[ApiRestriction]) -> None:
        """Create the restrictions. Raises RestrictionError if a `value_file` cannot be used."""
        over_grpc = _keys(restrictions, "grpc")
        self._of_method = {method: over_grpc[api] for method, api in METHOD_API.items() if api in over_grpc}
        self._over_http = _keys(restrictions, "http")

    def refusal(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> GrpcRefusal | None:
        """Return why a call of a gRPC method, given by its full name, is rejected, or None if it is allowed."""
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
        """Return why an HTTP request is rejected, or None if it is allowed.

        `api`: API of its route, or None. `headers`: by lower-case name.
        """
        if api is None or api not in self._over_http:
            return None
        key = self._over_http[api]
        if key is None:
            return http_refusal(HTTP_FORBIDDEN, "This API is closed")
        given = headers.get(key.name)
        if given is None or not same(given, key.value):
            return http_refusal(HTTP_FORBIDDEN, f"This API is restricted, expecting header '{key.name}'")
        return None


def headers_of(triton: TritonAddress) -> tuple[tuple[str, str], ...]:
    """Return the headers that unlock the APIs that a Triton restricts, in HTTP form. Raises RestrictionError."""
    return tuple((name, _header_value(path)) for name, path in triton.headers.items())


def _keys(restrictions: Sequence[ApiRestriction], protocol: Protocol) -> dict[Api, _Key | None]:
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
    return _Key(header.name, _header_value(header.value_file).encode())


def _header_value(path: Path) -> str:
    try:
        value = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise RestrictionError(f"{path}: {why}; a value_file holds the value of a header, nothing else") from error
    if not value or not value.isascii() or not value.isprintable():
        raise RestrictionError(f"{path}: it must hold one line of ASCII, the value of a header")
    return value


_DIGITS: Final = 16
"""How many digits of a credential's digest are used."""


class ClientIdentity:
    """Identification of clients by the configured rule. Immutable."""

    def __init__(
        self, config: ServeConfig, authenticator: Authenticator | None = None, tenants: Tenants | None = None
    ) -> None:
        """Prepare the rule. `authenticator`: checks credentials; None: they were checked elsewhere."""
        self._tenants = tenants if tenants and tenants.by != "application" else None
        self._api_key_header = config.authentication.header if config.authentication else "x-api-key"
        self._by = config.clients.by
        self._key = config.clients.key or ""
        self._is_secret = may_be_secret(self._key)
        self._authenticator = authenticator

    def of(self, find: Find, peer: Callable[[], str]) -> str:
        """Return the client of a call. `find`: returns metadata or a header by lower-case name; `peer`: the address.

        Calls that do not identify themselves belong to one common client. Secrets are replaced by digests, because
        event logs contain clients. Tenants, if any, precede their clients.
        """
        client = self._client_of(find, peer)
        return client if self._tenants is None else f"{self._tenant_of(find, self._tenants)}/{client}"

    def _tenant_of(self, find: Find, tenants: Tenants) -> str:
        if tenants.by == "metadata":
            return tenants.name_of(_text(find(tenants.key)))
        authorization, key = _text(find("authorization")), _text(find(self._api_key_header))
        token = authorization[len(_SCHEME) :].strip() if authorization[: len(_SCHEME)].lower() == _SCHEME else ""
        return tenants.name_of_digest(tuple(_digest(each.strip()) for each in (key, token) if each))

    def _client_of(self, find: Find, peer: Callable[[], str]) -> str:
        if self._by == "connection":
            return peer()
        if self._by == "metadata":
            given = find(self._key)
            value = _text(given)
            return value if len(value) <= MAX_LABEL_CHARACTERS and not self._is_secret else digest(value)
        if self._authenticator:
            # Not the header as written, nor another beside it: a client could be any number of owners.
            credential = self._authenticator.credential(find)
            return credential.hex()[:_DIGITS] if credential else ""
        return digest(_text(find("authorization")) or _text(find("x-api-key")))


def _text(given: str | bytes | None) -> str:
    return given.decode("latin1") if isinstance(given, bytes) else given or ""


NOT_FOUND: Final = 404
_REMEDY: Final = (
    "the dashboard shows names of models and requests: it is there where listen.metrics is an address of this machine "
    "alone (--listen-metrics 127.0.0.1:8102), or with dashboard.token_file"
)
_BY_NAME: Final = "ask for it as localhost or 127.0.0.1, or set dashboard.token_file"


class DashboardAuth:
    """Access rules of the dashboard. Immutable: create a new one to change them."""

    def __init__(self, config: ServeConfig) -> None:
        """Read the token files. Raises CredentialFileError if one is invalid."""
        page = config.dashboard
        self._enabled = page.enabled
        self._local = config.listen.metrics is not None and is_local(config.listen.metrics)
        self._tokens: Authenticator | None = None
        if page.token_file:
            self._tokens = Authenticator(AuthenticationConfig(tokens_file=page.token_file))
        elif config.authentication:
            self._tokens = Authenticator(config.authentication)

    def page_refusal(self) -> HttpRefusal | None:
        """Return why there is no dashboard at all, or None if there is one."""
        if not self._enabled:
            return http_refusal(NOT_FOUND, "the dashboard is off (dashboard.enabled)")
        if self._tokens is None and not self._local:
            return http_refusal(HTTP_FORBIDDEN, _REMEDY)
        return None

    def refusal(self, headers: Mapping[str, str]) -> HttpRefusal | None:
        """Return why a request with these headers, by lower-case name, may not read the data, or None if it may."""
        if refused := self.page_refusal():
            return refused
        if self._tokens:
            return self._tokens.http_refusal(None, headers)
        return None if names_this_machine(headers.get("host", "")) else http_refusal(HTTP_FORBIDDEN, _BY_NAME)


class AccessControl:
    """Access control that the servers query before they process a call."""

    def __init__(self, config: ServeConfig) -> None:
        """Create the access control. Raises CredentialFileError or RestrictionError if a file cannot be used."""
        self.tenants: Tenants | None = None
        """Tenants of the current configuration; None: it has none."""
        self.replace(config)

    def replace(self, config: ServeConfig) -> None:
        """Replace the rules, also with those of changed files. Raises as the constructor, and then changes nothing."""
        authenticator = Authenticator(config.authentication) if config.authentication else None
        onlookers = DashboardAuth(config)
        tenants = Tenants(config.tenants, _credentials_in) if config.tenants else None
        self._rules = (authenticator, Restrictions(config.restricted))
        if tenants and self.tenants:
            tenants.follow(self.tenants)
        self._onlookers = onlookers
        self._owners = ClientIdentity(config, authenticator, tenants)
        self.tenants = tenants

    def follow(self, other: "AccessControl") -> None:
        """Take over the rules of another gate, which has already read its files."""
        self._rules, self._owners, self._onlookers = other._rules, other._owners, other._onlookers
        if other.tenants and self.tenants:
            other.tenants.follow(self.tenants)
        self.tenants = other.tenants

    def tenant_of(self, owner: str, app: str = "") -> Tenant | None:
        """Return the tenant of a client with this identity and of this application, or None without tenants."""
        return self.tenants.of(owner, app) if self.tenants else None

    def rejections(self) -> dict[str, int]:
        """Return the number of requests that rate limits rejected, by tenant with one."""
        tenants = self.tenants.of_name.values() if self.tenants else ()
        return {tenant.name: tenant.rejections for tenant in tenants if tenant.limit}

    def why_over_limit(self, owner: str) -> RequestFailed | None:
        """Count an inference that is not scheduled with its client's tenant; return why it is rejected, or None."""
        return why_rejected(self.tenants.of(owner, ""), 1) if self.tenants else None

    def credential_headers(self) -> frozenset[str]:
        """Lower-case names of headers that are meant for this gate; they are not forwarded to a Triton."""
        authenticator, _ = self._rules
        return authenticator.headers if authenticator else frozenset()

    def owner(self, metadata: Iterable[tuple[str, str | bytes]], peer: Callable[[], str]) -> str:
        """Return the client of a gRPC call; `peer` returns the address of its connection."""
        return self._owners.of(lambda name: next((value for key, value in metadata if key == name), None), peer)

    def http_owner(self, header: Callable[[str], str | None], peer: Callable[[], str]) -> str:
        """Return the client of an HTTP request; `header` returns its headers by lower-case name."""
        return self._owners.of(header, peer)

    def page_refusal(self) -> HttpRefusal | None:
        """Return why there is no dashboard at all, or None if there is one; its existence is no secret."""
        return self._onlookers.page_refusal()

    def look_refusal(self, headers: Mapping[str, str]) -> HttpRefusal | None:
        """Return why a request with these headers may not read the dashboard's data, or None if it may.

        Rules that protect the metrics protect the dashboard too.
        """
        _, restrictions = self._rules
        return restrictions.http_refusal("metrics", headers) or self._onlookers.refusal(headers)

    def refusal(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> GrpcRefusal | None:
        """Return why a gRPC call is rejected, or None if it is allowed."""
        authenticator, restrictions = self._rules
        return (authenticator and authenticator.refusal(method, metadata)) or restrictions.refusal(method, metadata)

    def http_refusal(self, api: Api | None, headers: Mapping[str, str]) -> HttpRefusal | None:
        """Return why an HTTP request is rejected, or None if it is allowed. `api`: API of its route, or None.

        Headers are by lower-case name.
        """
        authenticator, restrictions = self._rules
        return (authenticator and authenticator.http_refusal(api, headers)) or restrictions.http_refusal(api, headers)
