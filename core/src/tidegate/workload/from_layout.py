"""Scenarios whose workers, models and network come from a planner's layout."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tidegate.schemas import DocumentError, Layout, did_you_mean, field_errors, read_document


def sections_of(given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the sections `layout`, read, and `models`, with the layout's data of each model.

    A model's fraction of the arrivals is the rate that the plan can sustain, unless the file sets it. Raises ValueError
    for a file that cannot be used, and for sections that contradict the layout.
    """
    if doubled := [name for name in ("workers", "network") if given.get(name)]:
        raise ValueError(f"{doubled[0]}: comes from the layout; leave it out, or leave layout out")
    layout = _read(given["layout"], folder)
    return {"layout": layout, "models": _models(layout, given.get("models") or [])}


def _read(given: object, folder: Path) -> Layout:
    try:
        return read_document(folder / given, Layout) if isinstance(given, str) else Layout.model_validate(given)
    except DocumentError as error:
        raise ValueError(f"layout: {error}") from error
    except ValidationError as error:
        raise ValueError(f"layout: {field_errors(error, Layout)[0]}") from error


def _models(layout: Layout, listed: Sequence[Any]) -> list[Any]:
    named = {model["name"]: model for model in listed if isinstance(model, dict) and "name" in model}
    if len(named) < len(listed):
        return [*listed]  # which is wrong: let that be said
    if unknown := sorted(named.keys() - {model.name for model in layout.models}):
        models = did_you_mean(unknown[0], [model.name for model in layout.models], "it has")
        raise ValueError(f"models: {unknown[0]!r} is no model of the layout{models}")
    for name, model in named.items():
        if doubled := [field for field in ("profile", "profiles", "pipelines") if model.get(field)]:
            raise ValueError(f"models: {doubled[0]} of {name!r} comes from the layout: leave it out")
    return [
        {
            "slo_ms": model.slo_ms,
            "weight": model.rate_rps or 1.0,
            **named.get(model.name, {}),
            "name": model.name,
            "max_batch": max(pipeline.batch for pipeline in model.pipelines),
        }
        for model in layout.models
    ]
