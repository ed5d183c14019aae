"""Whose a request is: requests of one owner wait in one line, and owners have their turn one after the other."""

import hashlib
from collections.abc import Callable
from typing import Final

from tidegate_proxy.configuration.config import ServeConfig

LONGEST: Final = 100
"""Characters of a value that tell owners apart; what is longer is told apart by its digest."""


class Owners:
    """Tells owners apart as the configuration says. Immutable."""

    def __init__(self, config: ServeConfig) -> None:
        clients, authentication = config.clients, config.authentication
        self._by = clients.by
        self._key = clients.key or ""
        self._api_key = authentication.header if authentication else "x-api-key"

    def of(self, find: Callable[[str], str | bytes | None], peer: Callable[[], str]) -> str:
        """The owner of a call: `find` gives metadata, or a header, by its lower-case name; `peer` the connection.

        Those who do not say who they are share a line. Secrets appear as digests: recordings hold owners.
        """
        if self._by == "connection":
            return peer()
        if self._by == "metadata":
            given = find(self._key)
            value = _text(given)
            return value if len(value) <= LONGEST else _digest(value)
        return _digest(_text(find("authorization")) or _text(find(self._api_key)))


def _text(given: str | bytes | None) -> str:
    return given.decode("latin1") if isinstance(given, bytes) else given or ""


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode(errors="surrogatepass")).hexdigest()[:16] if value else ""
