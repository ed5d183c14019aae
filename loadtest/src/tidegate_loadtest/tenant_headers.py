"""Headers by which a server knows the tenant and the client of each request of a scenario."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tidegate.workload import RequestSequence, Scenario
from tidegate.workload.tenants import TenantSpec
from tidegate_loadtest.connection import LoadTestError

TENANT_HEADER: Final = "x-tenant"
CLIENT_HEADER: Final = "x-client"
RequestHeaders = tuple[tuple[str, str], ...]
"""gRPC metadata, or HTTP headers, of a request."""
_TENANT_SETTINGS: Final = {"weight", "priority", "requests_per_s", "rows_per_s", "burst_s"}
_COMMENT: Final = re.compile(r"(?:^|[ \t])#.*")


class TenantHeaders:
    """Headers of the requests of a scenario, by their number."""

    def __init__(self, requests: RequestSequence, folder: Path) -> None:
        """Read the credentials of the tenants. Raises LoadTestError for a credential or a name that cannot be sent.

        `folder`: folder that the paths of the files start from.
        """
        self._tenancy = requests.tenancy
        specs = requests.tenancy.specs if requests.tenancy else ()
        self._of_tenant = [_headers_of(spec, folder) for spec in specs]
        self._of_client: dict[tuple[int, int], RequestHeaders] = {}

    def __call__(self, index: int) -> RequestHeaders:
        """Return the headers of request number `index`; none without a tenant."""
        tenancy = self._tenancy
        if tenancy is None or (tenant := tenancy.tenant[index]) < 0:
            return ()
        client = tenancy.client[index]
        headers = self._of_client.get((tenant, client))
        if headers is None:
            own = {CLIENT_HEADER: f"{tenancy.specs[tenant].name}/{client}", **self._of_tenant[tenant]}
            headers = self._of_client[tenant, client] = tuple(own.items())
        return headers


def tenant_sections(scenario: Scenario) -> dict[str, Any]:
    """Return the sections of a Tidegate's configuration by which it knows the tenants of a scenario."""
    sections: dict[str, Any] = {}
    if scenario.tenants:
        named = {
            spec.name: {
                **spec.model_dump(include=_TENANT_SETTINGS, exclude_none=True),
                "values": [spec.headers.get(TENANT_HEADER, spec.name)],
            }
            for spec in scenario.tenants
        }
        sections["tenants"] = {"by": "metadata", "key": TENANT_HEADER, "named": named}
        sections["clients"] = {"by": "metadata", "key": CLIENT_HEADER}
    if scenario.priority_floors:
        sections["priority_floors"] = scenario.priority_floors
    return sections


def _headers_of(spec: TenantSpec, folder: Path) -> Mapping[str, str]:
    if {TENANT_HEADER, CLIENT_HEADER} - spec.headers.keys() and not _is_sendable(spec.name):
        raise LoadTestError(
            f"tenants: the name {spec.name!r} goes out as {TENANT_HEADER} and {CLIENT_HEADER}: write printable ASCII, "
            "or give both in its `headers`"
        )
    headers = {TENANT_HEADER: spec.name, **spec.headers}
    if spec.credentials_file is not None:
        headers["authorization"] = f"Bearer {_credential_in(folder / spec.credentials_file)}"
    return headers


def _credential_in(path: Path) -> str:
    """The first credential in clear of a file that Tidegate reads: one a line, in clear or hashed, and comments."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise LoadTestError(f"{path}: {why}; it must hold the bearer token of a tenant") from error
    words = [found[0] for line in lines if (found := _COMMENT.sub("", line).split())]
    in_clear = next((word for word in words if not word.startswith("sha256:")), None)
    if in_clear is None:
        raise LoadTestError(f"{path}: it has no credential in clear, and a request has to show one: write a token")
    if not _is_sendable(in_clear):
        raise LoadTestError(f"{path}: its first credential in clear cannot be sent: write a token of printable ASCII")
    return in_clear


def _is_sendable(value: str) -> bool:
    """Whether gRPC metadata takes a value."""
    return value.isascii() and value.isprintable()
