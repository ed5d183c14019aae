"""What a layout wants of the GPUs of one node."""

import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tidegate.documents import LAYOUT_FILE, Device, Layout, LayoutWorker, Mig, mig_instance, read_document
from tidegate_proxy.tritons.mig.interface import MigError, MigGpu


def read_wish(source: Path) -> Layout:
    """The layout in a file, or in the folder of a deployment. Raises DocumentError."""
    return read_document(source / LAYOUT_FILE if source.is_dir() else source, Layout)


def cuts_of(layout: Layout, node: str) -> dict[Device, tuple[Mig, ...]]:
    """The MIG instances of each GPU of a node, by their first memory slice; none: it is not to be cut.

    A worker that names the UUID of an instance has one already.
    """
    cuts: dict[Device, set[Mig]] = {}
    for worker in layout.workers:
        if worker.device.node == node and not _is_instance(worker.device):
            instances = cuts.setdefault(worker.device, set())
            if instance := mig_instance(worker.slice):
                instances.add(instance)
    return {device: tuple(sorted(cut, key=lambda each: each.start)) for device, cut in cuts.items()}


def node_of(layout: Layout, named: str | None) -> str:
    """The node of a layout that this machine is: the one named, the one with its host name, or the only one.

    Raises MigError.
    """
    nodes = sorted({worker.device.node for worker in layout.workers})
    if named is not None and named not in nodes:
        raise MigError(f"--node {named}: the layout has no such node; it has {', '.join(nodes)}")
    here = named or platform.node()
    if here in nodes:
        return here
    if len(nodes) > 1:
        raise MigError(
            f"this machine is called {here}, and the layout has the nodes {', '.join(nodes)}: say --node NAME"
        )
    return nodes[0]


def gpu_of(gpus: Sequence[MigGpu], device: Device) -> MigGpu:
    """The GPU of this machine that a layout means. Raises MigError."""
    for gpu in gpus:
        if device.id in (gpu.number, gpu.device.id):
            return gpu
    there = ", ".join(f"{gpu.number} ({gpu.device.id})" for gpu in gpus) or "none"
    raise MigError(f"the layout has GPU {device.id} in node {device.node!r}, and this machine has {there}: say --node")


def check_names(gpus: Sequence[MigGpu], devices: Iterable[Device]) -> None:
    """Raise MigError for a GPU that a layout calls by its number here and by its UUID there.

    It would be cut as one of them wants it, and two workers would be given one instance.
    """
    known: dict[int, Device] = {}
    for device in devices:
        for gpu in gpus:
            if device.id in (gpu.number, gpu.device.id) and known.setdefault(gpu.number, device) != device:
                raise MigError(
                    f"{gpu} is {known[gpu.number].id} in the layout, and {device.id}, too: call it by one of them "
                    "everywhere"
                )


def workers_by_cut(layout: Layout, node: str) -> Mapping[Device, list[LayoutWorker]]:
    """The workers of a node that have a MIG instance, or a share of one, by their GPU."""
    found: dict[Device, list[LayoutWorker]] = {}
    for worker in layout.workers:
        if worker.device.node == node and mig_instance(worker.slice) and not _is_instance(worker.device):
            found.setdefault(worker.device, []).append(worker)
    return found


def _is_instance(device: Device) -> bool:
    return str(device.id).startswith("MIG-")
