"""MIG instances of a GPU with their workers, and the capacity of each for the models."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tidegate.api.device import Device, Mig, Mps, Slice, WholeDevice, mig_instance
from tidegate.schemas import Layout, LayoutWorker

Instance = Mig | WholeDevice
"""MIG instance, or a whole device."""


class MpsShare(NamedTuple):
    """MPS share of a worker within an instance; a NamedTuple, so that shares can be sorted."""

    percent: int
    memory_mib: int
    """Memory limit in MiB; 0: none."""


WHOLE_INSTANCE = MpsShare(0, 0)
"""Share of a worker without MPS: the whole instance."""


class UnnamedWorker(NamedTuple):
    """A worker of an instance, without its name."""

    share: MpsShare
    hosts: tuple[str, ...]
    """Partitions that it hosts, sorted."""
    device_class: str
    """Device class that the layout names; empty: derived from device and slice."""


Seats = tuple[UnnamedWorker, ...]
"""Workers of an instance, sorted."""
Gpu = tuple[tuple[Instance, Seats], ...]
"""Instances of a GPU with their workers, sorted."""


def slots(part: Instance) -> tuple[int, str]:
    """Return the sort key of an instance: its first memory slice."""
    return (part.start, part.profile) if isinstance(part, Mig) else (-1, "")


def gpus_of(layout: Layout) -> dict[Device, dict[Instance, tuple[LayoutWorker, ...]]]:
    """Return the workers of every instance of every device, including MPS shares, sorted."""
    found: defaultdict[Device, defaultdict[Instance, list[LayoutWorker]]] = defaultdict(lambda: defaultdict(list))
    for worker in layout.workers:
        found[worker.device][mig_instance(worker.slice) or WholeDevice()].append(worker)
    return {
        device: {part: tuple(sorted(mine, key=seat_of)) for part, mine in instances.items()}
        for device, instances in found.items()
    }


def seat_of(worker: LayoutWorker) -> UnnamedWorker:
    """Return a worker without its name and device."""
    part = worker.slice
    share = MpsShare(part.percent, part.memory_mib or 0) if isinstance(part, Mps) else WHOLE_INSTANCE
    return UnnamedWorker(share, tuple(sorted(worker.hosts)), worker.device_class or "")


def slice_in(instance: Instance, share: MpsShare) -> Slice:
    """Return the slice of a worker with this share of an instance."""
    if share == WHOLE_INSTANCE:
        return instance
    return Mps(share.percent, share.memory_mib or None, instance if isinstance(instance, Mig) else None)


def gpu_of(instances: Mapping[Instance, Iterable[LayoutWorker]]) -> Gpu:
    """Return the instances of a GPU without worker names: equal for GPUs that serve the same."""
    return tuple((part, tuple(map(seat_of, instances[part]))) for part in sorted(instances, key=slots))


def without(seats: Seats, others: Seats) -> Seats:
    """Return the workers of `seats` that have no equal one in `others`."""
    return tuple(sorted((Counter(seats) - Counter(others)).elements()))


def names_of(seats: Seats, there: Iterable[LayoutWorker]) -> list[str | None]:
    """Return a name for each worker of an instance: that of an equal current worker if there is one.

    Other workers take names of workers with the same share, then any; None: no name is left. `there`: current workers.
    """
    left = list(there)
    names: list[str | None] = [None] * len(seats)
    closest: list[Callable[[UnnamedWorker], object]] = [lambda seat: seat, lambda seat: seat.share, lambda _: None]
    for what in closest:
        for number, seat in enumerate(seats):
            found = next((worker for worker in left if what(seat_of(worker)) == what(seat)), None)
            if names[number] is None and found is not None:
                left.remove(found)
                names[number] = found.name
    return names


@dataclass(frozen=True)
class Capacities:
    """Capacity of workers in rows per second by partition and device class.

    Measured at the largest batch size that all classes have. A worker of several partitions spends equal time on each.
    """

    rows_per_s: Mapping[tuple[str, str], float]
    """Rows per second of a worker, by (partition, device class)."""

    @classmethod
    def of(cls, *layouts: Layout) -> "Capacities":
        """Return the capacities of all device classes in these layouts; the last layout takes precedence."""
        tables: dict[str, dict[str, tuple[float, ...]]] = defaultdict(dict)
        for layout in layouts:
            for part in layout.partitions:
                tables[part.name].update(part.latency_ms)
        found = {}
        for name, device_classes in tables.items():
            rows = min(map(len, device_classes.values()))
            found.update(
                {(name, device_class): 1000 * rows / table[rows - 1] for device_class, table in device_classes.items()}
            )
        return cls(found)

    def of_instance(self, device: Device, part: Instance, seats: Seats) -> dict[str, float]:
        """Return the rows per second of an instance by partition."""
        found: defaultdict[str, float] = defaultdict(float)
        for seat in seats:
            device_class = seat.device_class or device.device_class(slice_in(part, seat.share))
            for name in seat.hosts:
                found[name] += self.rows_per_s.get((name, device_class), 0.0) / len(seat.hosts)
        return dict(found)
