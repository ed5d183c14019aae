"""What serves on a GPU, instance by instance, and how much of each model's capacity that is."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidegate.api.device import Device, Mig, Slice
from tidegate.documents import Layout, LayoutPartition, LayoutWorker

Hosts = tuple[tuple[str, ...], ...]
"""What the workers of an instance host, each so many partitions, sorted."""
Gpu = tuple[tuple[Slice, Hosts], ...]
"""The instances of a GPU, sorted."""


def slots(part: Slice) -> tuple[int, str]:
    """An order of slices: by where they begin."""
    return (part.start, part.profile) if isinstance(part, Mig) else (-1, repr(part))


def gpus_of(layout: Layout) -> dict[Device, dict[Slice, tuple[LayoutWorker, ...]]]:
    """The workers of every instance of every device, those of an instance by what they host."""
    found: defaultdict[Device, defaultdict[Slice, list[LayoutWorker]]] = defaultdict(lambda: defaultdict(list))
    for worker in layout.workers:
        found[worker.device][worker.slice].append(worker)
    return {
        device: {part: tuple(sorted(mine, key=hosts_of)) for part, mine in instances.items()}
        for device, instances in found.items()
    }


def hosts_of(worker: LayoutWorker) -> tuple[str, ...]:
    """The partitions of a worker, sorted."""
    return tuple(sorted(worker.hosts))


def gpu_of(instances: Mapping[Slice, Iterable[LayoutWorker]]) -> Gpu:
    """The same without names: equal for GPUs that serve the same."""
    return tuple((part, tuple(map(hosts_of, instances[part]))) for part in sorted(instances, key=slots))


@dataclass(frozen=True)
class Capacities:
    """How many rows per second each partition's workers do, by kind of worker.

    In batches as large as all kinds have. A worker of several partitions does each of them a part of its time.
    """

    rows_per_s: Mapping[tuple[str, str], float]
    """What a worker does, by (partition, kind)."""

    @classmethod
    def of(cls, *layouts: Layout) -> "Capacities":
        """The capacities of all kinds in any of the layouts, the last one's word being the last."""
        tables: dict[str, dict[str, tuple[float, ...]]] = defaultdict(dict)
        for layout in layouts:
            for part in layout.partitions:
                tables[part.name].update(part.latency_ms)
        found = {}
        for name, kinds in tables.items():
            rows = min(map(len, kinds.values()))
            found.update({(name, kind): 1000 * rows / table[rows - 1] for kind, table in kinds.items()})
        return cls(found)

    def of_instance(self, device: Device, part: Slice, hosts: Hosts) -> dict[str, float]:
        """Rows per second by partition."""
        kind = device.kind(part)
        found: defaultdict[str, float] = defaultdict(float)
        for mine in hosts:
            for name in mine:
                found[name] += self.rows_per_s.get((name, kind), 0.0) / len(mine)
        return dict(found)


def model_of(parts: Iterable[LayoutPartition]) -> dict[str, str]:
    """{partition: its model}."""
    return {part.name: part.model for part in parts}
