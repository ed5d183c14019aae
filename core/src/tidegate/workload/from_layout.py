"""A scenario's workers, models and network out of a planner's layout."""

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from tidegate.documents import DocumentError, Layout, LayoutModel, LayoutPartition, LayoutWorker, read_document


def sections_of(given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The sections in the form in which the file would list them, and `layout` itself gone.

    Each model's share of the arrivals is what the plan can bear. Raises ValueError for a file that cannot be used, and
    for sections that are given beside it.
    """
    if doubled := [name for name in ("workers", "models", "models_from", "network") if given.get(name)]:
        raise ValueError(f"{doubled[0]}: comes from the layout; leave it out, or leave layout out")
    try:
        layout = read_document(folder / str(given["layout"]), Layout)
    except DocumentError as error:
        raise ValueError(f"layout: {error}") from error
    parts = {part.name: part for part in layout.partitions}
    return {
        "layout": None,
        "models": [_model(model, parts) for model in layout.models],
        "workers": [
            _pool(list(alike)) for _, alike in groupby(layout.workers, lambda w: (w.kind, w.gpu, w.node, w.hosts))
        ],
        "network": layout.network.model_dump() if layout.network else None,
    }


def _model(model: LayoutModel, parts: Mapping[str, LayoutPartition]) -> dict[str, Any]:
    return {
        "name": model.name,
        "slo_ms": model.slo_ms,
        "share": model.rate_rps or 1.0,
        "pipelines": [
            {"batch": pipeline.batch, "partitions": [_partition(parts[name]) for name in pipeline.partitions]}
            for pipeline in model.pipelines
        ],
    }


def _partition(part: LayoutPartition) -> dict[str, Any]:
    return {
        "name": part.name,
        "output_bytes": part.bytes_per_row,
        "profiles": {kind: {"points_ms": dict(enumerate(table, 1))} for kind, table in part.latency_ms.items()},
    }


def _pool(alike: list[LayoutWorker]) -> dict[str, Any]:
    """Workers of one device that host the same."""
    first = alike[0]
    return {
        "count": len(alike),
        "gpu": first.kind,
        "per_gpu": first.share,
        "node": first.node,
        "hosts": list(first.hosts),
    }
