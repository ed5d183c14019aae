"""Who may look at the live page: where anybody could reach it, only those who show a token."""

from collections.abc import Mapping
from typing import Final

from tidegate_proxy.access.authentication import Authenticator
from tidegate_proxy.access.refusal import HttpRefusal, http_refusal
from tidegate_proxy.access.restrictions import FORBIDDEN
from tidegate_proxy.configuration.access import AuthenticationConfig
from tidegate_proxy.configuration.addresses import is_local, names_this_machine
from tidegate_proxy.configuration.config import ServeConfig

NOT_FOUND: Final = 404
_REMEDY: Final = (
    "the live page shows names of models and requests: it is there where listen.metrics is an address of this machine "
    "alone (--listen-metrics 127.0.0.1:8102), or with page.token_file"
)
_BY_NAME: Final = "ask for it as localhost or 127.0.0.1, or set page.token_file"


class Onlookers:
    """The rules, ready to be asked. Immutable: make a new one to change them."""

    def __init__(self, config: ServeConfig) -> None:
        """Raises CredentialFileError for a file of tokens that cannot be used."""
        page = config.page
        self._enabled = page.enabled
        self._local = config.listen.metrics is not None and is_local(config.listen.metrics)
        self._tokens: Authenticator | None = None
        if page.token_file:
            self._tokens = Authenticator(AuthenticationConfig(tokens_file=page.token_file))
        elif config.authentication:
            self._tokens = Authenticator(config.authentication)

    def page_refusal(self) -> HttpRefusal | None:
        """Why there is no page at all; None: there is one."""
        if not self._enabled:
            return http_refusal(NOT_FOUND, "the live page is off (page.enabled)")
        if self._tokens is None and not self._local:
            return http_refusal(FORBIDDEN, _REMEDY)
        return None

    def refusal(self, headers: Mapping[str, str]) -> HttpRefusal | None:
        """Why the data are not for who sends these headers, found by their lower-case names; None: they are."""
        if refused := self.page_refusal():
            return refused
        if self._tokens:
            return self._tokens.http_refusal(None, headers)
        return None if names_this_machine(headers.get("host", "")) else http_refusal(FORBIDDEN, _BY_NAME)
