"""APIs that Tritons restrict, found by probing, so that Tidegate does not expose them unprotected.

An API that a Triton restricts to clients with a header (`--grpc-restricted-protocol`, `--http-restricted-api`) would be
open to all clients if Tidegate called it in its own name. Unless `restricted` says who may use it, its calls are passed
with the client's own headers, and the Triton decides (decision 87).
"""

import asyncio
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import aiohttp
import grpc

from tidegate_proxy.access.gate import RestrictionError
from tidegate_proxy.access.passthrough_apis import GRPC_PREFIX, PassthroughApis
from tidegate_proxy.configuration.apis import Api, Protocol
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.transport import CallFailed
from tidegate_proxy.tritons.backend import SERVICE_PREFIX, Backend, is_restricted

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
_NEEDED: Final[tuple[Api, ...]] = ("model-repository", "model-config", "inference")
"""Methods that Tidegate calls over gRPC for scheduling. For health any response suffices."""
_FLAGS: Final[Mapping[Protocol, str]] = {
    "grpc": "gRPC (--grpc-restricted-protocol)",
    "http": "HTTP (--http-restricted-api)",
}
_HEADER: Final = re.compile(r"expecting header '([^']+)'")
"""How a Triton names the header that opens an API."""
_TIMEOUT_S: Final = 5.0
_NO_ANSWER: Final = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_HTTP_STARTS_S: Final = 2.0
_POLL_S: Final = 0.05
_NEVER_ASKED: Final = PassthroughApis()


@dataclass(frozen=True, slots=True)
class TritonRestrictions:
    """APIs that a Triton restricts over one protocol, with the text of its refusal."""

    for_anybody: Mapping[Api, str]
    for_us: Mapping[Api, str]
    """Restricted APIs that Tidegate's own headers do not open."""
    unknown: frozenset[Api] = frozenset()
    """APIs for which the Triton gave no answer."""
    is_absent: bool = False
    """Whether no server listens there, so that nothing is restricted yet."""

    @property
    def is_silent(self) -> bool:
        """Whether a server listens there that answers for no API: it hangs, or speaks another protocol."""
        return not self.is_absent and self.unknown == frozenset(_PATHS)


async def find_restrictions(
    backend: Backend, *, over_http: bool, starts_s: float = _HTTP_STARTS_S
) -> dict[Protocol, TritonRestrictions]:
    """Return the APIs that a live Triton restricts, by protocol; HTTP is queried if Tidegate serves it.

    `over_http`: whether Tidegate serves HTTP. `starts_s`: seconds to wait for the Triton's HTTP server to listen.
    """
    found: dict[Protocol, TritonRestrictions] = {"grpc": await _over_grpc(backend)}
    if over_http and backend.http_url:
        found["http"] = await _over_http(backend, starts_s)
    return found


def left_apis(
    found: Mapping[Protocol, TritonRestrictions], config: ServeConfig, before: PassthroughApis = _NEVER_ASKED
) -> PassthroughApis:
    """Return the restricted APIs whose calls Tidegate passes on with the client's own headers.

    `found`: restrictions by protocol. `before`: the earlier result, which holds for a silent Triton; an API that it
    never answered for is passed on until it answers.
    """
    decided = {(protocol, api) for entry in config.restricted for protocol in entry.protocols for api in entry.apis}
    left = {(protocol, api) for protocol, what in found.items() for api in what.for_anybody}
    unknown = {(protocol, api) for protocol, what in found.items() for api in what.unknown}
    present = {each for each in unknown if not found[each[0]].is_absent}
    left |= (unknown & before.left) | (present - before.answered)
    keys = {
        protocol: _key_in(what.for_anybody["inference"])
        for protocol, what in found.items()
        if "inference" in what.for_anybody and "inference" not in what.for_us
    }
    return PassthroughApis(
        frozenset(left - decided),
        frozenset(found["grpc"].for_us),
        answers_http_health=("http", "health") in decided,
        answered=before.answered | ({(protocol, api) for protocol in found for api in _PATHS} - unknown),
        unknown=frozenset(unknown),
        inference_keys=keys,
    )


def problems(backend: Backend, found: Mapping[Protocol, TritonRestrictions], config: ServeConfig) -> Iterator[str]:
    """Return problems that prevent serving: restricted APIs that Tidegate must call without a configured header."""
    decided = {
        api for entry in config.restricted if "grpc" in entry.protocols and not entry.closed for api in entry.apis
    }
    for api in _NEEDED:
        words = found["grpc"].for_us.get(api)
        if words and (config.layout or api in decided):
            yield _lacks_key(backend, api, words)
    if config.layout and any(api == "inference" for _, api in left_apis(found, config).left):
        yield (
            f"Triton at {backend.address} restricts inference, and cannot be asked by clients for models of a layout: "
            "say in `restricted` who may use it: clients with a header, none (closed: true), or all (open: true)"
        )


def wrong_keys(backend: Backend, found: Mapping[Protocol, TritonRestrictions]) -> Iterator[str]:
    """Yield messages on configured headers whose value differs from the Triton's."""
    names = {name for name, _ in backend.headers}
    for api, words in found["grpc"].for_us.items():
        if _key_in(words) in names:
            yield _lacks_key(backend, api, words)


def _lacks_key(backend: Backend, api: Api, words: str) -> str:
    given = "what tritons.N.headers gives does not open it" if backend.headers else "give it in tritons.N.headers"
    return (
        f"Triton at {backend.address} restricts {api} over {_FLAGS['grpc']}, which Tidegate needs: {given} "
        f'(Triton says "{words}")'
    )


def restriction_warnings(backend: Backend) -> Iterator[tuple[str, str]]:
    """Yield warnings on a Triton's restricted APIs, with remedies: calls that are passed on, facts that are lacking."""
    apis = backend.apis
    for protocol, flag in _FLAGS.items():
        if names := sorted(api for of, api in apis.left if of == protocol):
            yield (
                f"Triton at {backend.address} restricts {', '.join(names)} over {flag}: Tidegate passes such calls "
                "with the client's headers, and this Triton decides",
                "say who may use it in `restricted`, if Tidegate is to decide",
            )
    costs = [
        words
        for is_so, words in (
            ("inference" in apis.closed, "schedules none of its inferences"),
            ("model-config" in apis.closed, "does not know its models' configs, and schedules none of them"),
            ("model-repository" in apis.closed and apis.lists_models, "knows its models from its statistics alone"),
            (not apis.lists_models, "does not know which models it has"),
            ("health" in apis.closed, "does not know whether it is ready"),
        )
        if is_so
    ]
    if costs:
        yield (
            f"Triton at {backend.address} refuses {', '.join(sorted(apis.closed))} to Tidegate: Tidegate "
            + "; ".join(costs),
            "give the header in tritons.N.headers",
        )


async def log_restrictions(
    backends: Sequence[Backend],
    config: ServeConfig,
    *,
    over_http: bool,
    returning: bool = False,
    starts_s: float = _HTTP_STARTS_S,
) -> None:
    """Query the restrictions of these Tritons, and leave APIs to them that the configuration does not cover.

    `over_http`: whether that is served. Raises RestrictionError for the first problem, and then changes nothing.
    `returning`: the key of a returning Triton may have changed, which is only logged, because clients know it.
    """
    found = await asyncio.gather(
        *(find_restrictions(backend, over_http=over_http, starts_s=starts_s) for backend in backends)
    )
    for backend, restrictions in zip(backends, found, strict=True):
        for problem in problems(backend, restrictions, config):
            raise RestrictionError(problem)
        for problem in wrong_keys(backend, restrictions):
            if not returning:
                raise RestrictionError(problem)
            log.error("triton restricts with another key", extra={"triton": backend.address, "error": problem})
    for backend, restrictions in zip(backends, found, strict=True):
        before = backend.apis
        backend.restrict(left_apis(restrictions, config, _NEVER_ASKED if returning else before))
        for protocol in sorted({protocol for protocol, _ in backend.apis.unknown - before.unknown}):
            log.warning(
                "triton does not report its restrictions, it decides itself until it does",
                extra={"triton": backend.address, "flag": _FLAGS[protocol]},
            )
        if (backend.apis.left, backend.apis.closed) != (before.left, before.closed):
            for what, remedy in restriction_warnings(backend):
                log.warning("triton restricts an API", extra={"triton": backend.address, "detail": f"{what}; {remedy}"})


def _key_in(words: str) -> str:
    """The header that opens an API, named as over HTTP, in a Triton's words."""
    found = _HEADER.search(words)
    return found[1].lower().removeprefix(GRPC_PREFIX) if found else ""


Words = Mapping[Api, str | None]
"""Text of a Triton's refusal for each API; "": allowed; None: no answer."""


def _restricted(anybody: Words, ours: Words, *, is_absent: bool = False) -> TritonRestrictions:
    """Return the restrictions that the answers imply. In doubt, our headers do not unlock a restricted API."""
    refused = {api: words for api, words in anybody.items() if words}
    closed = {api: ours.get(api) or words for api, words in refused.items() if ours.get(api) != ""}
    unknown = frozenset(api for api, words in anybody.items() if words is None)
    return TritonRestrictions(refused, closed, unknown, is_absent)


async def _over_grpc(backend: Backend) -> TritonRestrictions:
    anybody = await _all_refused(backend, ("inference", *_METHODS), opened=False)
    refused = [api for api, words in anybody.items() if words]
    return _restricted(anybody, await _all_refused(backend, refused, opened=True) if backend.headers else {})


async def _all_refused(backend: Backend, apis: Iterable[Api], *, opened: bool) -> Words:
    asked = list(apis)
    refusals = await asyncio.gather(*(_refusal(backend, api, opened=opened) for api in asked))
    return dict(zip(asked, refusals, strict=True))


async def _refusal(backend: Backend, api: Api, *, opened: bool) -> str | None:
    """Triton's words for it; "" where it is not restricted, None where it does not answer."""
    try:
        if api == "inference":
            stream = backend.stream(SERVICE_PREFIX + "ModelStreamInfer", timeout_s=_TIMEOUT_S, opened=opened)
            stream.half_close()
            while await stream.read() is not None:
                pass
        else:
            await backend.ask(SERVICE_PREFIX + _METHODS[api], b"", timeout_s=_TIMEOUT_S, opened=opened)
    except CallFailed as error:
        if is_restricted(error.details):
            return error.details
        return None if error.code in _NO_ANSWER else ""
    return ""


async def _over_http(backend: Backend, starts_s: float) -> TritonRestrictions:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as session:

        async def refused(apis: Iterable[Api], headers: Mapping[str, str]) -> Words:
            asked = list(apis)
            answers = await asyncio.gather(*(_asked(session, backend.http_url + _PATHS[api], headers) for api in asked))
            return dict(zip(asked, answers, strict=True))

        is_absent = not await _listens(session, backend.http_url, starts_s)
        anybody: Words = dict.fromkeys(_PATHS) if is_absent else await refused(_PATHS, {})
        closed = [api for api, words in anybody.items() if words]
        ours = await refused(closed, dict(backend.headers)) if backend.headers else {}
        return _restricted(anybody, ours, is_absent=is_absent)


async def _listens(session: aiohttp.ClientSession, url: str, starts_s: float) -> bool:
    """Whether anybody takes connections. A Triton that has just started answers over gRPC first."""
    give_up = time.monotonic() + starts_s
    while True:
        try:
            async with session.get(f"{url}/v2/health/live"):
                return True
        except aiohttp.ClientConnectorError:
            if time.monotonic() > give_up:
                return False
            await asyncio.sleep(_POLL_S)
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return True  # and does not answer in time


async def _asked(session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> str | None:
    try:
        async with session.get(url, headers=headers) as response:
            if response.status != HTTPStatus.FORBIDDEN:
                return ""
            words = await response.text(errors="replace")
            return words if is_restricted(words) else ""
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None
