"""Scenarios with the latency of models that `tidegate profile` measured."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tidegate.api import NS_PER_MS
from tidegate.api.device import DEFAULT_DEVICE_CLASS
from tidegate.schemas import ProfileFile, ProfileFileError, did_you_mean, read_profiles
from tidegate.workload.workers import WorkerSpec


def models_as_measured(given: Mapping[str, Any], folder: Path) -> list[Any]:
    """Return the section `models` with measured profiles (medians, by device class) for models without their own.

    Raises ValueError for a file that cannot be used, or that lacks a model or a model's device class.
    """
    if given.get("layout") is not None:
        raise ValueError("profiles: a layout has those of its models: leave out one of the two")
    path = folder / str(given["profiles"])
    try:
        file = read_profiles(path)
    except ProfileFileError as error:
        raise ValueError(f"profiles: {error}") from error
    workers = _workers(given.get("workers"))
    return [_measured(model, file, path, workers) for model in given.get("models") or []]


def _workers(given: object) -> list[WorkerSpec]:
    """Return the valid entries; errors in the others are reported where the section is read."""
    found = []
    for entry in given if isinstance(given, list) else ():
        try:
            found.append(WorkerSpec.model_validate(entry))
        except ValidationError:
            continue
    return found


def _measured(model: Any, file: ProfileFile, path: Path, workers: Sequence[WorkerSpec]) -> Any:  # noqa: ANN401 - not checked yet
    own = ("profile", "profiles", "pipelines")
    if not (isinstance(model, dict) and isinstance(model.get("name"), str)) or any(model.get(name) for name in own):
        return model
    name = model["name"]
    measured = sorted({each.device_class for each in file.profiles if each.model == name})
    if not measured:
        known = did_you_mean(name, sorted({each.model for each in file.profiles}), "it has")
        raise ValueError(
            f"profiles: {path} has nothing of {name!r}{known}. Measure it with `tidegate profile {name}`, or say in "
            "`models` how long it takes"
        )
    if measured == [DEFAULT_DEVICE_CLASS]:  # on whatever there is, or will be asked for
        return _with_tables(model, {DEFAULT_DEVICE_CLASS: _sizes(file, name, DEFAULT_DEVICE_CLASS)}, file)
    running = [pool.device_class for pool in workers if pool.hosts is None or name in pool.hosts]
    kinds = dict.fromkeys(
        [*(device_class for device_class in measured if device_class != DEFAULT_DEVICE_CLASS), *running]
    )
    for device_class in kinds:
        if not file.measured_for(name, device_class):
            known = did_you_mean(device_class, measured, "it has")
            raise ValueError(
                f"profiles: {path} has nothing of {name!r} on {device_class!r}{known}. Measure it with "
                f"`tidegate profile {name} --device-class {device_class}`, or leave it out of the "
                "`hosts` of those workers"
            )
    return _with_tables(model, {device_class: _sizes(file, name, device_class) for device_class in kinds}, file)


def _with_tables(model: dict[str, Any], sizes: Mapping[str, Sequence[int]], file: ProfileFile) -> dict[str, Any]:
    """The model with its profiles and those of its shapes; `sizes`: the batches that were measured, by kind."""
    given = model.get("max_batch")
    max_batch = min(its[-1] for its in sizes.values()) if given is None else given
    if not isinstance(max_batch, int) or max_batch < 1:
        return model  # which is wrong: let that be said
    tables: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for device_class, its in sizes.items():
        rows_of_points = [*(rows for rows in its if rows < max_batch), max_batch]
        for profile in file.profiles_of(model["name"], device_class, max_batch):
            points_ms = {rows: profile.expected_ns(rows) / NS_PER_MS for rows in rows_of_points}
            tables[profile.shape][device_class] = {"points_ms": points_ms}
    changed = {**model, "max_batch": max_batch, **_section(tables[""])}
    if isinstance(shapes := model.get("shapes"), list):
        changed["shapes"] = [_shape(shape, tables) for shape in shapes]
    return changed


def _shape(shape: Any, tables: Mapping[str, dict[str, Any]]) -> Any:  # noqa: ANN401 - not checked yet
    if not isinstance(shape, dict) or any(shape.get(name) for name in ("latency_factor", "profile", "profiles")):
        return shape
    return {**shape, **_section(tables.get(str(shape.get("shape")), {}))}


def _section(by_kind: dict[str, Any]) -> dict[str, Any]:
    if [*by_kind] == [DEFAULT_DEVICE_CLASS]:
        return {"profile": by_kind[DEFAULT_DEVICE_CLASS]}
    return {"profiles": by_kind} if by_kind else {}


def _sizes(file: ProfileFile, model: str, device_class: str) -> list[int]:
    return sorted({point.rows for each in file.measured_for(model, device_class) for point in each.points})
