"""How a node's GPUs are to be cut, in the format of nvidia-mig-parted, which NVIDIA's GPU operator speaks, too.

It counts instances by profile and knows GPUs by number; where in a GPU an instance lies it leaves to the driver.
`tidegate mig apply` does not, and changes only what differs.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from tidegate.schemas import Device, LayoutWorker, Mig, mig_instance

CONFIG_NAME: Final = "tidegate"
"""What is to be applied: `nvidia-mig-parted apply -f FILE -c tidegate`."""


def cuts_of(workers: Iterable[LayoutWorker]) -> dict[Device, tuple[Mig, ...]]:
    """The MIG instances of every device, by their first memory slice; none: it is not to be cut.

    What a layout knows by the UUID of an instance is cut already and is not among them.
    """
    cuts: dict[Device, set[Mig]] = {}
    for worker in workers:
        if not str(worker.device.id).startswith("MIG-"):
            instances = cuts.setdefault(worker.device, set())
            if instance := mig_instance(worker.slice):
                instances.add(instance)
    return {device: tuple(sorted(cut, key=lambda each: each.start)) for device, cut in cuts.items()}


def mig_parted(cuts: dict[Device, tuple[Mig, ...]]) -> dict[str, Any] | None:
    """The document for one node; None where nothing is cut, or where a GPU that is has no number."""
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
