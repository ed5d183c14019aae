"""Reader of the configuration: a YAML file, overridden by command-line flags, as one validated ServeConfig."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from tidegate.schemas import (
    WHOLE_DOCUMENT,
    Assignment,
    DocumentError,
    FieldError,
    field_errors,
    format_field_errors,
    format_yaml_error,
    other_kind,
    parse_yaml,
    read_document,
)
from tidegate_proxy.configuration.config import ListenConfig, ServeConfig
from tidegate_proxy.configuration.triton_sources import with_sources


class ConfigError(Exception):
    """Error: the configuration is invalid; the message names file, fields and remedies.

    `document` is the file with the flags applied, as far as it could be read, for further checks.
    """

    def __init__(self, source: str, problems: tuple[FieldError, ...], document: object = None) -> None:
        super().__init__(format_field_errors(source, problems))
        self.problems = problems
        self.document = document


def read_config(path: Path | None = None, flags: Mapping[str, Any] | None = None) -> ServeConfig:
    """Read a file, apply flags, and validate the result. Raises ConfigError with all problems.

    `flags` is a part of the document, e.g. `{"policy": {"name": "fifs"}, "startup_timeout_s": None}`: sections are
    merged, other values replace those of the file, and None is ignored. Paths in the file are relative to its folder,
    those of flags to the current folder.
    """
    given = _given(flags or {})
    source = _source(path, given)
    document = _parse(path) if path else {}
    if not isinstance(document, dict):
        what = "it is no mapping of fields to values" if document else "it is empty; `tidegate init` writes one"
        raise ConfigError(source, (FieldError(WHOLE_DOCUMENT, what),))
    if kind := other_kind(document, "a configuration of `tidegate serve`", str(path)):
        raise ConfigError(source, (FieldError(WHOLE_DOCUMENT, kind),))
    merged = _merged(_listening(_long(document), _long(given)), _long(given))
    data = with_sources(_with_all_tritons(merged, source))
    folder = path.parent.absolute() if path else Path.cwd()
    try:
        # As JSON: pydantic then takes strings for paths and lists for tuples, and is strict in all else.
        return ServeConfig.model_validate_json(json.dumps(data, default=str), context={"folder": folder})
    except ValidationError as error:
        problems = field_errors(error, ServeConfig)
        if isinstance(merged.get("tritons"), dict):
            problems = tuple(replace(each, where=_where_written(each.where)) for each in problems)
        raise ConfigError(source, problems, data) from error


def _where_written(field: str) -> str:
    """The place of a field in a file whose `tritons` is a source."""
    moved = field == "discovery.0" or field.startswith("discovery.0.")
    return field.replace("discovery.0", "tritons", 1) if moved else field


def _source(path: Path | None, flags: Mapping[str, Any]) -> str:
    if path is None:
        return "command line"
    return f"{path} with the flags given" if flags else str(path)


def _with_all_tritons(document: dict[str, Any], source: str) -> dict[str, Any]:
    """With shards, `tritons` are those of all of them. Raises ConfigError where both are given."""
    shards = document.get("shards")
    if not shards or not isinstance(shards, list):
        return document
    if document.get("tritons"):
        words = "each shard has Tritons of its own: name all of them in `shards`, and leave these out"
        raise ConfigError(source, (FieldError("tritons", words),))
    lists = [shard.get("tritons") for shard in shards if isinstance(shard, dict)]
    return {**document, "tritons": [triton for each in lists if isinstance(each, list) for triton in each]}


def _parse(path: Path) -> Any:  # noqa: ANN401 - whatever YAML can say
    try:
        return parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(str(path), (FieldError(WHOLE_DOCUMENT, f"{why}; a configuration is a YAML file"),)) from error
    except yaml.YAMLError as error:
        raise ConfigError(str(path), (FieldError(WHOLE_DOCUMENT, format_yaml_error(error)),)) from error


def _given(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Flags without those that were not given; their paths made independent of the file's folder."""
    given: dict[str, Any] = {}
    for name, value in flags.items():
        if isinstance(value, Mapping):
            inner = _given(value)
            if inner:
                given[name] = inner
        elif isinstance(value, Path):
            given[name] = str(value.absolute())
        elif value is not None:
            given[name] = value
    return given


def _listening(document: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """A file that does not say where to listen, as if it said the defaults, where flags change but one of these."""
    if "listen" in document or "grpc" in given.get("listen", {"grpc": ""}):
        return document
    default: ListenConfig = ServeConfig.model_fields["listen"].default
    return {**document, "listen": default.model_dump(exclude_unset=True)}


def _long(document: dict[str, Any]) -> dict[str, Any]:
    """Sections that may be written as one string, written out, so that they can be merged."""
    short = {"policy": "name", "listen": "grpc"}
    return {
        name: {short[name]: value} if name in short and isinstance(value, str) else value
        for name, value in document.items()
    }


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        # The options of one policy mean nothing to another.
        if name == "policy" and isinstance(old, dict) and "name" in value and value["name"] != old.get("name"):
            old = None
        merged[name] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


_PLAIN: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_YAML_WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def yaml_scalar(text: str) -> str:
    """Return a string as YAML writes it, quoted where it could be read as something else."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in _YAML_WORDS else json.dumps(text)


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
