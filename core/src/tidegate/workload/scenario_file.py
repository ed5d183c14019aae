"""Scenario files: reads YAML into a checked Scenario; errors name file, field and remedy."""

from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from tidegate.schemas import field_errors, format_field_errors, format_yaml_error, other_kind, parse_yaml
from tidegate.workload.scenario import Scenario

UNION_MEMBERS = frozenset({"poisson", "gamma", "uniform", "trace", "constant", "lognormal", "table"})
"""Members of unions, which are no fields of the file."""


class ScenarioError(Exception):
    """Error: a scenario cannot be used; the message names file, field and remedy."""


SERVERS_OWN: Final = "the server's own"
"""GPU of the placeholder for workers of a server."""
_PLACEHOLDER_PROFILE: Final = {"alpha_ms": 1e-3, "beta_ms": 1e-3, "max_batch": 4096}
"""Profile of a model of a server, which takes as long as it takes and checks the rows itself."""
_PLACEHOLDER_OF_STREAMS: Final = {**_PLACEHOLDER_PROFILE, "max_batch": 1}
_PLACEHOLDERS: Final = (_PLACEHOLDER_PROFILE, _PLACEHOLDER_OF_STREAMS)


def read_scenario(path: Path, changes: dict[str, Any] | None = None, *, for_server: bool = False) -> Scenario:
    """Read and check a scenario. Raises ScenarioError.

    `for_server`: it is sent to a server that has workers and models of its own: it needs neither workers nor profiles.

    `changes` replaces fields before the check, each named by its path, e.g. `{"models.0.slo_ms": 30}`; `*` stands for
    every entry of a list.
    """
    data = _parse(path)
    if data is None:
        raise ScenarioError(f"{path}: it is empty; a scenario has fields with values, such as duration_s: 10")
    if kind := other_kind(data, "a scenario", str(path)):
        raise ScenarioError(f"{path}: {kind}")
    data = changed_by(path, data, changes or {})
    if for_server:
        _add_placeholders(data)
    if isinstance(data, dict) and not data.get("name"):
        data["name"] = path.stem
    try:
        return Scenario.model_validate(data, context={"folder": path.parent})
    except ValidationError as error:
        raise ScenarioError(
            format_field_errors(str(path), field_errors(error, Scenario, members=UNION_MEMBERS))
        ) from error


def changed_by(path: Path, data: Any, changes: dict[str, Any]) -> Any:  # noqa: ANN401 - whatever YAML can say
    """Return unchecked scenario data with fields replaced as in `read_scenario`. Raises ScenarioError.

    `path`: file that errors name; `changes`: values by path of the field.
    """
    for field, value in changes.items():
        _change(path, data, field, value)
    return data


def _add_placeholders(data: Any) -> None:  # noqa: ANN401 - whatever YAML can say
    """Add workers and profiles where they are left out."""
    if not isinstance(data, dict) or data.get("layout") is not None:
        return
    data.setdefault("workers", [{"count": 1, "gpu": SERVERS_OWN}])
    models = data.get("models")
    for model in models if isinstance(models, list) and data.get("profiles") is None else []:
        if isinstance(model, dict) and not model.keys() & {"profile", "profiles", "pipelines"}:
            model["profile"] = dict(_PLACEHOLDER_OF_STREAMS if model.get("streaming") else _PLACEHOLDER_PROFILE)


def without_placeholders(document: dict[str, Any]) -> dict[str, Any]:
    """Return a scenario as JSON types without the defaults that `read_scenario(..., for_server=True)` added."""
    models = [
        {key: value for key, value in model.items() if key != "profile" or value not in _PLACEHOLDERS}
        for model in document["models"]
    ]
    workers = [pool for pool in document.get("workers", ()) if pool.get("gpu") != SERVERS_OWN]
    return {**document, "workers": workers, "models": models}


def parse_value(text: str) -> Any:  # noqa: ANN401 - whatever YAML can say
    """Return the value of a YAML text. Raises ScenarioError."""
    import yaml  # noqa: PLC0415 - of the extra `sim`

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ScenarioError(f"{text!r}: {format_yaml_error(error)}") from error


def _parse(path: Path) -> Any:  # noqa: ANN401 - whatever YAML can say
    import yaml  # noqa: PLC0415 - of the extra `sim`

    try:
        return parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ScenarioError(f"{path}: {why}; a scenario is a YAML file") from error
    except yaml.YAMLError as error:
        raise ScenarioError(f"{path}: {format_yaml_error(error)}") from error


def _change(path: Path, data: Any, field: str, value: Any) -> None:  # noqa: ANN401
    """Replace a field, wherever `*` leads to; a section that was left out is put in."""
    *steps, last = field.split(".")
    found = [data]
    for step in steps:
        found = [_enter(path, part, key, field) for part in found for key in _keys(path, part, step, field)]
    for part in found:
        for key in _keys(path, part, last, field):
            part[key] = value


def _keys(path: Path, part: Any, step: str, field: str) -> list[Any]:  # noqa: ANN401
    """Return the types behind one step of a field's path."""
    if isinstance(part, list) and step == "*":
        return list(range(len(part)))
    if isinstance(part, list) and step.isdecimal() and int(step) < len(part):
        return [int(step)]
    if isinstance(part, dict) and step:
        return [step]
    has = f"{part!r}"
    if isinstance(part, list):
        has = f"a list of {len(part)}, whose entries are named by number from 0 (* for all)"
    raise ScenarioError(f"{path}: cannot set {field!r}: {step!r} leads nowhere, there is {has}")


def _enter(path: Path, part: Any, key: Any, field: str) -> Any:  # noqa: ANN401
    if isinstance(part, dict) and part.get(key) is None:
        part[key] = {}
    if not isinstance(part[key], list | dict):
        raise ScenarioError(f"{path}: cannot set {field!r}: {key!r} is {part[key]!r}, which has no fields")
    return part[key]
