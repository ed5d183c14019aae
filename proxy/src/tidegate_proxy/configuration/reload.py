"""Reload: settings that can change while requests are in flight, and the current configuration for new processes."""

import logging
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.control import ControllerChoice
from tidegate_proxy.configuration.config import ServeConfig

log = logging.getLogger(__name__)


_OWNERS: Final = 0o600
"""File mode for the owner only, as the file contains secrets."""


class KeptConfig:
    """File with the current configuration of processes of one type, which outlives each of them.

    The user's own file may have changed since, or be incomplete, without a request to reload it. This file is in a
    folder of the supervisor. It is not JSON, in which secrets would be masked.
    """

    def __init__(self, file: Path, first: ServeConfig) -> None:
        """Create the file's reader and writer.

        `first`: configuration until another one is stored. The file need not exist.
        """
        self._file = file
        self._first = first

    def read(self) -> ServeConfig:
        """Return the applied configuration; if it cannot be read, the initial one, with a log message."""
        try:
            kept = pickle.loads(self._file.read_bytes())  # a file that only this user can write
        except FileNotFoundError:
            return self._first
        except Exception as error:  # whatever is wrong with it, the process has to start
            log.error("last configuration unreadable, using that of the start", extra={"error": str(error)})
            return self._first
        assert isinstance(kept, ServeConfig)
        return kept

    def keep(self, taken_up: ServeConfig) -> None:
        """Store a configuration, without fields that need a full restart; log a failure."""
        effective = diff(self._first, taken_up).effective
        beside = self._file.with_suffix(f".{os.getpid()}")
        try:
            beside.touch(mode=_OWNERS)
            beside.write_bytes(pickle.dumps(effective))
            beside.replace(self._file)
        except Exception as error:  # it is applied all the same
            log.error("configuration applied, not saved for restarted processes", extra={"error": str(error)})


RELOADABLE_FIELDS: Final = frozenset(
    {
        "tritons",
        "discovery",
        "shards",
        "plan",
        "models",
        "graphs",
        "layout",
        "policy",
        "startup_timeout_s",
        "clients",
        "tenants",
        "prices",
        "limits.reserved_queue_fraction_per_client",
        "limits.max_queue_size",
        "limits.max_queue_bytes",
        "limits.execution_timeout_s",
        "limits.health_timeout_s",
        "limits.liveness_timeout_s",
        "limits.max_shared_bytes",
        "limits.reserved_queue_fraction_per_model",
        "limits.max_bytes_in_flight",
        "limits.max_response_buffer_bytes",
        "limits.max_response_buffer_bytes_per_connection",
        "shedding",
        "retries",
        "outlier_detection",
        "batch_verification",
        "rollouts",
        "drain_timeout_s",
        "authentication",
        "restricted",
        "dashboard",
        "shared_memory",
        "shadow",
        "canary",
        "log.level",
        "controller.enabled",
    }
)
"""Fields that take effect while Tidegate runs."""
RESTART_REASONS: Final = {
    "version": "another format",
    "listen": "clients are connected to the ports that are open",
    "controller": "all but `enabled`: a controller has to know of every change from the first layout on",
    "profiles": "profiles have been corrected since by what was observed",
    "event_log": "a log that starts in the middle cannot be replayed",
    "observers": "an observer sees a policy from its first event on",
    "seed": "a policy draws from its seed from the start",
    "priority_floors": "an event log has them once, at its beginning",
    "app": "a policy has learned by the former tag",
    "feature": "a law has been learned over the former number",
    "limits.max_message_bytes": "connections are open that were promised another limit",
    "limits.no_slo_max_deferral_s": "an event log has it once, at its beginning",
    "limits.keepalive_s": "connections are open that were promised another interval",
    "limits.min_ping_interval_s": "connections are open that were promised another interval",
    **dict.fromkeys(
        (
            "limits.max_connections",
            "limits.max_concurrent_streams",
            "limits.request_headers_timeout_s",
            "limits.request_timeout_s",
            "limits.write_timeout_s",
            "limits.idle_timeout_s",
            "limits.max_connection_age_s",
        ),
        "the servers were started with another one",
    ),
    "frontends": "each has clients that are connected to it",
    "shard_links": "frontends and shards are connected by them",
    "tls": "ports are open with or without it; the files themselves are read again when they change",
    "log.format": "lines of two formats in one log cannot be read by machines",
    "tracing": "the exporter is set up at start",
}
"""Fields that need a restart, each with the reason."""


@dataclass(frozen=True)
class ConfigChanges:
    """Differences between a new configuration and the current one."""

    live: tuple[str, ...]
    """Fields that take effect now."""
    restart: tuple[str, ...]
    """Fields that keep their value until a restart."""
    effective: ServeConfig
    """Configuration to run with from now on: new where `live`, old where `restart`."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings, one for each field that needs a restart."""
        return tuple(f"{field}: changed, which needs a restart: {RESTART_REASONS[field]}" for field in self.restart)


def diff(old: ServeConfig, new: ServeConfig) -> ConfigChanges:
    """Return the changed fields, and which of them can change while Tidegate runs."""
    changed = [field for field in (*RELOADABLE_FIELDS, *RESTART_REASONS) if _get(old, field) != _get(new, field)]
    if "controller" in changed and (old.controller is None or new.controller is None):
        changed.remove("controller.enabled")
    restart = tuple(field for field in RESTART_REASONS if field in changed)
    return ConfigChanges(
        live=tuple(sorted(RELOADABLE_FIELDS.intersection(changed))),
        restart=restart,
        effective=_with(new, {field: _get(old, field) for field in restart}),
    )


def _get(config: ServeConfig, field: str) -> object:
    """The value of a field; of `controller` without what is live of it."""
    if field == "controller":
        return config.controller and config.controller.model_copy(update={"enabled": True})
    value: object = config
    for step in field.split("."):
        value = None if value is None else getattr(value, step)
    return value


def _with(config: ServeConfig, values: dict[str, object]) -> ServeConfig:
    """A copy with some fields of another configuration."""
    for field, value in values.items():
        if isinstance(value, ControllerChoice) and config.controller is not None:
            old = value.model_copy(update={"enabled": config.controller.enabled})
            config = config.model_copy(update={"controller": old})
            continue
        section, dot, name = field.partition(".")
        if dot:
            part = getattr(config, section)
            config = config.model_copy(update={section: part.model_copy(update={name: value})})
        else:
            config = config.model_copy(update={field: value})
    return config
