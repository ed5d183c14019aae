"""Mapping of Triton's gRPC methods to APIs, by Triton's names for them, and of the metrics.

The mapping is that of Triton 2.51 for `--grpc-restricted-protocol`; `metrics` is Tidegate's own. The HTTP routes name
their own APIs.
"""

from typing import Final, Literal, get_args

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
RESTRICTABLE_APIS: Final[tuple[Api, ...]] = tuple(api for api in get_args(Api) if api != "metrics")
"""APIs that Triton itself can restrict."""
Protocol = Literal["grpc", "http"]
RESTRICTABLE_PROTOCOLS: Final[tuple[Protocol, ...]] = get_args(Protocol)

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
"""API of each gRPC method, by its full name."""
