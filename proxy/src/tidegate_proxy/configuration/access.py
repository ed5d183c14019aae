"""Access control: the sections `authentication`, `restricted` and `dashboard` of the configuration."""

from typing import Self

from pydantic import Field, SecretStr, model_validator

from tidegate_proxy.configuration.apis import RESTRICTABLE_PROTOCOLS, Api, Protocol
from tidegate_proxy.configuration.section import ConfigSection, HeaderName, InputFile


class AuthenticationConfig(ConfigSection):
    """Credentials of callers: one of the two files, or both; then either credential suffices."""

    tokens_file: InputFile | None = Field(
        default=None, description="File with bearer tokens, which clients send as `Authorization: Bearer TOKEN`"
    )
    api_keys_file: InputFile | None = Field(
        default=None, description="File with API keys, which clients send in `header`"
    )
    header: HeaderName = Field(default="x-api-key", description="HTTP header, or gRPC metadata key, with the API key")
    open: tuple[Api, ...] = Field(default=("health", "metrics"), description="APIs that need no credential")

    @model_validator(mode="after")
    def _some_file(self) -> Self:
        if self.tokens_file is None and self.api_keys_file is None:
            raise ValueError("give tokens_file, api_keys_file or both: without one no client could call")
        return self


class HeaderKey(ConfigSection):
    """Header that opens a restricted API. Over gRPC its name is `triton-grpc-protocol-NAME`, as with Triton."""

    name: HeaderName = Field(description="Name of the header")
    value: SecretStr | None = Field(default=None, description="Value of the header")
    value_file: InputFile | None = Field(
        default=None, description="File with the value of the header, instead of `value`"
    )

    @model_validator(mode="after")
    def _one_value(self) -> Self:
        if (self.value is None) == (self.value_file is None):
            raise ValueError("give value or value_file: one of the two")
        value = self.value.get_secret_value() if self.value is not None else "from the file"
        if not value or not value.isascii() or not value.isprintable():
            raise ValueError("value: it must be printable ASCII, and not empty")
        return self


class ApiRestriction(ConfigSection):
    """Restricted APIs and the header that opens them."""

    apis: tuple[Api, ...] = Field(min_length=1, description="APIs to restrict, by Triton's names, and `metrics`")
    protocols: tuple[Protocol, ...] = Field(
        default=RESTRICTABLE_PROTOCOLS, min_length=1, description="Protocols over which they are restricted"
    )
    header: HeaderKey | None = Field(default=None, description="Header that a request must carry")
    closed: bool = Field(default=False, description="Reject all requests")
    open: bool = Field(
        default=False, description="Accept all authenticated requests, even if a Triton restricts the API"
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if [self.header is not None, self.closed, self.open].count(True) != 1:
            raise ValueError("give header, or closed: true, or open: true: one of the three")
        return self


class DashboardConfig(ConfigSection):
    """Dashboard, served beside the metrics."""

    enabled: bool = Field(
        default=True,
        description="Whether to serve the dashboard, which requires `listen.metrics` on this machine only, or a token",
    )
    token_file: InputFile | None = Field(
        default=None,
        description="File with tokens, one a line, one of which the dashboard asks for. Default: those of "
        "`authentication`, if set",
    )
