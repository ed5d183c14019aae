"""Memory of a Triton's processes on this machine: on its GPUs as NVML reports it, else resident in main memory."""

import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from tidegate_proxy.configuration.addresses import port_of
from tidegate_proxy.tritons.backend import Backend

log = logging.getLogger(__name__)

_LISTENING: Final = "0A"
"""State of a listening socket in /proc/net/tcp."""
_PROC: Final = Path("/proc")


class ProcessMemory:
    """Reader of the memory of Tritons on this machine; may be used in any thread, one call at a time."""

    def __init__(self) -> None:
        self._pids: WeakKeyDictionary[Backend, int] = WeakKeyDictionary()
        try:
            self._nvml: Any = import_module("pynvml")
            self._nvml.nvmlInit()
        except Exception:  # not installed, or no GPU that could be used
            self._nvml = None

    def of(self, backend: Backend) -> Mapping[int, int] | None:
        """Return the memory of a Triton and its child processes in bytes, by process; None if it cannot be read.

        On GPUs if it uses any. A Triton of another user or container, or on another machine, cannot be read.
        """
        if not backend.is_local:
            return None
        pid = self._pids.get(backend)
        if pid is None or not (_PROC / str(pid)).exists():
            pid = _listener_on(port_of(backend.address))
            if pid is None:
                return None
            self._pids[backend] = pid
        pids = {pid, *_descendants(pid)}
        return self._on_gpus(pids) or {each: _resident_bytes(each) for each in pids}

    def _on_gpus(self, pids: set[int]) -> Mapping[int, int]:
        used = Counter[int]()
        if self._nvml is None:
            return used
        with suppress(self._nvml.NVMLError):
            for index in range(self._nvml.nvmlDeviceGetCount()):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                    if process.pid in pids:
                        used[process.pid] += process.usedGpuMemory or 0
        return used


def growth(before: Mapping[int, int], after: Mapping[int, int]) -> int:
    """Return the bytes by which processes have grown; those that have ended meanwhile do not count against others."""
    return sum(max(0, used - before.get(pid, 0)) for pid, used in after.items())


def _listener_on(port: int) -> int | None:
    """The process that listens on a TCP port; None if none of those that can be seen does."""
    inodes = set()
    for table in ("net/tcp", "net/tcp6"):
        with suppress(OSError):
            for line in (_PROC / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    for folder in _PROC.iterdir() if inodes else ():
        if folder.name.isdecimal():
            with suppress(OSError):
                if any(str(descriptor.readlink()) in inodes for descriptor in (folder / "fd").iterdir()):
                    return int(folder.name)
    return None


def _descendants(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for task in (_PROC / str(pid) / "task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from _descendants(int(child))


def _resident_bytes(pid: int) -> int:
    with suppress(OSError, IndexError, ValueError):
        pages = int((_PROC / str(pid) / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0
