"""Requests to Kubernetes' API server, with the service account of Tidegate's pod."""

import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Self

import aiohttp

from tidegate_proxy.configuration.triton_sources import KubernetesService, SourceError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder with the credentials of a pod: `token`, `ca.crt` and `namespace`."""
ANSWER_TIMEOUT_S: Final = 10.0
MERGE_PATCH: Final = "application/merge-patch+json"


class KubernetesApi:
    """Client of the API server for one service. Use it as a context manager."""

    def __init__(self, label: str, service: KubernetesService) -> None:
        """Create the client. `label`: name of the service in messages."""
        self._label = label
        self._service = service
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    @property
    def namespace(self) -> str:
        """Namespace of the service. Raises SourceError."""
        if self._service.namespace:
            return self._service.namespace
        try:
            return (SERVICE_ACCOUNT / "namespace").read_text().strip()
        except OSError as error:
            raise SourceError(f"{self._label}: its namespace is not known outside a pod; give it") from error

    @asynccontextmanager
    async def get(
        self, path: str, query: Mapping[str, str], grant: str, limit: aiohttp.ClientTimeout | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Ask for a path; whatever goes wrong, also while the block reads the answer, is raised as a SourceError.

        `query`: parameters of the URL; `grant`: verbs and resource that the service account needs; `limit`: limits of
        time, None for those of every request.
        """
        async with self._asked("GET", path, grant, params=query, timeout=limit or self._session.timeout) as response:
            yield response

    async def patch(self, path: str, body: Mapping[str, Any], grant: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Merge `body` into an object and return the result. Raises SourceError, also for a conflict.

        `path`: of the object; `grant`: as for `get`; `dry_run`: the API server checks everything, and changes nothing.
        """
        query = {"dryRun": "All"} if dry_run else {}
        kind = {"Content-Type": MERGE_PATCH}
        async with self._asked("PATCH", path, grant, params=query, json=body, headers=kind) as response:
            document: dict[str, Any] = await response.json(content_type=None)
            return document

    @asynccontextmanager
    async def _asked(
        self,
        method: str,
        path: str,
        grant: str,
        *,
        headers: Mapping[str, str] | None = None,
        **options: Any,  # noqa: ANN401 - those of aiohttp
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            base, credentials, tls = self._access()
            sent = {**credentials, **(headers or {})}
            async with self._session.request(method, base + path, headers=sent, ssl=tls, **options) as response:
                if response.status != HTTPStatus.OK:
                    raise SourceError(self._refusal(path, response.status, grant))
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError) as error:
            why = str(error) or f"no answer in {ANSWER_TIMEOUT_S:g} s"
            raise SourceError(f"{self._label}: the API server cannot be asked: {why}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SourceError(f"{self._label}: the API server's answer makes no sense: {error!r}") from error

    def _refusal(self, path: str, status: int, grant: str) -> str:
        remedy = {
            HTTPStatus.UNAUTHORIZED: "mount the token of a service account into Tidegate's pod",
            HTTPStatus.FORBIDDEN: f"let Tidegate's service account {grant} there (a Role and a RoleBinding)",
            HTTPStatus.NOT_FOUND: "check service, namespace and api",
            HTTPStatus.CONFLICT: "something else has just changed it",
        }
        words = next((each for code, each in remedy.items() if code == status), "it is asked again")
        return f"{self._label}: the API server answers {status} to {path}; {words}"

    def _access(self) -> tuple[str, dict[str, str], ssl.SSLContext | bool]:
        """The API server's URL, and headers and TLS to ask it with. The token changes from time to time."""
        if self._service.api:
            return self._service.api, {}, True
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            remedy = "set its `api`, such as that of `kubectl proxy`"
            raise SourceError(f"{self._label}: Tidegate runs in no pod (no KUBERNETES_SERVICE_HOST); {remedy}")
        host = f"[{host}]" if ":" in host else host
        token = (SERVICE_ACCOUNT / "token").read_text().strip()
        tls = ssl.create_default_context(cafile=SERVICE_ACCOUNT / "ca.crt")
        return f"https://{host}:{port}", {"Authorization": f"Bearer {token}"}, tls
