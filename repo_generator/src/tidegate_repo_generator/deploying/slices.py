"""What differs with how much of its device a worker has: what it is called, and what its Triton has to be told."""

from typing import assert_never

from tidegate.documents import Device, Mig, Mps, Slice, Whole

_NUMBER_OR_UUID = (
    "# The device as its node knows it; set TIDEGATE_DEVICE to its number or UUID where that is another one."
)


def words(part: Slice) -> str:
    """How much of a device that is, in a table."""
    match part:
        case Whole():
            return "whole"
        case Mig():
            return f"{part.profile} at {part.start}"
        case Mps():
            return f"{part.percent} %"
        case _:
            assert_never(part)


def exports(device: Device, part: Slice) -> list[str]:
    """Lines of a shell script: from there on CUDA has this part of the device and no more."""
    match part:
        case Whole():
            return _visible(device)
        case Mig() if not str(device.id).startswith("MIG-"):
            remedy = f"set it to the UUID of the MIG instance {words(part)} of GPU {device.id}, from nvidia-smi -L"
            return [
                "# A MIG instance has a UUID from when it is made.",
                f'export CUDA_VISIBLE_DEVICES="${{TIDEGATE_DEVICE:?{remedy}}}"',
            ]
        case Mig():
            return _visible(device)
        case Mps():
            memory = [f'export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0={part.memory_mib}M"'] if part.memory_mib else []
            return [
                *_visible(device),
                "# A share of the GPU: needs NVIDIA MPS, started once in this node with",
                "#     nvidia-cuda-mps-control -d",
                f"export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={part.percent}",
                *memory,
            ]
        case _:
            assert_never(part)


def _visible(device: Device) -> list[str]:
    return [_NUMBER_OR_UUID, f'export CUDA_VISIBLE_DEVICES="${{TIDEGATE_DEVICE:-{device.id}}}"']
