"""Layouts for tests, in a line each."""

from collections.abc import Mapping, Sequence

from tidegate.schemas import (
    Device,
    Layout,
    LayoutModel,
    LayoutPartition,
    LayoutPipeline,
    LayoutWorker,
    Slice,
    WholeDevice,
)

Hosts = Sequence[str]


def layout(
    workers: Mapping[str, Hosts],
    *,
    slices: Mapping[str, Slice] | None = None,
    on: Mapping[str, int] | None = None,
    batch: int = 4,
    slo_ms: float | None = 100.0,
    batch_ms: float = 10.0,
) -> Layout:
    """Workers by name, each with the models that it hosts; on a GPU of its own unless `on` says which.

    Every batch takes 10 ms, or `batch_ms`.
    """
    names = sorted({name for hosts in workers.values() for name in hosts})
    placed = [
        LayoutWorker(
            name=worker,
            device=Device("node", (on or {}).get(worker, number), "gpu"),
            slice=(slices or {}).get(worker, WholeDevice()),
            device_class="any",
            hosts=tuple(hosts),
        )
        for number, (worker, hosts) in enumerate(workers.items())
    ]
    return Layout(
        models=tuple(
            LayoutModel(name=name, slo_ms=slo_ms, pipelines=(LayoutPipeline(partitions=(name,), batch=batch),))
            for name in names
        ),
        partitions=tuple(
            LayoutPartition(name=name, model=name, blocks=(0, 1), latency_ms={"any": (batch_ms,) * batch})
            for name in names
        ),
        workers=tuple(placed),
    )


def workers_of(count: int, hosts: Hosts = ("m",)) -> dict[str, Hosts]:
    """So many workers that host the same."""
    return {f"w{number}": hosts for number in range(count)}
