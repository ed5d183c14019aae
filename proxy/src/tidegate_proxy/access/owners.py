"""Whose a request is: requests of one owner wait in one line, and owners have their turn one after the other."""

from collections.abc import Callable
from typing import Final

from tidegate_proxy.access.authentication import Authenticator, Find
from tidegate_proxy.base.labels import LONGEST, digest, may_be_secret
from tidegate_proxy.configuration.config import ServeConfig

_DIGITS: Final = 16
"""How many digits of a credential's digest are used."""


class Owners:
    """Tells owners apart as the configuration says. Immutable."""

    def __init__(self, config: ServeConfig, authenticator: Authenticator | None = None) -> None:
        """`authenticator`: who knows credentials; None: what comes was looked at elsewhere."""
        self._by = config.clients.by
        self._key = config.clients.key or ""
        self._is_secret = may_be_secret(self._key)
        self._authenticator = authenticator

    def of(self, find: Find, peer: Callable[[], str]) -> str:
        """The owner of a call: `find` gives metadata, or a header, by its lower-case name; `peer` the connection.

        Those who do not say who they are share a line. Secrets appear as digests: recordings hold owners.
        """
        if self._by == "connection":
            return peer()
        if self._by == "metadata":
            given = find(self._key)
            value = _text(given)
            return value if len(value) <= LONGEST and not self._is_secret else digest(value)
        if self._authenticator:
            # Not as it is written, nor one beside it: a client would be as many owners as it likes.
            credential = self._authenticator.credential(find)
            return credential.hex()[:_DIGITS] if credential else ""
        return digest(_text(find("authorization")) or _text(find("x-api-key")))


def _text(given: str | bytes | None) -> str:
    return given.decode("latin1") if isinstance(given, bytes) else given or ""
