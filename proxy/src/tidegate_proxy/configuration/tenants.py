"""Tenants: the section `tenants` of the configuration, with weights, priorities and rate limits."""

from typing import Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from tidegate_proxy.configuration.section import ConfigSection, HeaderName, InputFile, Name, Seconds

DEFAULT_TENANT: Final = "default"
"""Tenant of clients that belong to no other one."""


class TenantConfig(ConfigSection):
    """One tenant: its share of the workers, its priority and its rate limits."""

    weight: float = Field(
        default=1.0, gt=0, le=1e6, description="Share of worker time under contention, relative to other tenants"
    )
    priority: int = Field(
        default=1,
        ge=1,
        description="Most urgent priority that its requests may have; they have it where they ask for none",
    )
    requests_per_s: float | None = Field(default=None, le=1e9, description="Rate limit in requests; default: none")
    rows_per_s: float | None = Field(
        default=None, le=1e12, description="Rate limit in rows of requests, batch dimensions added up; default: none"
    )
    burst_s: Seconds = Field(default=0.1, description="Seconds of both rates that may be used at once")
    values: tuple[Name, ...] = Field(
        default=(), description="Values of `key`, or applications, that belong to it; default: its name"
    )
    credentials_file: InputFile | None = Field(
        default=None, description="File with its bearer tokens and API keys, one a line, for `by: token`"
    )

    @field_validator("requests_per_s", "rows_per_s")
    @classmethod
    def _some_rate(cls, rate: float | None) -> float | None:
        if rate is not None and rate <= 0:
            raise ValueError(f"{rate:g} would reject every request: leave it out for no limit, or give a positive rate")
        return rate


class TenantsConfig(ConfigSection):
    """Tenants, and how a client is assigned to one."""

    by: Literal["metadata", "token", "application"] = Field(
        description="Source of the tenant: the value of `key`, the bearer token or API key, or the application"
    )
    key: HeaderName | None = Field(default=None, description="gRPC metadata key, or HTTP header, for `metadata`")
    named: dict[Name, TenantConfig] = Field(
        min_length=1, description="Tenants by name; clients of none of them belong to `default`"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.key is None) == (self.by == "metadata"):
            raise ValueError("key: by: metadata needs one, the others have none")
        owners: dict[str, str] = {}
        for name, tenant in self.named.items():
            if "/" in name:
                raise ValueError(f"named: {name!r} has a slash, which separates tenants from clients: leave it out")
            if (tenant.credentials_file is None) == (self.by == "token" and name != DEFAULT_TENANT):
                need = "needs credentials_file" if self.by == "token" else "has credentials_file without by: token"
                raise ValueError(f"named.{name}: {need}: a tenant has credentials if, and only if, tokens name it")
            for value in tenant.values or (name,):
                if owners.setdefault(value, name) != name:
                    raise ValueError(f"named: {value!r} belongs to {owners[value]!r} and {name!r}: leave one out")
        return self
