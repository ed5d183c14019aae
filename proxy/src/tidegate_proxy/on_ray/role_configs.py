"""Configuration of each shard and each frontend on Ray: the deployment's, with current addresses."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel

from tidegate.schemas import PROXY_FILE, Layout
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.tritons import TritonAddress
from tidegate_proxy.on_ray.plan import RayPlan

SECRET_FILE: Final = "links.secret"  # noqa: S105 - a file's name
_SHARD_LAYOUT: Final = "layout.of-shard.json"
_OURS: Final = ("tritons", "layout", "shards", "plan")
"""Fields that are said again."""
_OF_TRITON: Final = ("tls", "headers")
"""Fields that the deployment's configuration may set for a Triton beside its address."""
Document = Mapping[str, Any]
"""Configuration as a document."""


class RoleConfigs:
    """Configurations of shards and frontends, with current addresses."""

    def __init__(self, plan: RayPlan) -> None:
        text = (plan.deployment.folder / PROXY_FILE).read_text(encoding="utf-8")
        given: dict[str, Any] = yaml.safe_load(text)
        config = plan.deployment.config
        self._listen = config.listen.model_dump()
        if plan.deployment.free_ports:
            self._listen = {service: address and "0.0.0.0:0" for service, address in self._listen.items()}
        self._given_by_worker = {triton["worker"]: triton for triton in given["tritons"] if isinstance(triton, dict)}
        self._rest = {name: value for name, value in given.items() if name not in _OURS}
        self._rest |= {
            "frontends": max(1, config.frontends),
            "shard_links": {"secret_file": SECRET_FILE, "reconnect_timeout_s": config.shard_links.reconnect_timeout_s},
        }

    def of_shard(self, tritons: Mapping[str, TritonAddress], address: str) -> Document:
        """Return a shard's configuration, with no other shards.

        `tritons`: by worker; `address`: its address for frontends.
        """
        shard = {
            "tritons": [
                {name: value for name, value in self._given_by_worker.get(worker, {}).items() if name in _OF_TRITON}
                | {"worker": worker, "grpc": triton.grpc, "http": triton.http, "metrics": triton.metrics}
                for worker, triton in tritons.items()
            ],
            "layout": _SHARD_LAYOUT,
            "address": address,
        }
        # Clients are with the frontends; its own metrics page is for its node alone.
        return {**self._rest, "shards": [shard], "listen": {**self._listen, "metrics": "127.0.0.1:0"}}

    def of_frontend(self, shards: Sequence[str]) -> Document:
        """Return a frontend's configuration. `shards`: their addresses."""
        # Every shard has to name a Triton, and a frontend asks none.
        named = [{"tritons": [address], "address": address} for address in shards]
        return {**self._rest, "shards": named, "listen": {**self._listen, "reuse_port": True}}


def files_of_shard(layout: Layout) -> dict[str, bytes]:
    """Return the extra files of a shard's configuration, contents by name: those that the deployment does not have."""
    return {_SHARD_LAYOUT: json.dumps(layout.model_dump(mode="json")).encode()}


def named_files(config: ServeConfig) -> tuple[Path, ...]:
    """Return the paths of the files that a configuration refers to."""
    return tuple(dict.fromkeys(_paths(config)))


def _paths(value: object) -> list[Path]:
    if isinstance(value, Path):
        return [value]
    if isinstance(value, BaseModel):
        return _paths(dict(value))
    if isinstance(value, Mapping):
        return [path for each in value.values() for path in _paths(each)]
    if isinstance(value, list | tuple):
        return [path for each in value for path in _paths(each)]
    return []
