"""Changes of MIG instances that a layout needs on a node, and their execution."""

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.schemas import (
    LAYOUT_FILE,
    Device,
    Layout,
    LayoutWorker,
    Mig,
    mig_geometries,
    mig_instance,
    read_document,
)
from tidegate_proxy.tritons.mig.interface import MigError, MigGpu, MigInstance, MigMode
from tidegate_proxy.tritons.mig.nvml import NvmlMig


def read_wish(source: Path) -> Layout:
    """Read the layout from a file, or from the folder of a deployment. Raises DocumentError."""
    return read_document(source / LAYOUT_FILE if source.is_dir() else source, Layout)


def cuts_of(layout: Layout, node: str) -> dict[Device, tuple[Mig, ...]]:
    """Return the MIG instances of each GPU of a node, by their first memory slice; empty for one that is not cut.

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
    """Return the layout's node that this machine is: the named one, the one with its host name, or the only one.

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
    """Return the GPU of this machine for a layout's device. Raises MigError."""
    for gpu in gpus:
        if device.id in (gpu.number, gpu.device.id):
            return gpu
    there = ", ".join(f"{gpu.number} ({gpu.device.id})" for gpu in gpus) or "none"
    raise MigError(f"the layout has GPU {device.id} in node {device.node!r}, and this machine has {there}: say --node")


def check_names(gpus: Sequence[MigGpu], devices: Iterable[Device]) -> None:
    """Raise MigError for a GPU that a layout identifies both by index and by UUID.

    It would be cut by one of them only, and two workers would get one instance.
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
    """Return the workers of a node with a MIG instance, or a share of one, by their GPU."""
    found: dict[Device, list[LayoutWorker]] = {}
    for worker in layout.workers:
        if worker.device.node == node and mig_instance(worker.slice) and not _is_instance(worker.device):
            found.setdefault(worker.device, []).append(worker)
    return found


def _is_instance(device: Device) -> bool:
    return str(device.id).startswith("MIG-")


@dataclass(frozen=True)
class MigChange:
    """Change of one GPU: instances to destroy, then instances to create."""

    gpu: MigGpu
    stay: tuple[MigInstance, ...]
    go: tuple[MigInstance, ...]
    come: tuple[Mig, ...]
    later: tuple[MigInstance, ...] = ()
    """Instances in use that would have to be destroyed too; their replacements are not among those to create."""


def changes(
    gpus: Sequence[MigGpu], wanted: Mapping[Device, Sequence[Mig]], *, unused_only: bool = False
) -> list[MigChange]:
    """Return the changes, only for GPUs that differ. An instance that exists as wanted is kept.

    `unused_only`: leave instances in use for later; otherwise they prevent the change. Raises MigError with all
    obstacles.
    """
    check_names(gpus, wanted)
    found, against = [], []
    for device, instances in wanted.items():
        try:
            gpu = gpu_of(gpus, device)
            if instances:
                _check_product(gpu, device)
            if change := _change(gpu, instances, unused_only=unused_only):
                found.append(change)
        except MigError as error:
            against.append(str(error))
    if against:
        raise MigError("\n".join(against))
    return found


def _check_product(gpu: MigGpu, planned: Device) -> None:
    """Raise MigError where the layout is for another GPU: an A100 and an H100 have profiles of the same names."""
    wanted = mig_geometries(planned.product, planned.memory_mib)
    there = mig_geometries(gpu.device.product, gpu.device.memory_mib)
    if wanted and there and not any(geometry in there for geometry in wanted):
        raise MigError(
            f"{gpu} is {planned.product} in the layout, which was planned with the latencies of such: plan for the GPU "
            "that is here, or say which node this is with --node"
        )


def _change(gpu: MigGpu, wanted: Sequence[Mig], *, unused_only: bool) -> MigChange | None:
    if not wanted:
        if gpu.mode in (MigMode.ON, MigMode.GOING_ON):
            raise MigError(
                f"{gpu} is to be one device, and its MIG mode is {gpu.mode}: turn it off with "
                f"`nvidia-smi -i {gpu.number} -mig 0`"
            )
        return None
    if gpu.mode is MigMode.NONE:
        raise MigError(f"{gpu} has no MIG: plan its workers on whole GPUs or on MPS shares")
    if gpu.mode is not MigMode.ON:
        reset = "; it comes with a reset" if gpu.mode is MigMode.GOING_ON else ""
        raise MigError(
            f"{gpu}: its MIG mode is {gpu.mode}: turn it on with `nvidia-smi -i {gpu.number} -mig 1` while nothing "
            f"runs on it{reset} (`nvidia-smi -i {gpu.number} --gpu-reset`)"
        )
    if gpu.geometry is None or any(instance.start is None for instance in gpu.instances):
        raise MigError(f"{gpu}: this user may not see where its instances lie: run it as root")
    if why_not := gpu.geometry.why_not(wanted):
        raise MigError(f"{gpu} cannot be cut so: {why_not}")
    stay = tuple(instance for instance in gpu.instances if instance.mig in wanted)
    go = tuple(instance for instance in gpu.instances if instance not in stay)
    used = tuple(instance for instance in go if instance.processes)
    if used and not unused_only:
        raise MigError(
            f"{gpu}: {used[0]} would have to go and is in use, by pid {pids(used[0])}: stop what runs there first, or "
            "leave it for later with --unused"
        )
    go = tuple(instance for instance in go if instance not in used)
    kept = [_place(instance) for instance in (*stay, *used)]
    come: list[Mig] = []
    for each in wanted:
        if each not in kept and gpu.geometry.is_legal((*kept, *come, each)):
            come.append(each)
    return MigChange(gpu, stay, go, tuple(come), used) if go or come or used else None


def pids(instance: MigInstance) -> str:
    """Return the processes that use an instance, as text."""
    return ", ".join(map(str, instance.processes))


def _place(instance: MigInstance) -> Mig:
    """Where it is, cut again or not."""
    assert instance.start is not None, "a user who may not see places changes nothing"
    return Mig(instance.profile, instance.start)


def apply_changes(node: NvmlMig, changes: Sequence[MigChange], tell: Callable[[str], None] = lambda what: None) -> None:
    """Destroy and create instances, GPU by GPU; `tell` is called after each step.

    If the driver rejects a step, or on Ctrl-C, earlier steps are rolled back. Raises MigError, which says whether that
    succeeded; restored instances may have other UUIDs, and divided ones are whole.
    """
    steps = 0
    try:
        for change in changes:
            for gone in change.go:
                node.destroy(change.gpu, gone)
                steps += 1
                tell(f"{change.gpu}: {gone} is gone")
            for wanted in change.come:
                node.create(change.gpu, wanted)
                steps += 1
                tell(f"{change.gpu}: {wanted.profile} at {wanted.start} is there")
    except (MigError, KeyboardInterrupt) as error:
        why = str(error) or "interrupted"
        try:
            _take_back(node, changes)
        except MigError as worse:
            raise MigError(
                f"{why}\nand it could not be taken back: {worse}\n`tidegate mig show` says what there is"
            ) from error
        raise MigError(
            f"{why}\n{'what was changed before is taken back' if steps else 'nothing is changed'}"
        ) from error


def _take_back(node: NvmlMig, changes: Sequence[MigChange]) -> None:
    """Bring about what there was before, from whatever there is: a step may have been half done."""
    before = {change.gpu.device.id: (*change.stay, *change.later, *change.go) for change in changes}
    for gpu in node.gpus():
        if gpu.device.id not in before:
            continue
        was = {_profile_and_start(instance): instance for instance in before[gpu.device.id]}
        kept = set()
        for instance in gpu.instances:
            then = was.get(_profile_and_start(instance))
            if then and (instance.uuid or not then.uuid):
                kept.add(_profile_and_start(instance))
            else:
                node.destroy(gpu, instance)
        for profile, start in was.keys() - kept:
            node.create(gpu, Mig(profile, start))


def _profile_and_start(instance: MigInstance) -> tuple[str, int]:
    assert instance.start is not None, "changes() knows all places"
    return instance.profile, instance.start
