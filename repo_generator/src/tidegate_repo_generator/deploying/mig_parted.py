"""MIG configuration of a node in the format of nvidia-mig-parted, which NVIDIA's GPU operator reads too.

The format counts instances by profile and identifies GPUs by index; the driver places the instances.
`tidegate mig apply` keeps the placement of the layout, and changes only what differs.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from tidegate.schemas import Device, LayoutWorker, Mig, mig_instance

CONFIG_NAME: Final = "tidegate"
"""Name of the configuration: `nvidia-mig-parted apply -f FILE -c tidegate`."""


def cuts_of(workers: Iterable[LayoutWorker]) -> dict[Device, tuple[Mig, ...]]:
    """Return the MIG instances of every device, ordered by first memory slice; empty for a device that is not cut.

    Instances that the layout identifies by UUID exist already and are left out.
    """
    cuts: dict[Device, set[Mig]] = {}
    for worker in workers:
        if not str(worker.device.id).startswith("MIG-"):
            instances = cuts.setdefault(worker.device, set())
            if instance := mig_instance(worker.slice):
                instances.add(instance)
    return {device: tuple(sorted(cut, key=lambda each: each.start)) for device, cut in cuts.items()}


def mig_parted(cuts: dict[Device, tuple[Mig, ...]]) -> dict[str, Any] | None:
    """Return the document for one node, or None if no GPU is cut, or if a cut one has no index."""
    cut = any(cuts.values())
    if not cut or any(instances and isinstance(device.id, str) for device, instances in cuts.items()):
        return None
    alike: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for device, instances in cuts.items():
        if isinstance(device.id, int):
            counts = Counter(instance.profile for instance in instances)
            alike.setdefault(tuple(sorted(counts.items())), []).append(device.id)
    entries = [
        {"devices": sorted(numbers), "mig-enabled": bool(counts), **({"mig-devices": dict(counts)} if counts else {})}
        for counts, numbers in sorted(alike.items(), key=lambda each: min(each[1]))
    ]
    return {"version": "v1", "mig-configs": {CONFIG_NAME: entries}}
