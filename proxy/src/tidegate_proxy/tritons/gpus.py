"""GPUs of this machine, as reported by NVML. They are only read, and none is required."""

import logging
import platform
import re
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tidegate.schemas import Device, Mig, Slice, WholeDevice

log = logging.getLogger(__name__)

BYTES_PER_MIB = 1 << 20
_MIG_NAME = re.compile(r" MIG (\S+)$")
"""Pattern of the name of a MIG instance, e.g. `NVIDIA A100-SXM4-40GB MIG 1g.5gb`."""


@dataclass(frozen=True)
class Gpu:
    """A CUDA device of this machine: a GPU, or one MIG instance of a partitioned GPU."""

    uuid: str
    """UUID, as for CUDA_VISIBLE_DEVICES."""
    device: Device
    """GPU that it is, or is a part of."""
    slice: Slice | None
    """Slice of the GPU; None: a MIG instance whose placement only a privileged user can read."""
    device_class: str
    """Device class of a worker on it."""


def gpus_here(nvml: Any = None) -> tuple[Gpu, ...]:  # noqa: ANN401 - pynvml says no types
    """Return every GPU, in NVML's order; empty without NVML, or if it does not report all.

    `nvml`: the module `pynvml`, or a substitute.
    """
    if nvml is None:
        try:
            nvml = import_module("pynvml")
        except ModuleNotFoundError:
            log.debug("GPUs not examined", extra={"error": "nvidia-ml-py is not installed"})
            return ()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:  # no driver, no library: no GPU that anybody could use here
        log.debug("GPUs not examined", extra={"error": f"NVML: {error}"})
        return ()
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return tuple(gpu for handle in handles for gpu in _gpus_of(nvml, handle))
    except (nvml.NVMLError, ValueError) as error:
        log.info("NVML data not used", extra={"error": str(error)})
        return ()
    finally:
        nvml.nvmlShutdown()


def _gpus_of(nvml: Any, handle: Any) -> list[Gpu]:  # noqa: ANN401
    """The GPU; its MIG instances, where it is divided: then CUDA has no more of it."""
    name = as_text(nvml.nvmlDeviceGetName(handle))
    uuid = as_text(nvml.nvmlDeviceGetUUID(handle))
    device = Device(platform.node(), uuid, product_of(name), _memory_mib(nvml, handle))
    if not _is_divided(nvml, handle):
        return [Gpu(uuid, device, WholeDevice(), device.device_class(WholeDevice()))]
    instances = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError_NotFound:
            continue  # there are fewer than there may be
        instances.append(_instance(nvml, handle, instance, device))
    return instances


def _instance(nvml: Any, handle: Any, instance: Any, device: Device) -> Gpu:  # noqa: ANN401
    name = as_text(nvml.nvmlDeviceGetName(instance))
    profile = _MIG_NAME.search(name)
    if profile is None:
        raise ValueError(f"{name!r} names no profile of a MIG instance")
    number = nvml.nvmlDeviceGetGpuInstanceId(instance)
    part: Mig | None
    try:
        info = nvml.nvmlGpuInstanceGetInfo(nvml.nvmlDeviceGetGpuInstanceById(handle, number))
        part = Mig(profile[1], int(info.placement.start))
    except (nvml.NVMLError_NoPermission, nvml.NVMLError_NotSupported):
        part = None
    return Gpu(as_text(nvml.nvmlDeviceGetUUID(instance)), device, part, device.device_class(Mig(profile[1], 0)))


def product_of(name: str) -> str:
    """Return a GPU's name in one word: `H100-80GB-HBM3` for `NVIDIA H100 80GB HBM3`."""
    return "-".join(name.removeprefix("NVIDIA ").split())


def _is_divided(nvml: Any, handle: Any) -> bool:  # noqa: ANN401
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError_NotSupported:
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _memory_mib(nvml: Any, handle: Any) -> int | None:  # noqa: ANN401
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // BYTES_PER_MIB
    except nvml.NVMLError_NotSupported:
        return None  # of one that shares the memory of its CPU


def as_text(given: str | bytes) -> str:
    """Return text from NVML's bindings, which return bytes before version 11.510."""
    return given.decode() if isinstance(given, bytes) else given
