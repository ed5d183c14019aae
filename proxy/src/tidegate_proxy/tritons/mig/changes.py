"""What has to go and what has to come, for the GPUs of a machine to be cut as a layout wants it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate.documents import Device, Mig, mig_geometries
from tidegate_proxy.tritons.mig.interface import MigError, MigGpu, MigInstance, MigMode
from tidegate_proxy.tritons.mig.wanted import check_names, gpu_of


@dataclass(frozen=True)
class Change:
    """What happens to one GPU: first some of its instances go, then others come."""

    gpu: MigGpu
    stay: tuple[MigInstance, ...]
    go: tuple[MigInstance, ...]
    come: tuple[Mig, ...]
    later: tuple[MigInstance, ...] = ()
    """Instances in use, which would have to go, too; what is wanted in their place is not among those that come."""


def changes(
    gpus: Sequence[MigGpu], wanted: Mapping[Device, Sequence[Mig]], *, unused_only: bool = False
) -> list[Change]:
    """The changes, of those GPUs alone that differ. An instance that is wanted where it is stays as it is.

    `unused_only`: what is in use is left for later, else it speaks against the change. Raises MigError, with everything
    that does.
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


def _change(gpu: MigGpu, wanted: Sequence[Mig], *, unused_only: bool) -> Change | None:
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
        raise MigError(f"{gpu}: this user is not told where its instances lie: run it as root")
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
    return Change(gpu, stay, go, tuple(come), used) if go or come or used else None


def pids(instance: MigInstance) -> str:
    """Who uses an instance, in words."""
    return ", ".join(map(str, instance.processes))


def _place(instance: MigInstance) -> Mig:
    """Where it is, cut again or not."""
    assert instance.start is not None, "who is not told places changes nothing"
    return Mig(instance.profile, instance.start)
