"""Who may call: bearer tokens and API keys out of files.

A file has one credential per line, as it is or as `sha256:` and 64 hexadecimal digits; blank lines and comments do
not count, which begin with `#` at a line's beginning or after a blank. In memory there are digests only.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import grpc

from tidegate_proxy.access.refusal import GrpcRefusal, HttpRefusal, http_refusal
from tidegate_proxy.configuration.access import AuthenticationConfig
from tidegate_proxy.configuration.apis import METHOD_API, Api

Find = Callable[[str], str | bytes | None]
"""Gives the first header of a lower-case name; None where there is none."""
UNAUTHORIZED: Final = 401
_SCHEME: Final = "bearer "
_COMMENT: Final = re.compile(r"(?:^|[ \t])#.*")
_CREDENTIAL: Final = re.compile(r"""[!$-&(-+\--~]+""")
"""Quotes, commas and `#` are those of another format, or the rest of a line that was not meant to be a comment."""
_OTHER_HASH: Final = re.compile(r"(?:sha-?\d+|md5|bcrypt|argon2\w*|blake\w*):|\$\w+\$", re.IGNORECASE)
_HASHED: Final = re.compile(r"sha256:([0-9a-fA-F]{64})")


class CredentialFileError(Exception):
    """A file of tokens or API keys that cannot be used; the message names file, line and remedy, never the secret."""


class Authenticator:
    """The credentials that are accepted, ready to be asked. Immutable: make a new one when the files have changed."""

    def __init__(self, config: AuthenticationConfig) -> None:
        """Read the files. Raises CredentialFileError."""
        self._tokens = _read(config.tokens_file) if config.tokens_file else frozenset()
        self._api_keys = _read(config.api_keys_file) if config.api_keys_file else frozenset()
        self._header = config.header
        self._open = frozenset(config.open)
        self._open_methods = frozenset(method for method, api in METHOD_API.items() if api in self._open)
        ways = ["'authorization: Bearer TOKEN'"] * bool(self._tokens) + [f"'{self._header}: KEY'"] * bool(
            self._api_keys
        )
        self._missing = f"Authentication required, expecting header {' or '.join(ways)}"
        self.headers: Final = frozenset({"authorization", self._header})
        """Lower-case names of the headers that carry credentials: not to be sent on to a Triton."""

    def refusal(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> GrpcRefusal | None:
        """Why a call of a gRPC method, by its full name, is refused; None if it is not."""
        if method in self._open_methods:
            return None
        first: dict[str, str | bytes] = {}
        for name, value in metadata:
            if name in self.headers:
                first.setdefault(name, value)
        words = self._why_not(first.get)
        return None if words is None else GrpcRefusal(grpc.StatusCode.UNAUTHENTICATED, words)

    def http_refusal(self, api: Api | None, headers: Mapping[str, str]) -> HttpRefusal | None:
        """Why a request is refused; None if it is not.

        `api` is that of its route, None where it has none. `headers` are found by their lower-case names.
        """
        if api in self._open:
            return None
        words = self._why_not(headers.get)
        if words is None:
            return None
        # RFC 6750, section 3; for API keys there is no scheme that anybody has registered.
        scheme = "Bearer" if self._tokens else "ApiKey"
        error = "" if words is self._missing or not self._tokens else ', error="invalid_token"'
        return http_refusal(UNAUTHORIZED, words, ("www-authenticate", f'{scheme} realm="tidegate"{error}'))

    def credential(self, find: Find) -> bytes | None:
        """The digest of the credential that lets a call in, however it is written; None: it brings none.

        `find` gives the first header of a lower-case name.
        """
        # Digests are looked up: how long that takes says nothing about a secret that nobody can choose the digest of.
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


def _read(path: Path) -> frozenset[bytes]:
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
        raise CredentialFileError(f"{path}: there is no credential in it: nobody could call")
    return frozenset(digests)
