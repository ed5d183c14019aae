"""The APIs that Triton's methods and routes belong to, by Triton's names for them, and the metrics page.

As Triton 2.51 maps them for `--grpc-restricted-protocol` and `--http-restricted-api`; `metrics` is ours.
"""

import re
from typing import Final, Literal, get_args
from urllib.parse import unquote

Api = Literal[
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
    "metrics",
]
APIS: Final[tuple[Api, ...]] = tuple(api for api in get_args(Api) if api != "metrics")
"""The APIs that Triton itself can restrict."""
Protocol = Literal["grpc", "http"]
PROTOCOLS: Final[tuple[Protocol, ...]] = get_args(Protocol)

_OF_METHOD: Final[dict[Api, tuple[str, ...]]] = {
    "health": ("ServerLive", "ServerReady", "ModelReady"),
    "metadata": ("ServerMetadata", "ModelMetadata"),
    "inference": ("ModelInfer", "ModelStreamInfer"),
    "shared-memory": tuple(
        f"{kind}SharedMemory{what}" for kind in ("System", "Cuda") for what in ("Status", "Register", "Unregister")
    ),
    "model-config": ("ModelConfig",),
    "model-repository": ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
    "statistics": ("ModelStatistics",),
    "trace": ("TraceSetting",),
    "logging": ("LogSettings",),
    "metrics": (),
}
METHOD_API: Final[dict[str, Api]] = {
    "/grpc.health.v1.Health/Check": "health",
    # Triton has no Watch; a proxy that answers it must not leave it open.
    "/grpc.health.v1.Health/Watch": "health",
    **{f"/inference.GRPCInferenceService/{name}": api for api, names in _OF_METHOD.items() for name in names},
}
"""The API of a gRPC method, by its full name."""

_MODEL: Final = "/v2/models/[^/]+"
_VERSION: Final = "(?:/versions/[0-9]+)?"
_PATTERNS: Final[dict[Api, str]] = {
    "inference": f"{_MODEL}{_VERSION}/(?:infer|generate|generate_stream)",
    "health": f"/v2/health/(?:live|ready)|{_MODEL}{_VERSION}/ready",
    "statistics": f"/v2/models/stats|{_MODEL}{_VERSION}/stats",
    "metadata": f"/v2|{_MODEL}{_VERSION}",
    "model-config": f"{_MODEL}{_VERSION}/config",
    "trace": f"/v2/trace/setting|{_MODEL}/trace/setting",
    "logging": "/v2/logging",
    "model-repository": "/v2/repository(?:/[^/]+)?/(?:index|models/[^/]+/(?:load|unload))",
    "shared-memory": "/v2/(?:system|cuda)sharedmemory(?:/region/[^/]+)?/(?:status|register|unregister)",
    "metrics": "/metrics|/models",
}
"""In this order: `/v2/models/stats` are statistics, not a model's metadata."""
_ROUTES: Final = tuple((api, re.compile(pattern)) for api, pattern in _PATTERNS.items())


def apis_of_path(path: str) -> tuple[Api, ...]:
    """The APIs of an HTTP path, mostly one; none for a path that Triton does not know. A query is left out of account.

    A path with percent signs is read both as it is, as Triton does, and decoded, as web frameworks do: neither reading
    may slip through.
    """
    path = path.partition("?")[0]
    api = _api_of(path)
    decoded = _api_of(unquote(path)) if "%" in path else api
    return tuple(found for found in dict.fromkeys((api, decoded)) if found is not None)


def _api_of(path: str) -> Api | None:
    return next((api for api, pattern in _ROUTES if pattern.fullmatch(path)), None)
