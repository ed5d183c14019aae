"""Tenants: whose each request of a scenario is, how urgent it is, and which requests exceed rate limits."""

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, Self

import msgspec
from pydantic import Field, model_validator

from tidegate.api import Request
from tidegate.api.planner import DocumentSection
from tidegate.schemas.document import Name, Positive
from tidegate.workload.distributions import choosing_from, stream

NS_PER_S: Final = 1_000_000_000


class TokenBucket:
    """Token bucket that keeps one instant: the time at which it will be full (generic cell rate algorithm)."""

    __slots__ = ("_burst_ns", "_full_ns", "_token_ns")

    def __init__(self, rate_per_s: float, burst_s: float) -> None:
        """Create a full bucket.

        `rate_per_s`: tokens per second. `burst_s`: seconds of that rate that may be taken at once; one token always
        may.
        """
        self._full_ns = 0
        self._token_ns = NS_PER_S / rate_per_s
        self._burst_ns = max(burst_s * NS_PER_S, self._token_ns)

    def wait_ns(self, now_ns: int, tokens: int) -> int:
        """Return the time in ns until this many tokens can be taken; 0: now. More than a burst need a full bucket."""
        cost_ns = tokens * self._token_ns
        ready_ns = max(self._full_ns, now_ns) + cost_ns - max(self._burst_ns, cost_ns)
        return max(0, ceil(ready_ns - now_ns))

    def take(self, now_ns: int, tokens: int) -> None:
        """Take tokens, which need not be there."""
        self._full_ns = round(max(self._full_ns, now_ns) + tokens * self._token_ns)


class RateLimit:
    """Limits on requests and rows per second, which a request must meet both."""

    __slots__ = ("_requests", "_rows")

    def __init__(self, requests_per_s: float | None, rows_per_s: float | None, burst_s: float) -> None:
        """Create the limits; None: no limit. `burst_s`: seconds of each rate that may be used at once."""
        self._requests = TokenBucket(requests_per_s, burst_s) if requests_per_s else None
        self._rows = TokenBucket(rows_per_s, burst_s) if rows_per_s else None

    def follow(self, before: "RateLimit") -> None:
        """Take over the usage counted under the former limits."""
        for mine, theirs in ((self._requests, before._requests), (self._rows, before._rows)):
            if mine and theirs:
                mine._full_ns = theirs._full_ns

    def take(self, now_ns: int, rows: int) -> int:
        """Count a request; return 0, or, without counting it, the time in ns after which to try again."""
        requests, of_rows = self._requests, self._rows
        wait_ns = max(requests.wait_ns(now_ns, 1) if requests else 0, of_rows.wait_ns(now_ns, rows) if of_rows else 0)
        if not wait_ns:
            if requests:
                requests.take(now_ns, 1)
            if of_rows:
                of_rows.take(now_ns, rows)
        return wait_ns


_METADATA_KEY: Final = re.compile(r"[a-z0-9_.-]+")

RATE_LIMITED = "rate_limited"
"""Drop reason of a request above the rate limit of its tenant."""


class TenantSpec(DocumentSection):
    """A tenant of a scenario: its part of the arrivals, and its settings as in the proxy's configuration."""

    name: Name
    load: float = Field(default=1.0, ge=0, description="Part of a model's arrivals, relative to the other tenants")
    models: list[Name] = Field(default_factory=list, description="Models that it uses; default: all")
    clients: int = Field(default=1, ge=1, le=100_000, description="Number of its clients, each equally active")
    weight: Positive = Field(default=1.0, description="Share of worker time under contention")
    priority: int = Field(default=1, ge=1, description="Priority of its requests; 1 is the most urgent")
    requests_per_s: Positive | None = Field(default=None, description="Rate limit in requests; default: none")
    rows_per_s: Positive | None = Field(default=None, description="Rate limit in rows; default: none")
    burst_s: Positive = Field(default=0.1, description="Seconds of both rates that may be used at once")
    headers: dict[Name, Name] = Field(
        default_factory=dict,
        description="Further headers (gRPC metadata) of its live requests, besides `x-tenant` and `x-client`",
    )
    credentials_file: Name | None = Field(
        default=None, description="File with the bearer token of its live requests, as in the proxy"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(set(self.models)) < len(self.models):
            raise ValueError(f"models: one is listed twice for the tenant {self.name!r}: leave it out once")
        for key, value in self.headers.items():
            if not _METADATA_KEY.fullmatch(key) or key.endswith("-bin"):
                problem = f"headers: {key!r} of the tenant {self.name!r} is no gRPC metadata key"
                raise ValueError(f"{problem}: write lower-case letters, digits, '-', '_' and '.', without '-bin'")
            if not (value.isascii() and value.isprintable()):
                raise ValueError(f"headers: {key} of the tenant {self.name!r} is {value!r}: write printable ASCII")
        return self


def floors_checked(floors: dict[int, float]) -> dict[int, float]:
    """Return floors of priority classes, by priority. Raises ValueError if they leave nothing to the urgent class."""
    total = sum(floors.values())
    for priority, floor in floors.items():
        if priority < 2 or not 0 <= floor < 1:
            problem = f"priority_floors: {priority}: {floor:g} is no fraction from 0 to 1 of a class below 1"
            raise ValueError(f"{problem}: class 1 is the most urgent one and needs none")
    if total >= 1:
        problem = f"priority_floors: they add up to {total:g}, which leaves nothing to class 1"
        raise ValueError(f"{problem}: let them add up to less than 1")
    return floors


@dataclass(frozen=True)
class Tenancy:
    """Tenants of a request sequence, by position."""

    specs: tuple[TenantSpec, ...]
    tenant: "array[int]"
    """Index of the tenant of each request; -1: none uses its model."""
    client: "array[int]"
    """Number of the client of each request, among those of its tenant."""
    rejected: frozenset[int]
    """Requests that exceed the rate limit of their tenant: no engine sees them."""

    def apply(self, requests: Iterable[Request]) -> Iterator[Request]:
        """Return the requests within rate limits, with tenant, client, priority and weight."""
        for request in requests:
            index = self.tenant[request.id]
            if request.id in self.rejected:
                continue
            if index < 0:
                yield request
                continue
            spec = self.specs[index]
            yield msgspec.structs.replace(
                request,
                client=f"{spec.name}/{self.client[request.id]}",
                priority=spec.priority,
                tenant=spec.name,
                weight=spec.weight,
            )


def draw_tenancy(
    specs: Sequence[TenantSpec],
    models: Sequence[str],
    at_ns: "array[int]",
    model: "array[int]",
    rows: "array[int] | None",
    seed: int,
) -> Tenancy | None:
    """Draw the tenant and the client of each request; None without tenants.

    `models`: names of the models. `at_ns`, `model`, `rows`: arrival, index of the model and rows of each request.
    """
    if not specs:
        return None
    users = [
        [i for i, spec in enumerate(specs) if spec.load and (not spec.models or name in spec.models)] for name in models
    ]
    choices = [
        choosing_from([specs[i].load for i in of_model] or [1.0], stream(seed, "tenants", name))
        for name, of_model in zip(models, users, strict=True)
    ]
    clients = [stream(seed, "clients", spec.name) for spec in specs]
    limits = [RateLimit(spec.requests_per_s, spec.rows_per_s, spec.burst_s) for spec in specs]
    tenant, client, rejected = array("q"), array("q"), []
    for position, which in enumerate(model):
        index = users[which][choices[which]()] if users[which] else -1
        tenant.append(index)
        client.append(clients[index].randrange(specs[index].clients) if index >= 0 else 0)
        if index >= 0 and limits[index].take(at_ns[position], rows[position] if rows else 1):
            rejected.append(position)
    return Tenancy(tuple(specs), tenant, client, frozenset(rejected))
