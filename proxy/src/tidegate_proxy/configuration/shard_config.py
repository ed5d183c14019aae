"""The part of the configuration that one of several shards needs."""

from collections.abc import Mapping

from tidegate.schemas import Assignment, DocumentError, FieldError, read_document
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.config_file import ConfigError


def of_shard(config: ServeConfig, number: int, shards: int) -> ServeConfig:
    """Return the configuration of one shard: its Tritons and layout, and an event log of its own. Raises ConfigError.

    `shards`: number of shards at the start, which only a restart can change.
    """
    if len(config.shards) != shards:
        words = f"there are {len(config.shards)}, and there were {shards} at the start: only a restart changes that"
        raise ConfigError("configuration", (FieldError("shards", words),))
    event_log = config.event_log and config.event_log.with_stem(f"{config.event_log.stem}.shard{number}")
    shard = config.shards[number]
    return config.model_copy(update={"tritons": shard.tritons, "layout": shard.layout, "event_log": event_log})


def assignment_of(config: ServeConfig) -> Mapping[str, int]:
    """Return the shard of each model by the plan; empty without a plan. Raises DocumentError."""
    if config.plan is None:
        return {}
    assignment = read_document(config.plan, Assignment).assignment
    for model, number in assignment.items():
        if number >= len(config.shards):
            raise DocumentError(
                f"{config.plan}: assignment.{model}: sub-cluster {number} is no shard: `shards` names "
                f"{len(config.shards)}, the first of which is 0"
            )
    return assignment
