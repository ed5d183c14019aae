"""What has to go and what has to come, for the GPUs of a machine to be cut as a layout wants it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate.documents import Device, Mig, mig_geometries
from tidegate_proxy.mig.interface import MigError, MigGpu, MigInstance, MigMode
from tidegate_proxy.mig.wanted import check_names, gpu_of


@dataclass(frozen=True)
class Change:
    """What happens to one GPU: first some of its instances go, then others come."""

    gpu: MigGpu
    stay: tuple[MigInstance, ...]
    go: tuple[MigInstance, ...]
    come: tuple[Mig, ...]


def changes(gpus: Sequence[MigGpu], wanted: Mapping[Device, Sequence[Mig]]) -> list[Change]:
    """The changes, of those GPUs alone that differ. An instance that is wanted where it is stays as it is.

    Raises MigError, with everything that speaks against them.
    """
    check_names(gpus, wanted)
    found, against = [], []
    for device, instances in wanted.items():
        try:
            gpu = gpu_of(gpus, device)
            if instances:
                _check_product(gpu, device)
            if change := _change(gpu, instances):
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


def _change(gpu: MigGpu, wanted: Sequence[Mig]) -> Change | None:
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
    for instance in go:
        if instance.processes:
            pids = ", ".join(map(str, instance.processes))
            raise MigError(
                f"{gpu}: {instance} would have to go and is in use, by pid {pids}: stop what runs there first"
            )
    there = {instance.mig for instance in stay}
    come = tuple(each for each in wanted if each not in there)
    return Change(gpu, stay, go, come) if go or come else None
