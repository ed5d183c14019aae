"""Clients and what requests say of themselves: the sections `clients`, `app` and `feature` of the configuration."""

from typing import Final, Literal, Self

from pydantic import Field, model_validator

from tidegate_proxy.configuration.section import ConfigSection, HeaderName, Name

_TAKEN_PARAMETERS: Final = frozenset(
    {
        "timeout",
        "priority",
        "slo_ms",
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "binary_data_output",
        "triton_enable_empty_final_response",
    }
)
"""Parameters of requests that have a meaning."""


class ClientsConfig(ConfigSection):
    """Identification of clients for fair queueing among those that wait for the same workers."""

    by: Literal["connection", "token", "metadata"] = Field(
        default="connection",
        description="Identity of a client: its connection; its bearer token or API key; or a value of `key`",
    )
    key: HeaderName | None = Field(default=None, description="gRPC metadata key, or HTTP header, for `metadata`")

    @model_validator(mode="after")
    def _key_of_metadata(self) -> Self:
        if (self.key is None) == (self.by == "metadata"):
            raise ValueError("key: by: metadata needs one, the others have none")
        return self


class AppConfig(ConfigSection):
    """Identification of a request's application, for policies that learn latency by application."""

    parameter: Name | None = Field(
        default=None, description="Request parameter with the application; it does not prevent batching"
    )
    header: HeaderName | None = Field(
        default=None, description="gRPC metadata key, or HTTP header, with the application"
    )

    @model_validator(mode="after")
    def _one_at_most(self) -> Self:
        if self.parameter is not None and self.header is not None:
            raise ValueError("give parameter or header: one of the two")
        _check_parameter(self.parameter)
        return self


class FeatureConfig(ConfigSection):
    """Number that is known before a request runs and explains its latency, for policies that learn latency."""

    parameter: Name | None = Field(
        default=None, description="Request parameter with the number (tokens, pages); it does not prevent batching"
    )
    size: Literal["rows", "bytes"] | None = Field(
        default=None, description="Size of the request itself: its rows, or bytes of its tensors per row"
    )

    @model_validator(mode="after")
    def _one_at_most(self) -> Self:
        if self.parameter is not None and self.size is not None:
            raise ValueError("give parameter or size: one of the two")
        _check_parameter(self.parameter)
        return self


def _check_parameter(name: str | None) -> None:
    if name in _TAKEN_PARAMETERS:
        raise ValueError(f"parameter: {name!r} means something else to Triton or Tidegate: take another")
