"""Who gets in: authentication first, then the APIs that are not for everybody."""

from collections.abc import Callable, Iterable, Mapping

from tidegate_proxy.access.authentication import Authenticator
from tidegate_proxy.access.onlookers import Onlookers
from tidegate_proxy.access.owners import Owners
from tidegate_proxy.access.refusal import GrpcRefusal, HttpRefusal
from tidegate_proxy.access.restrictions import Restrictions
from tidegate_proxy.configuration.apis import Api
from tidegate_proxy.configuration.config import ServeConfig


class Gate:
    """Asked before anything is done for a call."""

    def __init__(self, config: ServeConfig) -> None:
        """Raises CredentialFileError and RestrictionError for files that cannot be used."""
        self.replace(config)

    def replace(self, config: ServeConfig) -> None:
        """Take up other rules, or the same from changed files. Raises as at the start, and changes nothing."""
        authenticator = Authenticator(config.authentication) if config.authentication else None
        onlookers = Onlookers(config)
        self._rules = (authenticator, Restrictions(config.restricted))
        self._onlookers = onlookers
        self._owners = Owners(config, authenticator)

    def follow(self, other: "Gate") -> None:
        """Take up the rules of another gate, which has read its files already."""
        self._rules, self._owners, self._onlookers = other._rules, other._owners, other._onlookers

    @property
    def credential_headers(self) -> frozenset[str]:
        """Lower-case names of headers that are meant for this gate: no Triton needs to see them."""
        authenticator, _ = self._rules
        return authenticator.headers if authenticator else frozenset()

    def owner(self, metadata: Iterable[tuple[str, str | bytes]], peer: Callable[[], str]) -> str:
        """Whose a gRPC call is; `peer` gives its connection."""
        return self._owners.of(lambda name: next((value for key, value in metadata if key == name), None), peer)

    def http_owner(self, header: Callable[[str], str | None], peer: Callable[[], str]) -> str:
        """Whose an HTTP request is; `header` finds its headers by their lower-case names."""
        return self._owners.of(header, peer)

    def page_refusal(self) -> HttpRefusal | None:
        """Why there is no live page at all; None: there is one, and whoever asks may know."""
        return self._onlookers.page_refusal()

    def look_refusal(self, headers: Mapping[str, str]) -> HttpRefusal | None:
        """Why the live page's data are refused to who sends these headers; None: they are not.

        What keeps others from the metrics keeps them from what the page shows, too.
        """
        _, restrictions = self._rules
        return restrictions.http_refusal("metrics", headers) or self._onlookers.refusal(headers)

    def refusal(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> GrpcRefusal | None:
        """Why a gRPC call is refused; None: it is not."""
        authenticator, restrictions = self._rules
        return (authenticator and authenticator.refusal(method, metadata)) or restrictions.refusal(method, metadata)

    def http_refusal(self, api: Api | None, headers: Mapping[str, str]) -> HttpRefusal | None:
        """Why an HTTP request to a route of an API is refused; None: it is not. The API is None without a route.

        Headers are found by their lower-case names.
        """
        authenticator, restrictions = self._rules
        return (authenticator and authenticator.http_refusal(api, headers)) or restrictions.http_refusal(api, headers)
