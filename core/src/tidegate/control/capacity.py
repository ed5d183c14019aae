"""Estimates by which changes of a layout are judged: the rate that it serves, and the GPUs that it uses."""

import re
from collections import defaultdict
from collections.abc import Mapping
from math import inf

from tidegate.api.device import Device, Mps, WholeDevice
from tidegate.api.mig import mig_geometries
from tidegate.schemas import Layout, LayoutModel, LayoutWorker, Mig, Slice, mig_instance

COMPUTE_SLICES = 7
"""How many compute slices a GPU has that is cut and of which no more is known."""


def capacities(layout: Layout) -> dict[str, float]:
    """Return the rows per second of each model, by name, if it had its workers to itself.

    The batch size is the largest of which two fit into the SLO, at most the planned one.
    """
    tables = {part.name: part.latency_ms for part in layout.partitions}
    hosts: defaultdict[str, list[str]] = defaultdict(list)
    for worker in layout.workers:
        for name in worker.hosts:
            hosts[name].append(worker.speed)

    def bears(model: LayoutModel, name: str, batch: int, parts: int) -> float:
        budget_ms = None if model.slo_ms is None else model.slo_ms / 2 / parts
        return sum(_rows_per_s(tables[name][kind][:batch], budget_ms) for kind in hosts[name])

    return {
        model.name: sum(
            min(bears(model, name, pipeline.batch, len(pipeline.partitions)) for name in pipeline.partitions)
            for pipeline in model.pipelines
        )
        for model in layout.models
    }


def _rows_per_s(table_ms: tuple[float, ...], budget_ms: float | None) -> float:
    fitting = [rows for rows, ms in enumerate(table_ms, 1) if budget_ms is None or ms <= budget_ms] or [1]
    return max(1000 * rows / table_ms[rows - 1] for rows in fitting)


def load_of(layout: Layout, rows_per_s: Mapping[str, float]) -> float:
    """Return the load of the busiest workers of a layout: 1 is their capacity.

    `rows_per_s`: rows per second by model. Models that share workers, directly or indirectly, share a load; this
    overestimates it if they share few. Infinite for requests of a model without workers.
    """
    group: dict[str, str] = {}

    def root(name: str) -> str:
        while group.setdefault(name, name) != name:
            name = group[name]
        return name

    model_of = {part.name: part.model for part in layout.partitions}
    for worker in layout.workers:
        for name in worker.hosts[1:]:
            group[root(model_of[name])] = root(model_of[worker.hosts[0]])
    bears = capacities(layout)
    loads: defaultdict[str, float] = defaultdict(float)
    for model in layout.models:
        rate = rows_per_s.get(model.name, 0.0)
        loads[root(model.name)] += rate / bears[model.name] if bears[model.name] else (inf if rate else 0.0)
    return max(loads.values())


def gpus_of(layout: Layout) -> float:
    """Return the number of GPUs that a layout uses; a shared GPU counts by its shares, at most 1."""
    devices: defaultdict[Device, dict[Slice, float]] = defaultdict(dict)
    for worker in layout.workers:
        taken = devices[worker.device]
        if isinstance(worker.slice, Mps):
            instance = worker.slice.instance or WholeDevice()
            part = taken.get(instance, 0.0) + worker.slice.percent / 100 * _share(worker, mig_instance(worker.slice))
            taken[instance] = min(part, _share(worker, mig_instance(worker.slice)))
        else:
            taken[worker.slice] = _share(worker, mig_instance(worker.slice))
    return sum(min(1.0, sum(taken.values())) for taken in devices.values())


def _share(worker: LayoutWorker, instance: Mig | None) -> float:
    """How much of its GPU an instance is; None: all of it."""
    if instance is None:
        return 1.0
    geometries = mig_geometries(worker.device.product, worker.device.memory_mib)
    slices = geometries[0].compute_slices if geometries else COMPUTE_SLICES
    taken = re.match(r"\d+", instance.profile)
    return min(1.0, int(taken[0]) / slices) if taken else 1.0
