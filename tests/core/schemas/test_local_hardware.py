"""What this machine has: its processor by the kernel, its GPUs by a stand-in for NVML."""

import os
from pathlib import Path
from types import SimpleNamespace

from tidegate.schemas import Hardware, hardware_here


def test_the_hardware_of_this_machine(tmp_path: Path) -> None:
    class NoDriver(Exception):
        """What NVML raises."""

    def names(index: int) -> bytes:
        return [b"NVIDIA H100 80GB HBM3", b"Tesla T4"][index]

    def fail() -> None:
        raise NoDriver

    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: AMD EPYC 7763\nmodel name\t: AMD EPYC 7763\n")
    nvml = SimpleNamespace(
        NVMLError=NoDriver,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=names,
        nvmlSystemGetDriverVersion=lambda: "550.54",
    )
    found = hardware_here(tmp_path / "cpuinfo", nvml)
    cores = len(os.sched_getaffinity(0))
    assert found == Hardware(
        cpu="AMD EPYC 7763", cores=cores, gpus=("NVIDIA H100 80GB HBM3", "Tesla T4"), driver="550.54"
    )
    assert str(found).startswith("NVIDIA H100 80GB HBM3, Tesla T4 (driver 550.54), ")
    nvml.nvmlInit = fail
    assert hardware_here(tmp_path / "absent", nvml).gpus == ()
    assert hardware_here(tmp_path / "absent", nvml).cpu
