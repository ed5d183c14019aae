"""What NVML tells of the GPUs here: by a stand-in with the functions of pynvml, and by NVML itself where it is.

The test marked `gpu` needs pytest, msgspec, pluggy, pydantic and nvidia-ml-py, nothing else of this repository.
"""

import inspect
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.schemas import Device, Mig, WholeDevice
from tidegate_proxy.tritons import gpus
from tidegate_proxy.tritons.gpus import Gpu, gpus_here

pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py, the extra `nvml` of tidegate-proxy")

T4: dict[str, Any] = {"name": "Tesla T4", "uuid": "GPU-00000000-2222-3333-4444-555555555555", "total": 15360 << 20}
H100: dict[str, Any] = {
    "name": "NVIDIA H100 80GB HBM3",
    "uuid": "GPU-11111111-2222-3333-4444-555555555555",
    "total": 81559 << 20,
}
DIVIDED: dict[str, Any] = {
    "name": "NVIDIA A100-SXM4-40GB",
    "uuid": "GPU-66666666-2222-3333-4444-555555555555",
    "total": 40960 << 20,
    "mig": [
        {"name": "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "uuid": "MIG-a1111111-2222-3333-4444-555555555555", "start": 4},
        None,
        {"name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "uuid": "MIG-a2222222-2222-3333-4444-555555555555", "start": 0},
    ],
}


class FakeNvml:
    """Answers as pynvml does, for GPUs given as dictionaries, which are its handles."""

    NVMLError = pynvml.NVMLError
    NVMLError_NotFound = pynvml.NVMLError_NotFound
    NVMLError_NotSupported = pynvml.NVMLError_NotSupported
    NVMLError_NoPermission = pynvml.NVMLError_NoPermission
    NVML_DEVICE_MIG_ENABLE = pynvml.NVML_DEVICE_MIG_ENABLE

    def __init__(self, *given: dict[str, Any], privileged: bool = True, breaks: str = "") -> None:
        self._gpus = given
        self._privileged = privileged
        self._breaks = breaks
        self.open = 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name == self._breaks:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return super().__getattribute__(name)

    def nvmlInit(self) -> None:
        if not self._gpus:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        return self._gpus[index]

    def nvmlDeviceGetName(self, handle: dict[str, Any]) -> str:
        name: str = handle["name"]
        return name

    def nvmlDeviceGetUUID(self, handle: dict[str, Any]) -> str:
        uuid: str = handle["uuid"]
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle: dict[str, Any], version: object = None) -> SimpleNamespace:
        if "total" not in handle:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(total=handle["total"])

    def nvmlDeviceGetMigMode(self, device: dict[str, Any]) -> list[int]:
        if "mig" not in device:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [int(bool(device["mig"])), 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, device: dict[str, Any]) -> int:
        return len(device["mig"])

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: dict[str, Any], index: int) -> dict[str, Any]:
        if device["mig"][index] is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        instance: dict[str, Any] = device["mig"][index]
        return instance

    def nvmlDeviceGetGpuInstanceId(self, device: dict[str, Any]) -> int:
        return 7 + int(device["start"])

    def nvmlDeviceGetGpuInstanceById(self, device: dict[str, Any], gpuInstanceId: int) -> int:
        if not self._privileged:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        assert device is not None
        return gpuInstanceId

    def nvmlGpuInstanceGetInfo(self, gpuInstance: int) -> SimpleNamespace:
        return SimpleNamespace(id=gpuInstance, placement=SimpleNamespace(start=gpuInstance - 7, size=1))


@pytest.fixture(autouse=True)
def _node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.node", lambda: "here")


@pytest.mark.parametrize("name", [name for name in vars(FakeNvml) if name.startswith("nvml")])
def test_the_stand_in_is_called_as_pynvml_is(name: str) -> None:
    real, fake = inspect.signature(getattr(pynvml, name)), inspect.signature(getattr(FakeNvml(), name))
    assert list(real.parameters) == list(fake.parameters)


def test_a_gpu_is_a_device_by_its_uuid_and_its_kind_is_its_product() -> None:
    nvml = FakeNvml(H100, T4)
    h100 = Device("here", H100["uuid"], "H100-80GB-HBM3", 81559)
    t4 = Device("here", T4["uuid"], "Tesla-T4", 15360)
    assert gpus_here(nvml) == (
        Gpu(H100["uuid"], h100, WholeDevice(), "H100-80GB-HBM3"),
        Gpu(T4["uuid"], t4, WholeDevice(), "Tesla-T4"),
    )
    assert nvml.open == 0


def test_of_a_divided_gpu_there_are_its_mig_instances() -> None:
    device = Device("here", DIVIDED["uuid"], "A100-SXM4-40GB", 40960)
    first, second = gpus_here(FakeNvml(DIVIDED))
    assert first == Gpu(DIVIDED["mig"][0]["uuid"], device, Mig("3g.20gb", 4), "A100-SXM4-40GB/3g.20gb")
    assert second == Gpu(DIVIDED["mig"][2]["uuid"], device, Mig("1g.5gb", 0), "A100-SXM4-40GB/1g.5gb")
    seen = gpus_here(FakeNvml(DIVIDED, privileged=False))
    assert [(gpu.slice, gpu.device_class) for gpu in seen] == [(None, first.device_class), (None, second.device_class)]
    (whole,) = gpus_here(FakeNvml({**DIVIDED, "mig": []}))
    assert whole.device_class == "A100-SXM4-40GB"


def test_older_bindings_give_bytes_and_not_every_gpu_has_memory_of_its_own() -> None:
    (gpu,) = gpus_here(FakeNvml({"name": b"NVIDIA GB10", "uuid": T4["uuid"].encode()}))
    assert (gpu.uuid, gpu.device.memory_mib, gpu.device_class) == (T4["uuid"], None, "GB10")


@pytest.mark.parametrize(
    "nvml",
    [
        FakeNvml(),
        FakeNvml(T4, breaks="nvmlDeviceGetName"),
        FakeNvml(T4, breaks="nvmlDeviceGetCount"),
        FakeNvml({**DIVIDED, "mig": [{"name": "half", "uuid": "MIG-1", "start": 0}]}),
    ],
    ids=["no library", "a GPU is lost", "no count", "no profile"],
)
def test_where_nvml_does_not_tell_all_nothing_is_known(nvml: FakeNvml) -> None:
    assert gpus_here(nvml) == ()
    assert nvml.open == 0


def test_without_the_bindings_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(gpus, "import_module", missing)
    assert gpus_here() == ()


# On a machine with a GPU ----------------------------------------------------------------------------------------------


def _smi(*query: str) -> list[str]:
    """What nvidia-smi says, line by line; nothing where it does not run."""
    try:
        run = subprocess.run(["nvidia-smi", *query], capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return []
    return run.stdout.splitlines() if run.returncode == 0 else []


def _open() -> str | None:
    """Why NVML cannot be asked here; None: it can."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return str(error)
    pynvml.nvmlShutdown()
    return None


WHY_NOT = _open()


@pytest.mark.gpu
@pytest.mark.skipif(WHY_NOT is not None, reason=f"needs an NVIDIA GPU: NVML says {WHY_NOT!r}")
def test_nvml_itself_tells_what_nvidia_smi_prints(capsys: pytest.CaptureFixture[str]) -> None:
    seen = gpus_here()
    with capsys.disabled():
        print(*("", *seen), sep="\n")  # noqa: T201 - for who runs it by hand
    assert seen
    for function in (name for name in vars(FakeNvml) if name.startswith("nvml")):
        assert callable(getattr(pynvml, function))
    listed = _smi("-L")
    assert listed, "nvidia-smi does not run here"
    for gpu in seen:
        assert any(f"UUID: {gpu.device.id})" in line for line in listed)
        assert any(f"UUID: {gpu.uuid})" in line for line in listed)
        assert gpu.device_class.startswith(gpu.device.product)
    totals = dict(line.split(", ") for line in _smi("--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits"))
    assert {str(gpu.device.id): str(gpu.device.memory_mib) for gpu in seen} == totals
    assert gpus_here() == seen, "it can be asked again"
