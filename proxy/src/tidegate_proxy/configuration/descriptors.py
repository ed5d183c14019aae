"""Limit of connections by open files: beyond it no port accepts, and no log says so."""

import logging
import resource
from typing import Final

from tidegate_proxy.configuration.config import ServeConfig

log = logging.getLogger(__name__)

_RESERVE: Final = 128
"""Descriptors at least for files, libraries and connections to Tritons."""
_RESERVE_FRACTION: Final = 8
"""And at least an eighth of all."""


def within_descriptors(config: ServeConfig) -> ServeConfig:
    """Return the configuration with as many connections per port as open files allow.

    Warns if these are fewer than the configuration asks for; the default asks for as many as there can be.
    Each port has its own part, so that a flood of connections on one does not affect the others.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return config
    ports = [port for port in (config.listen.grpc, config.listen.http, config.listen.metrics) if port]
    allowed = max(1, (files - max(_RESERVE, files // _RESERVE_FRACTION)) // max(1, len(ports)))
    if allowed >= config.limits.max_connections:
        return config
    log.log(
        logging.WARNING if "max_connections" in config.limits.model_fields_set else logging.DEBUG,
        "fewer connections allowed than limits.max_connections: raise the limit of open files (ulimit -n, "
        "LimitNOFILE=), or lower max_connections",
        extra={
            "max_connections": config.limits.max_connections,
            "ports": len(ports),
            "open_files": files,
            "allowed_per_port": allowed,
        },
    )
    limits = config.limits.model_copy(update={"max_connections": allowed})
    return config.model_copy(update={"limits": limits})
