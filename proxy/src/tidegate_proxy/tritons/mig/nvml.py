"""MIG through NVML, with nvidia-ml-py."""

import ctypes
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

from tidegate.schemas import Device, Mig, MigGeometry, MigProfile
from tidegate_proxy.tritons.gpus import BYTES_PER_MIB, as_text, product_of
from tidegate_proxy.tritons.mig.interface import MigError, MigGpu, MigInstance, MigMode

_MIG_NAME = re.compile(r"MIG (\S+)$")
T = TypeVar("T")


class NvmlMig:
    """MIG access to the GPUs of this machine. `nvml`: the module `pynvml`, or a substitute."""

    def __init__(self, nvml: Any = None) -> None:  # noqa: ANN401 - pynvml says no types
        if nvml is None:
            try:
                nvml = import_module("pynvml")
            except ModuleNotFoundError as error:
                raise MigError('NVML is not to be had: pip install "tidegate-proxy[nvml]"') from error
        self._nvml = nvml

    def gpus(self) -> tuple[MigGpu, ...]:
        """Return the GPUs and their instances, in nvidia-smi's order. Raises MigError."""
        with self._open("read what GPUs there are"):
            return tuple(self._gpu(number) for number in range(self._nvml.nvmlDeviceGetCount()))

    def create(self, gpu: MigGpu, wanted: Mig) -> None:
        """Create an instance with one compute instance of full size. Raises MigError; then it does not exist."""
        nvml = self._nvml
        with self._open(f"make {wanted.profile} at {wanted.start} on {gpu}"):
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu.device.id)
            profile = next(info for name, info in self._profiles(handle) if name == wanted.profile)
            size = next(size for start, size in self._placements(handle, profile) if start == wanted.start)
            placement = nvml.c_nvmlGpuInstancePlacement_t(wanted.start, size)
            made = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile.id, ctypes.byref(placement))
            try:
                self._fill(made, profile.sliceCount)
            except nvml.NVMLError:
                nvml.nvmlGpuInstanceDestroy(made)
                raise

    def destroy(self, gpu: MigGpu, instance: MigInstance) -> None:
        """Destroy an instance and its compute instances. Raises MigError; then all of it exists."""
        nvml = self._nvml
        with self._open(f"remove {instance} from {gpu}"):
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu.device.id)
            there = nvml.nvmlDeviceGetGpuInstanceById(handle, instance.number)
            removed: list[int] = []
            try:
                for profile in self._compute_profiles(there):
                    room = (nvml.c_nvmlComputeInstance_t * profile.instanceCount)()
                    for part in _listed(nvml.nvmlGpuInstanceGetComputeInstances, there, profile, room):
                        nvml.nvmlComputeInstanceDestroy(part)
                        removed.append(profile.id)
                nvml.nvmlGpuInstanceDestroy(there)
            except nvml.NVMLError:
                for profile_id in removed:
                    nvml.nvmlGpuInstanceCreateComputeInstance(there, profile_id)
                raise

    @contextmanager
    def _open(self, what: str) -> Iterator[None]:
        """NVML from here to the end of the block; what it refuses is a MigError. `what`: was to be done."""
        nvml = self._nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise MigError(f"NVML does not start: {error}. Is there a GPU, and NVIDIA's driver?") from error
        try:
            yield
        except nvml.NVMLError_NoPermission as error:
            raise MigError(f"this user may not {what}: run it as root") from error
        except nvml.NVMLError_InUse as error:
            raise MigError(f"the driver does not {what}: it is in use; stop what runs on it first") from error
        except nvml.NVMLError_InsufficientResources as error:
            raise MigError(f"the driver does not {what}: what else is there leaves no room for it") from error
        except nvml.NVMLError as error:
            raise MigError(f"the driver does not {what}: NVML says {error}") from error
        finally:
            nvml.nvmlShutdown()

    def _gpu(self, number: int) -> MigGpu:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        product = product_of(as_text(nvml.nvmlDeviceGetName(handle)))
        memory = self._unless_refused(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // BYTES_PER_MIB)
        device = Device(platform.node(), as_text(nvml.nvmlDeviceGetUUID(handle)), product, memory)
        mode = self._mode(handle)
        if mode is MigMode.NONE:
            return MigGpu(number, device, mode, None, ())
        geometry = self._unless_refused(lambda: self._geometry(handle, product))
        on = mode in (MigMode.ON, MigMode.GOING_OFF)
        return MigGpu(number, device, mode, geometry, self._instances(handle, geometry) if on else ())

    def _mode(self, handle: Any) -> MigMode:  # noqa: ANN401
        modes = self._unless_refused(lambda: tuple(self._nvml.nvmlDeviceGetMigMode(handle)))
        if modes is None:
            return MigMode.NONE
        now, then = (each == self._nvml.NVML_DEVICE_MIG_ENABLE for each in modes)
        return {
            (False, False): MigMode.OFF,
            (True, True): MigMode.ON,
            (False, True): MigMode.GOING_ON,
            (True, False): MigMode.GOING_OFF,
        }[now, then]

    def _geometry(self, handle: Any, product: str) -> MigGeometry:  # noqa: ANN401
        profiles = []
        for name, info in self._profiles(handle):
            placements = self._placements(handle, info)
            if not placements:
                continue  # the driver lists profiles that this GPU has no place for, e.g. of graphics
            starts, sizes = zip(*placements, strict=True)
            profiles.append(
                MigProfile(
                    name,
                    info.id,
                    "",
                    info.sliceCount,
                    sizes[0],
                    starts,
                    info.instanceCount,
                    info.memorySizeMB / 1024,
                    info.multiprocessorCount,
                )
            )
        profiles.sort(key=lambda profile: (profile.compute_slices, profile.memory_slices, profile.name))
        return MigGeometry(
            product,
            max(profile.compute_slices for profile in profiles),
            max(start + profile.memory_slices for profile in profiles for start in profile.starts),
            max(profile.multiprocessors or 0 for profile in profiles),
            tuple(profiles),
        )

    def _profiles(self, handle: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
        """Return the profiles of the GPU, with NVML's data on each."""
        nvml = self._nvml
        for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number)
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
                continue
            yield as_text(info.name).removeprefix("MIG "), info

    def _placements(self, handle: Any, profile: Any) -> list[tuple[int, int]]:  # noqa: ANN401
        """Where instances of a profile may lie: first memory slice, and how many."""
        nvml, count = self._nvml, ctypes.c_uint()
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile.id, None, ctypes.byref(count))
        found = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile.id, found, ctypes.byref(count))
        return sorted((each.start, each.size) for each in found[: count.value])

    def _instances(self, handle: Any, geometry: MigGeometry | None) -> tuple[MigInstance, ...]:  # noqa: ANN401
        """Return the instances, without their places if this user may not see them."""
        nvml = self._nvml
        devices: dict[int, list[tuple[str, str, tuple[int, ...]]]] = {}
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                found = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
                continue  # there are fewer than there may be
            named = _MIG_NAME.search(as_text(nvml.nvmlDeviceGetName(found)))
            described = (named[1] if named else "", as_text(nvml.nvmlDeviceGetUUID(found)), self._processes(found))
            devices.setdefault(nvml.nvmlDeviceGetGpuInstanceId(found), []).append(described)
        placed = self._unless_refused(lambda: self._placed(handle)) if geometry else None
        if placed is None:
            placed = [(number, parts[0][0].rpartition("c.")[2], None) for number, parts in devices.items()]
        instances = []
        for number, profile, start in placed:
            parts = devices.get(number, [])
            processes = tuple(sorted({pid for _, _, pids in parts for pid in pids}))
            uuid = parts[0][1] if [name for name, _, _ in parts] == [profile] else None
            instances.append(MigInstance(number, profile, start, uuid, processes))
        return tuple(sorted(instances, key=lambda each: (each.start or 0, each.number)))

    def _placed(self, handle: Any) -> list[tuple[int, str, int | None]]:  # noqa: ANN401
        """Number, profile and first memory slice of every instance."""
        nvml = self._nvml
        found: list[tuple[int, str, int | None]] = []
        for name, profile in self._profiles(handle):
            room = (nvml.c_nvmlGpuInstance_t * profile.instanceCount)()
            for each in _listed(nvml.nvmlDeviceGetGpuInstances, handle, profile, room):
                info = nvml.nvmlGpuInstanceGetInfo(each)
                found.append((int(info.id), name, int(info.placement.start)))
        return found

    def _processes(self, handle: Any) -> tuple[int, ...]:  # noqa: ANN401
        nvml = self._nvml
        asked = (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetMPSComputeRunningProcesses)
        answers = [self._unless_refused(partial(ask, handle)) for ask in asked]
        return tuple(each.pid for some in answers for each in some or ())

    def _fill(self, made: Any, slices: int) -> None:  # noqa: ANN401
        """Give a new GPU instance the compute instance that is all of it."""
        whole = next(profile for profile in self._compute_profiles(made) if profile.sliceCount == slices)
        self._nvml.nvmlGpuInstanceCreateComputeInstance(made, whole.id)

    def _compute_profiles(self, instance: Any) -> Iterator[Any]:  # noqa: ANN401
        nvml = self._nvml
        for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                yield nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                    instance, number, nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
                )
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
                continue

    def _unless_refused(self, ask: Callable[[], T]) -> T | None:
        """Return the result of an NVML call; None if the device lacks the feature or permission is denied."""
        try:
            return ask()
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_NoPermission):
            return None


def _listed(ask: Callable[..., object], of: Any, profile: Any, room: Any) -> list[Any]:  # noqa: ANN401
    """Return the instances of a profile. `room`: array that `ask` fills, with space for all."""
    count = ctypes.c_uint()
    ask(of, profile.id, room, ctypes.byref(count))
    return list(room[: count.value])
