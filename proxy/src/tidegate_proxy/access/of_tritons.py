"""What Tritons themselves restrict: found out by asking, so that Tidegate serves none of it more openly unawares.

An API that a Triton keeps for those who know a header (`--grpc-restricted-protocol`, `--http-restricted-api`) would be
open to everybody where Tidegate asks for it in its own name (docs/decisions/0020).
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import aiohttp

from tidegate_proxy.access.apis import Api, Protocol
from tidegate_proxy.access.restrictions import RestrictionError
from tidegate_proxy.backend import SERVICE, Backend, is_restricted
from tidegate_proxy.configuration.access import Restriction
from tidegate_proxy.transport import CallFailed

log = logging.getLogger(__name__)

_METHODS: Final[Mapping[Api, str]] = {
    "health": "ServerLive",
    "metadata": "ServerMetadata",
    "shared-memory": "SystemSharedMemoryStatus",
    "model-config": "ModelConfig",
    "model-repository": "RepositoryIndex",
    "statistics": "ModelStatistics",
    "trace": "TraceSetting",
    "logging": "LogSettings",
}
"""A method of each API that changes nothing; inferences are asked for by a stream that ends before it has begun."""
_PATHS: Final[Mapping[Api, str]] = {
    "health": "/v2/health/live",
    "metadata": "/v2",
    "inference": "/v2/models/-/infer",
    "shared-memory": "/v2/systemsharedmemory/status",
    "model-config": "/v2/models/-/config",
    "model-repository": "/v2/repository/index",
    "statistics": "/v2/models/-/stats",
    "trace": "/v2/trace/setting",
    "logging": "/v2/logging",
}
"""To be asked for with GET: some then say no in another way, but not before they have said that they are restricted."""
_NEEDED: Final[tuple[Api, ...]] = ("health", "model-repository", "model-config", "inference")
"""What Tidegate asks for over gRPC in its own name."""
_NEEDED_FOR_HTTP: Final[tuple[Api, ...]] = ("statistics", "shared-memory")
_ANSWERED_HERE: Final[Mapping[Protocol, frozenset[Api]]] = {
    "grpc": frozenset({"health"}),
    "http": frozenset({"health", "inference", "statistics", "shared-memory"}),
}
"""What a Triton is not asked over the same protocol, and with what the client sent along."""
_FLAGS: Final[Mapping[Protocol, str]] = {
    "grpc": "gRPC (--grpc-restricted-protocol)",
    "http": "HTTP (--http-restricted-api)",
}
_TIMEOUT_S: Final = 5.0
_HTTP_STARTS_S: Final = 2.0
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Restricted:
    """What a Triton restricts over one protocol: its APIs, each with Triton's words."""

    for_anybody: Mapping[Api, str]
    for_us: Mapping[Api, str]
    """The restricted APIs that our own headers do not open."""


async def find_restrictions(backend: Backend, *, over_http: bool) -> dict[Protocol, Restricted]:
    """Ask a Triton that is live. Over HTTP where that is served and the Triton can be asked."""
    found: dict[Protocol, Restricted] = {"grpc": await _over_grpc(backend)}
    if over_http and backend.http_url:
        found["http"] = await _over_http(backend)
    return found


def problems(
    backend: Backend, found: Mapping[Protocol, Restricted], restricted: Sequence[Restriction], *, over_http: bool
) -> Iterator[str]:
    """What speaks against serving: APIs that Tidegate needs and cannot use, and those that it would open unasked."""
    for api in (*_NEEDED, *(_NEEDED_FOR_HTTP if over_http else ())):
        if words := found["grpc"].for_us.get(api):
            yield _lacks_key(backend, api, words)
    for protocol, what in found.items():
        decided = {api for entry in restricted if protocol in entry.protocols for api in entry.apis}
        opened = [
            api
            for api in what.for_anybody
            if api not in decided and (api in _ANSWERED_HERE[protocol] or api not in what.for_us)
        ]
        if opened:
            yield (
                f"Triton at {backend.address} restricts {', '.join(opened)} over {_FLAGS[protocol]}, and Tidegate "
                f"would serve it to everybody: say in `restricted`, for protocol {protocol}, who may use it: those "
                "with a header, nobody (closed: true), or everybody (open: true)"
            )


def _lacks_key(backend: Backend, api: Api, words: str) -> str:
    given = "what tritons.N.headers gives does not open it" if backend.headers else "give it in tritons.N.headers"
    return (
        f"Triton at {backend.address} restricts {api} over {_FLAGS['grpc']}, which Tidegate needs: {given} "
        f'(Triton says "{words}")'
    )


async def require_key(backend: Backend) -> None:
    """Raises RestrictionError where a Triton does not say whether it is ready because that is restricted."""
    if words := await _refusal(backend, "health", opened=True):
        raise RestrictionError(_lacks_key(backend, "health", words))


async def require_consent(backends: Sequence[Backend], restricted: Sequence[Restriction], *, over_http: bool) -> None:
    """Raises RestrictionError for the first problem with one of these Tritons. `over_http`: whether that is served."""
    found = await asyncio.gather(*(find_restrictions(backend, over_http=over_http) for backend in backends))
    for backend, restrictions in zip(backends, found, strict=True):
        for problem in problems(backend, restrictions, restricted, over_http=over_http):
            raise RestrictionError(problem)


async def _over_grpc(backend: Backend) -> Restricted:
    anybody = await _all_refused(backend, ("inference", *_METHODS), opened=False)
    return Restricted(anybody, await _all_refused(backend, anybody, opened=True) if backend.headers else anybody)


async def _all_refused(backend: Backend, apis: Iterable[Api], *, opened: bool) -> dict[Api, str]:
    asked = list(apis)
    refusals = await asyncio.gather(*(_refusal(backend, api, opened=opened) for api in asked))
    return {api: words for api, words in zip(asked, refusals, strict=True) if words}


async def _refusal(backend: Backend, api: Api, *, opened: bool) -> str:
    """Triton's words for it; "" where it is not restricted."""
    try:
        if api == "inference":
            stream = backend.stream(SERVICE + "ModelStreamInfer", timeout_s=_TIMEOUT_S, opened=opened)
            stream.half_close()
            while await stream.read() is not None:
                pass
        else:
            await backend.ask(SERVICE + _METHODS[api], b"", timeout_s=_TIMEOUT_S, opened=opened)
    except CallFailed as error:
        return error.details if is_restricted(error.details) else ""
    return ""


async def _over_http(backend: Backend) -> Restricted:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as session:

        async def refused(apis: Iterable[Api], headers: Mapping[str, str]) -> dict[Api, str]:
            asked = list(apis)
            answers = await asyncio.gather(*(_asked(session, backend.http_url + _PATHS[api], headers) for api in asked))
            return {api: words for api, words in zip(asked, answers, strict=True) if is_restricted(words)}

        if not await _is_there(session, backend.http_url):
            log.warning("what Triton at %s restricts over HTTP is not known: it does not answer", backend.http_url)
        anybody = await refused(_PATHS, {})
        return Restricted(anybody, await refused(anybody, dict(backend.headers)) if backend.headers else anybody)


async def _is_there(session: aiohttp.ClientSession, url: str) -> bool:
    """A Triton that has just started answers over gRPC first."""
    give_up = time.monotonic() + _HTTP_STARTS_S
    while time.monotonic() < give_up:
        try:
            async with session.get(f"{url}/v2/health/live"):
                return True
        except (aiohttp.ClientError, TimeoutError, ValueError):
            await asyncio.sleep(_POLL_S)
    return False


async def _asked(session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> str:
    try:
        async with session.get(url, headers=headers) as response:
            return await response.text(errors="replace") if response.status == HTTPStatus.FORBIDDEN else ""
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return ""
