"""Tenants of clients: which tenant a client belongs to, and whether it is within its rate limits.

A client's identity begins with its tenant and a slash. Tenants that applications name are known once the request is
read: identities of such clients have no tenant.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from tidegate.workload.tenants import NS_PER_S, RateLimit
from tidegate_proxy.base import refusal
from tidegate_proxy.base.outcome import RequestFailed
from tidegate_proxy.configuration.tenants import DEFAULT_TENANT, TenantConfig, TenantsConfig


@dataclass(slots=True, eq=False)
class Tenant:
    """Settings of a tenant, and its use of its rate limits."""

    name: str
    config: TenantConfig
    limit: RateLimit | None
    """None: it has no rate limit."""
    rejections: int = 0
    """Number of requests that its rate limits rejected."""


class Tenants:
    """Tenants by their header value, token or certificate. Use it only in the event loop."""

    def __init__(
        self,
        config: TenantsConfig,
        credentials: Callable[[Path], frozenset[bytes]],
    ) -> None:
        """Create the tenants. Raises CredentialFileError. `credentials(path)` reads the digests in a file."""
        self.by, self.key = config.by, config.key or ""
        named = {DEFAULT_TENANT: TenantConfig(), **config.named}
        self.of_name = {name: _tenant(name, tenant) for name, tenant in named.items()}
        """Tenants by name."""
        self._default = self.of_name[DEFAULT_TENANT]
        self._of_value = {
            value: self.of_name[name] for name, tenant in named.items() for value in tenant.values or (name,)
        }
        self._of_digest = {
            digest: self.of_name[name]
            for name, tenant in named.items()
            if tenant.credentials_file
            for digest in credentials(tenant.credentials_file)
        }

    def follow(self, before: "Tenants") -> None:
        """Take over the usage of tenants of the former configuration."""
        for name, tenant in self.of_name.items():
            if old := before.of_name.get(name):
                tenant.rejections = old.rejections
                if tenant.limit and old.limit:
                    tenant.limit.follow(old.limit)

    def name_of(self, value: str) -> str:
        """Return the name of the tenant that a value of `key` names."""
        return self._of_value.get(value, self._default).name

    def name_of_digest(self, digests: tuple[bytes, ...]) -> str:
        """Return the name of the tenant of a client that showed credentials with these digests."""
        return next((self._of_digest[each].name for each in digests if each in self._of_digest), DEFAULT_TENANT)

    def of(self, owner: str, app: str) -> Tenant:
        """Return the tenant of a client with this identity, or of this application."""
        if self.by == "application":
            return self._of_value.get(app, self._default)
        return self.of_name.get(owner.partition("/")[0], self._default)


def why_rejected(tenant: Tenant, rows: int, request_id: str = "") -> RequestFailed | None:
    """Count a request of `rows` rows; return why it is rejected, or None if it is within the tenant's rate limits.

    `request_id`: what its client calls it, for the message.
    """
    wait_ns = tenant.limit.take(time.monotonic_ns(), rows) if tenant.limit else 0
    if not wait_ns:
        return None
    tenant.rejections += 1
    rates = (("requests", tenant.config.requests_per_s), ("rows", tenant.config.rows_per_s))
    limits = " and ".join(f"{rate:g} {what} per second" for what, rate in rates if rate)
    return RequestFailed(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        f"[request id: {request_id or '<id_unknown>'}] Exceeds the rate limit of tenant '{tenant.name}': {limits}",
        queued=False,
        category="REJECTED",
        reason=refusal.RATE_LIMITED,
        retry_after_s=wait_ns / NS_PER_S,
    )


def _tenant(name: str, config: TenantConfig) -> Tenant:
    limit = None
    if config.requests_per_s or config.rows_per_s:
        limit = RateLimit(config.requests_per_s, config.rows_per_s, config.burst_s)
    return Tenant(name, config, limit)
