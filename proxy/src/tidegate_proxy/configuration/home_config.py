"""What of the configuration one home needs, of several."""

from collections.abc import Mapping

from tidegate.documents import Assignment, DocumentError, WrongField, read_document
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.config_file import ConfigError


def of_home(config: ServeConfig, number: int, homes: int) -> ServeConfig:
    """The configuration of one of so many homes: its Tritons and layout, and a record of its own. Raises ConfigError.

    `homes`: how many there were at the start, which only a restart can change.
    """
    if len(config.homes) != homes:
        words = f"there are {len(config.homes)}, and there were {homes} at the start: only a restart changes that"
        raise ConfigError("configuration", (WrongField("homes", words),))
    record = config.record and config.record.with_stem(f"{config.record.stem}.home{number}")
    home = config.homes[number]
    return config.model_copy(update={"tritons": home.tritons, "layout": home.layout, "record": record})


def assignment_of(config: ServeConfig) -> Mapping[str, int]:
    """Which home has which model, as the plan says; empty where there is none. Raises DocumentError."""
    if config.plan is None:
        return {}
    assignment = read_document(config.plan, Assignment).assignment
    for model, number in assignment.items():
        if number >= len(config.homes):
            raise DocumentError(
                f"{config.plan}: assignment.{model}: sub-cluster {number} is no home: `homes` names "
                f"{len(config.homes)}, the first of which is 0"
            )
    return assignment
