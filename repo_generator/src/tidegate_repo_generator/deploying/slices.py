"""Names and environment of a worker by its slice: whole device, MIG instance or MPS share."""

from shlex import quote
from typing import assert_never

from tidegate.schemas import Device, LayoutWorker, Mig, Mps, Slice, WholeDevice
from tidegate_repo_generator.deploying.mps import MPS_PROBE_COMMAND, domain_of

VISIBLE_DEVICE = "visible"
"""Value of TIDEGATE_DEVICE in a container that sees exactly one device: use that one."""


def words(part: Slice) -> str:
    """Describe a slice for a table."""
    match part:
        case WholeDevice():
            return "whole"
        case Mig():
            return f"{part.profile} at {part.start}"
        case Mps():
            return f"{part.percent} %" + (f" of {words(part.instance)}" if part.instance else "")
        case _:
            assert_never(part)


def exports(worker: LayoutWorker) -> list[str]:
    """Return shell lines that restrict CUDA to the worker's slice.

    `$here` is the folder `workers` of the deployment.
    """
    device, part = worker.device, worker.slice
    match part:
        case WholeDevice():
            return _whole(device)
        case Mig():
            return _bound(_found(worker) if _is_to_be_found(device) else str(device.id))
        case Mps():
            domain = domain_of(worker)
            assert domain is not None
            memory = [f'export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0={part.memory_mib}M"'] if part.memory_mib else []
            return [
                *share_of(worker),
                f'export CUDA_MPS_PIPE_DIRECTORY="{domain.pipe_directory}"',
                f"if ! {MPS_PROBE_COMMAND}; then",
                f'  echo "error: MPS does not run there, without which there are no shares: {domain.script} start" >&2',
                "  exit 1",
                "fi",
                f"export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={part.percent}",
                *memory,
            ]
        case _:
            assert_never(part)


def share_of(worker: LayoutWorker) -> list[str]:
    """Return shell lines that make the shared device or instance visible to CUDA, by its UUID.

    An index does not work with MPS: clients of a daemon that serves one device count it as 0.
    """
    device = worker.device
    if isinstance(worker.slice, Mps) and worker.slice.instance is not None and _is_to_be_found(device):
        return _bound(_found(worker))
    if isinstance(device.id, str):
        return _bound(device.id)
    return _bound(f"$(nvidia-smi -i {device.id} --query-gpu=uuid --format=csv,noheader)")


def _whole(device: Device) -> list[str]:
    if isinstance(device.id, str):
        return _bound(device.id)
    return ["# GPUs are counted as nvidia-smi does.", "export CUDA_DEVICE_ORDER=PCI_BUS_ID", *_bound(str(device.id))]


def _is_to_be_found(device: Device) -> bool:
    """Whether the device is the GPU that is cut: an instance has a UUID only from when it is made."""
    return not str(device.id).startswith("MIG-")


def _found(worker: LayoutWorker) -> str:
    return f'$(tidegate mig uuid "$here/.." {quote(worker.name)})'


def _bound(device: str) -> list[str]:
    or_else = ' || { echo "error: the device is not found: say it with TIDEGATE_DEVICE (nvidia-smi -L)" >&2; exit 1; }'
    return [
        "# TIDEGATE_DEVICE: the number or UUID, where it is another one; `visible` in a container that shows no other.",
        f"device=${{TIDEGATE_DEVICE:-{device}}}{or_else if '$(' in device else ''}",
        f'[ "$device" = {VISIBLE_DEVICE} ] || export CUDA_VISIBLE_DEVICES="$device"',
    ]
