"""Hardware on which latency was measured."""

import os
import platform
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Hardware(BaseModel):
    """Hardware of one machine, as far as it affects latency."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    cpu: str
    """Name of the processor."""
    cores: int = Field(ge=1)
    """Number of cores that a process may use."""
    gpus: tuple[str, ...] = ()
    """Names of the GPUs, in NVML's order."""
    driver: str = ""
    """Version of the GPU driver; empty without GPUs."""

    def __str__(self) -> str:
        on_cpu = f"{self.cores} cores of {self.cpu}"
        return f"{', '.join(self.gpus)} (driver {self.driver}), {on_cpu}" if self.gpus else on_cpu


_CPU_NAME = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)


def hardware_here(cpuinfo: Path = Path("/proc/cpuinfo"), nvml: Any = None) -> Hardware:  # noqa: ANN401 - pynvml says no types
    """Return the hardware of this machine. `nvml`: the module `pynvml`, or a substitute for tests."""
    gpus, driver = _gpus(nvml)
    return Hardware(cpu=_cpu(cpuinfo), cores=len(os.sched_getaffinity(0)), gpus=gpus, driver=driver)


def _cpu(cpuinfo: Path) -> str:
    try:
        found = _CPU_NAME.search(cpuinfo.read_text())
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _gpus(nvml: Any) -> tuple[tuple[str, ...], str]:  # noqa: ANN401
    """The names of the GPUs and the version of their driver; none where nothing tells."""
    if nvml is None:
        try:
            nvml = import_module("pynvml")
        except ModuleNotFoundError:
            return (), ""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return (), ""
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        names = tuple(_text(nvml.nvmlDeviceGetName(handle)) for handle in handles)
        return names, _text(nvml.nvmlSystemGetDriverVersion()) if names else ""
    except nvml.NVMLError:
        return (), ""
    finally:
        nvml.nvmlShutdown()


def _text(given: str | bytes) -> str:
    """Return text from NVML's bindings, which return bytes before version 11.510."""
    return given.decode() if isinstance(given, bytes) else given
