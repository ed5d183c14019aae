"""A stand-in for pynvml on GPUs that can be cut: NVML's functions, with ctypes, which refuse what hardware refuses.

Where instances may lie it looks up in the geometry, memory slice by memory slice, by rules of its own: a test that asks
for what is not legal fails here as it would there. What is not defined here is not there: no test reaches a real GPU.
"""

import ctypes
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NoReturn

import pynvml

from tidegate.schemas import MIG_GEOMETRIES, MigGeometry, MigProfile

_COMPUTE_SLICES = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7}
"""By the number of the compute instance's profile, which is its ID, too."""


def refuse(code: int) -> NoReturn:
    raise pynvml.NVMLError(code)


@dataclass
class Compute:
    """A compute instance: what CUDA has for a device."""

    number: int
    slices: int
    uuid: str
    pids: list[int] = field(default_factory=list)


@dataclass
class Instance:
    number: int
    profile: MigProfile
    start: int
    parts: list[Compute] = field(default_factory=list)


@dataclass
class Gpu:
    uuid: str
    name: str = "NVIDIA A100-SXM4-40GB"
    geometry: MigGeometry | None = MIG_GEOMETRIES["A100-40GB"]
    now: bool = True
    then: bool = True
    instances: list[Instance] = field(default_factory=list)

    def cut(self) -> dict[str, list[int]]:
        """What a test looks at: the starts of the instances by profile, each with one compute instance."""
        found: dict[str, list[int]] = {}
        for each in sorted(self.instances, key=lambda each: each.start):
            assert [part.slices for part in each.parts] == [each.profile.compute_slices]
            found.setdefault(each.profile.name, []).append(each.start)
        return found


class FakeNvml:
    """The module. `root`: whether the user is. `fails`: called before each function that changes anything."""

    def __init__(self, *gpus: Gpu, root: bool = True) -> None:
        self.gpus = gpus
        self.root = root
        self.open = 0
        self.changed: list[str] = []
        self.fails: Any = lambda function, *arguments: None
        self._made = 0
        self._handles: dict[int, tuple[Gpu, Instance, Compute | None]] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml"):
            raise AttributeError(f"the stand-in has no {name}")
        return getattr(pynvml, name)

    # For tests --------------------------------------------------------------------------------------------------------

    def make(self, gpu: Gpu, profile: str, start: int, *parts: int, pids: tuple[int, ...] = ()) -> Instance:
        """Make an instance by hand; `parts`: slices of its compute instances, by default one that is all of it."""
        assert gpu.geometry is not None
        instance = self._instance(gpu, gpu.geometry.profile(profile), start)
        for slices in parts or (instance.profile.compute_slices,):
            self._part(instance, slices).pids.extend(pids)
        return instance

    # Reading ----------------------------------------------------------------------------------------------------------

    def nvmlInit(self) -> None:
        if not self.gpus:
            refuse(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        assert self.open
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:
        assert self.open
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None) or refuse(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetName(self, handle: Any) -> str:
        if isinstance(handle, Gpu):
            return handle.name
        gpu, instance, part = handle
        cut_again = f"{part.slices}c." if part.slices < instance.profile.compute_slices else ""
        return f"{gpu.name} MIG {cut_again}{instance.profile.name}"

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return str(handle.uuid if isinstance(handle, Gpu) else handle[2].uuid)

    def nvmlDeviceGetMemoryInfo(self, handle: Gpu, version: object = None) -> SimpleNamespace:
        return SimpleNamespace(total=40960 << 20)

    def nvmlDeviceGetMigMode(self, device: Gpu) -> list[int]:
        if device.geometry is None:
            refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [int(device.now), int(device.then)]

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Gpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Gpu, index: int) -> tuple[Gpu, Instance, Compute]:
        there = [(device, instance, part) for instance in device.instances for part in instance.parts]
        if index >= len(there):
            refuse(pynvml.NVML_ERROR_NOT_FOUND)
        return there[index]

    def nvmlDeviceGetGpuInstanceId(self, device: tuple[Gpu, Instance, Compute]) -> int:
        return device[1].number

    def nvmlDeviceGetComputeRunningProcesses(self, handle: tuple[Gpu, Instance, Compute]) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in handle[2].pids if pid < 1000]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: tuple[Gpu, Instance, Compute]) -> list[SimpleNamespace]:
        """Those from 1000 on are clients of MPS."""
        return [SimpleNamespace(pid=pid) for pid in handle[2].pids if pid >= 1000]

    def nvmlDeviceGetGpuInstanceProfileInfo(self, device: Gpu, profile: int, version: int = 2) -> Any:
        for each in device.geometry.profiles if device.geometry else ():
            if getattr(pynvml, f"NVML_GPU_INSTANCE_PROFILE_{each.nvml}") == profile:
                info = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t()
                info.id, info.sliceCount, info.instanceCount = each.id, each.compute_slices, each.most
                info.memorySizeMB = int(each.memory_gib * 1024)
                info.multiprocessorCount = each.multiprocessors or 0
                info.name = f"MIG {each.name}".encode()
                return info
        return refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlDeviceGetGpuInstancePossiblePlacements(
        self, device: Gpu, profileId: int, placementsRef: Any, countRef: Any
    ) -> int:
        self._need_root()
        profile = self._profile(device, profileId)
        if placementsRef is not None:
            for place, start in zip(placementsRef, reversed(profile.starts), strict=True):
                place.start, place.size = start, profile.memory_slices
        _object(countRef).value = len(profile.starts)
        return 0

    def nvmlDeviceGetGpuInstances(self, device: Gpu, profileId: int, gpuInstancesRef: Any, countRef: Any) -> int:
        self._need_mig(device)
        self._need_root()
        there = [instance for instance in device.instances if instance.profile.id == profileId]
        for number, instance in enumerate(there):
            gpuInstancesRef[number] = self._handle(pynvml.c_nvmlGpuInstance_t, device, instance)
        _object(countRef).value = len(there)
        return 0

    def nvmlDeviceGetGpuInstanceById(self, device: Gpu, gpuInstanceId: int) -> Any:
        self._need_root()
        for instance in device.instances:
            if instance.number == gpuInstanceId:
                return self._handle(pynvml.c_nvmlGpuInstance_t, device, instance)
        return refuse(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlGpuInstanceGetInfo(self, gpuInstance: Any) -> Any:
        _, instance, _ = self._of(gpuInstance)
        info = pynvml.c_nvmlGpuInstanceInfo_t()
        info.id, info.profileId = instance.number, instance.profile.id
        info.placement = pynvml.c_nvmlGpuInstancePlacement_t(instance.start, instance.profile.memory_slices)
        return info

    def nvmlGpuInstanceGetComputeInstanceProfileInfo(
        self, device: Any, profile: int, engProfile: int, version: int = 2
    ) -> Any:
        _, instance, _ = self._of(device)
        slices = _COMPUTE_SLICES.get(profile, 0)
        if not 0 < slices <= instance.profile.compute_slices:
            refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)
        info = pynvml.c_nvmlComputeInstanceProfileInfo_v2_t()
        info.id, info.sliceCount, info.instanceCount = profile, slices, instance.profile.compute_slices // slices
        return info

    def nvmlGpuInstanceGetComputeInstances(
        self, gpuInstance: Any, profileId: int, computeInstancesRef: Any, countRef: Any
    ) -> int:
        gpu, instance, _ = self._of(gpuInstance)
        there = [part for part in instance.parts if part.slices == _COMPUTE_SLICES[profileId]]
        for number, part in enumerate(there):
            computeInstancesRef[number] = self._handle(pynvml.c_nvmlComputeInstance_t, gpu, instance, part)
        _object(countRef).value = len(there)
        return 0

    # Changing ---------------------------------------------------------------------------------------------------------

    def nvmlDeviceCreateGpuInstanceWithPlacement(self, device: Gpu, profileId: int, placement: Any) -> Any:
        self._need_mig(device)
        self._need_root()
        profile, place = self._profile(device, profileId), _object(placement)
        if (place.start, place.size) not in {(start, profile.memory_slices) for start in profile.starts}:
            refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        self._change("create", profile.name, int(place.start))
        instance = self._instance(device, profile, int(place.start))
        return self._handle(pynvml.c_nvmlGpuInstance_t, device, instance)

    def nvmlGpuInstanceDestroy(self, gpuInstance: Any) -> int:
        gpu, instance, _ = self._of(gpuInstance)
        if instance.parts:
            refuse(pynvml.NVML_ERROR_IN_USE)
        self._change("destroy", instance.profile.name, instance.start)
        gpu.instances.remove(instance)
        return 0

    def nvmlGpuInstanceCreateComputeInstance(self, gpuInstance: Any, profileId: int) -> Any:
        gpu, instance, _ = self._of(gpuInstance)
        slices = _COMPUTE_SLICES[profileId]
        if sum(part.slices for part in instance.parts) + slices > instance.profile.compute_slices:
            refuse(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
        self._change("fill", instance.profile.name, instance.start)
        return self._handle(pynvml.c_nvmlComputeInstance_t, gpu, instance, self._part(instance, slices))

    def nvmlComputeInstanceDestroy(self, computeInstance: Any) -> int:
        _, instance, part = self._of(computeInstance)
        assert part is not None
        if part.pids:
            refuse(pynvml.NVML_ERROR_IN_USE)
        self._change("empty", instance.profile.name, instance.start)
        instance.parts.remove(part)
        return 0

    # Inside -----------------------------------------------------------------------------------------------------------

    def _change(self, what: str, profile: str, start: int) -> None:
        self.fails(what, profile, start)
        self.changed.append(f"{what} {profile} at {start}")

    def _need_root(self) -> None:
        assert self.open
        if not self.root:
            refuse(pynvml.NVML_ERROR_NO_PERMISSION)

    def _need_mig(self, gpu: Gpu) -> None:
        if not gpu.now:
            refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def _profile(self, gpu: Gpu, number: int) -> MigProfile:
        profiles = gpu.geometry.profiles if gpu.geometry else ()
        found = next((profile for profile in profiles if profile.id == number), None)
        return found or refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)

    def _instance(self, gpu: Gpu, profile: MigProfile, start: int) -> Instance:
        """Memory slice by memory slice, GPC by GPC."""
        assert gpu.geometry is not None
        taken = {each.start + number for each in gpu.instances for number in range(each.profile.memory_slices)}
        spent = sum(each.profile.compute_slices for each in gpu.instances) + profile.compute_slices
        media = profile.name.endswith("+me") and any(each.profile.name.endswith("+me") for each in gpu.instances)
        mine = {start + number for number in range(profile.memory_slices)}
        if taken & mine or spent > gpu.geometry.compute_slices or media:
            refuse(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
        self._made += 1
        instance = Instance(self._made, profile, start)
        gpu.instances.append(instance)
        return instance

    def _part(self, instance: Instance, slices: int) -> Compute:
        self._made += 1
        part = Compute(self._made, slices, f"MIG-{self._made:08x}-2222-3333-4444-555555555555")
        instance.parts.append(part)
        return part

    def _handle(self, kind: Any, gpu: Gpu, instance: Instance, part: Compute | None = None) -> Any:
        number = (part or instance).number
        self._handles[number] = gpu, instance, part
        return ctypes.cast(number, kind)

    def _of(self, handle: Any) -> tuple[Gpu, Instance, Compute | None]:
        number = ctypes.cast(handle, ctypes.c_void_p).value
        assert number is not None
        gpu, instance, part = self._handles[number]
        assert instance in gpu.instances, "a handle of what is gone"
        return gpu, instance, part


def _object(reference: Any) -> Any:
    """What `ctypes.byref` refers to."""
    return reference._obj
