"""Lookup of the MIG instance of this machine that belongs to a worker of a layout.

Only privileged users can read the placement of an instance, and nvidia-mig-parted leaves it to the driver. But
instances of one profile are equal, so a worker gets that in its place if known, else the next of its profile, in the
same order for every caller.
"""

from collections.abc import Sequence

from tidegate.schemas import Layout, LayoutWorker, Mig, mig_instance
from tidegate_proxy.tritons.mig.changes import check_names, gpu_of, workers_by_cut
from tidegate_proxy.tritons.mig.interface import MigError, MigGpu, MigInstance, MigMode


def uuid_of(layout: Layout, name: str, node: str | None, gpus: Sequence[MigGpu]) -> str:
    """Return the UUID of a worker's GPU or MIG instance. Raises MigError.

    `node`: name of this machine; None: the worker's own node.
    """
    worker = next((each for each in layout.workers if each.name == name), None)
    if worker is None:
        raise MigError(f"the layout has no worker {name!r}; it has {', '.join(each.name for each in layout.workers)}")
    if node is not None and worker.device.node != node:
        raise MigError(f"worker {name!r} is in node {worker.device.node!r}, and this is {node!r}")
    if str(worker.device.id).startswith("MIG-"):
        return str(worker.device.id)
    gpu = gpu_of(gpus, worker.device)
    if mig_instance(worker.slice) is None:
        return str(gpu.device.id)
    cut = workers_by_cut(layout, worker.device.node)
    check_names(gpus, cut)
    return uuids(cut[worker.device], gpu)[name]


def uuids(workers: Sequence[LayoutWorker], gpu: MigGpu) -> dict[str, str]:
    """Return the UUIDs of the MIG instances of all workers of one GPU, by worker. Raises MigError."""
    if gpu.mode is MigMode.NONE or gpu.mode is MigMode.OFF:
        raise MigError(f"{gpu} is not cut, its MIG mode is {gpu.mode}: `tidegate mig diff` says what to do")
    wanted = sorted({_instance(worker) for worker in workers}, key=lambda each: (each.start, each.profile))
    there = [instance for instance in gpu.instances if instance.uuid is not None]
    found: dict[Mig, MigInstance] = {instance.mig: instance for instance in there if instance.mig in wanted}
    left = [instance for instance in there if instance not in found.values()]
    for mig in wanted:
        if mig in found:
            continue
        alike = next((instance for instance in left if instance.profile == mig.profile), None)
        if alike is None:
            listed = ", ".join(map(str, gpu.instances)) or "none"
            raise MigError(
                f"{gpu} has no instance {mig.profile} for what the layout has at {mig.start}; its instances: {listed}. "
                "Make it with `tidegate mig apply`"
            )
        left.remove(alike)
        found[mig] = alike
    return {worker.name: str(found[_instance(worker)].uuid) for worker in workers}


def _instance(worker: LayoutWorker) -> Mig:
    instance = mig_instance(worker.slice)
    assert instance is not None, "workers_by_cut() has those with instances"
    return instance
