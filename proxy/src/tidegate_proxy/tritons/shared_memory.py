"""System shared memory with the Tritons on this machine, for large tensors.

A file lock shows other processes whether the owner of a region has exited.
"""

import asyncio
import fcntl
import logging
import mmap
import os
import secrets
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tritonclient.grpc import service_pb2

from tidegate_proxy.base import reserved_names
from tidegate_proxy.base.reserved_names import OWN_PREFIX
from tidegate_proxy.configuration.settings import SettingsHolder
from tidegate_proxy.messages.padding import Piece, write
from tidegate_proxy.transport import CallFailed
from tidegate_proxy.tritons.backend import SERVICE_PREFIX, Backend

_SUFFIX: Final = ".lock"


class ProcessLock:
    """Lock of one process, from its creation until `close`, or until the process exits in any way."""

    def __init__(self, folder: Path) -> None:
        """Create the lock in `folder`, where regions are, and remove regions of exited processes. Raises OSError."""
        for path in folder.glob(f"{OWN_PREFIX}*{_SUFFIX}"):
            has_ended(folder, path.name.removeprefix(OWN_PREFIX).removesuffix(_SUFFIX))
        self.name = secrets.token_hex(8)
        """Part of the names of the regions."""
        self._path = _path(folder, self.name)
        before = self._path.with_suffix(".new")  # other processes that see the file find it locked
        self._descriptor = os.open(before, os.O_CREAT | os.O_EXCL | os.O_RDONLY, 0o644)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        before.rename(self._path)

    def close(self) -> None:
        """Release the lock, as no region is left."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def has_ended(folder: Path, name: str) -> bool:
    """Return whether the owner of the lock of that name has exited."""
    path = _path(folder, name)
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # of another user, who has to remove it
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(PermissionError):
            for region in folder.glob(
                f"{OWN_PREFIX}{name}-*"
            ):  # that it was about to show to a Triton as it was killed
                region.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _path(folder: Path, name: str) -> Path:
    return folder / f"{OWN_PREFIX}{name}{_SUFFIX}"


log = logging.getLogger(__name__)

SHM_FOLDER: Final = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory is on Linux
REGION_PREFIX: Final = reserved_names.OWN_PREFIX
"""Prefix of the names of regions; the name of the process's lock follows, then a random part."""
MIN_REGION_BYTES: Final = 1 << 20


class SharedRegion:
    """Region of shared memory that some Tritons have mapped."""

    def __init__(self, size: int, lifeline: str) -> None:
        """Create the shared region.

        `lifeline`: name of the process's lock. Raises OSError if there is not enough memory.
        """
        self.name = f"{REGION_PREFIX}{lifeline}-{secrets.token_hex(16)}"
        self.size = size
        self.backends: set[Backend] = set()
        """Tritons that have mapped it."""
        self.path = SHM_FOLDER / self.name
        descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            # Memory that is promised and not there would end this process with SIGBUS.
            os.posix_fallocate(descriptor, 0, size)
            self.memory = memoryview(mmap.mmap(descriptor, size))
        except OSError:
            self.path.unlink()
            raise
        finally:
            os.close(descriptor)

    def write(self, at: int, pieces: Iterable[Piece]) -> int:
        """Copy the pieces one after the other; return the end offset."""
        return write(pieces, self.memory, at)


class SharedRegions:
    """Regions of shared memory, by size in powers of two. Use it only in one event loop."""

    def __init__(self, in_force: SettingsHolder) -> None:
        self._in_force = in_force
        self._held_bytes = 0
        self._backends: list[Backend] = []
        self._free: dict[int, list[SharedRegion]] = {}
        self._wanted: set[int] = set()
        """Sizes of which one more is being made."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._lifeline: ProcessLock | None = None

    async def share_with(self, backend: Backend) -> None:
        """Add a Triton; if it is on this machine, it maps new regions from now on."""
        if not backend.shares_memory:
            return
        if self._lifeline is None:
            try:
                self._lifeline = ProcessLock(SHM_FOLDER)
            except OSError as error:
                log.warning(
                    "shared memory unusable, large tensors are sent",
                    extra={"folder": str(SHM_FOLDER), "error": error.strerror},
                )
                return
        await _sweep(backend)
        self._backends.append(backend)

    def take(self, size: int, backends: Iterable[Backend]) -> SharedRegion | None:
        """Return a free region of at least this size that these Tritons have mapped, or None, and create another."""
        rounded = max(MIN_REGION_BYTES, 1 << (size - 1).bit_length())
        wanted = set(backends)
        if not wanted.issubset(self._backends):
            return None
        free = self._free.get(rounded, [])
        for position in range(len(free) - 1, -1, -1):
            if wanted <= free[position].backends:
                return free.pop(position)
        if rounded in self._wanted or self._closed:
            return None
        self._wanted.add(rounded)
        self._spawn(self._make(rounded))
        return None

    def give_back(self, region: SharedRegion) -> None:
        """Return a region that is no longer used."""
        if not self._closed and region.backends.issuperset(self._backends):
            self._free.setdefault(region.size, []).append(region)
            return
        self.discard(region)

    def discard(self, region: SharedRegion) -> None:
        """Remove a region that a Triton may still write to, or has forgotten."""
        self._held_bytes -= region.size
        self._wanted.clear()
        self._spawn(_unregister(region))

    def forget(self, backend: Backend) -> None:
        """Forget the mappings of a Triton that is lost, or whose regions a client has unregistered."""
        stale = [region for free in self._free.values() for region in free if backend in region.backends]
        for free in self._free.values():
            free[:] = [region for region in free if backend not in region.backends]
        for region in stale:
            self.discard(region)

    def leave(self, backend: Backend) -> None:
        """Stop sharing with this Triton until `share_with`."""
        self._backends = [other for other in self._backends if other is not backend]
        self.forget(backend)

    async def close(self) -> None:
        """Unregister the free regions at the Tritons."""
        self._closed = True
        regions = [region for free in self._free.values() for region in free]
        self._free.clear()
        await asyncio.gather(*self._tasks, *map(_unregister, regions), return_exceptions=True)
        if self._lifeline:
            self._lifeline.close()
            self._lifeline = None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _make(self, size: int) -> None:
        try:
            room = self._held_bytes + size <= self._in_force.settings.max_shared_bytes
            self._held_bytes += size if room else 0
            if not room:
                return  # it stays wanted, so no request asks again before another one is discarded
            region = await self._registered(size)
        except OSError as error:
            log.warning(
                "shared memory not allocated, large tensors are sent", extra={"bytes": size, "error": error.strerror}
            )
            self._held_bytes -= size
            return
        self._wanted.discard(size)
        self.give_back(region)

    async def _registered(self, size: int) -> SharedRegion:
        """Register a region at a Triton. Raises OSError."""
        assert self._lifeline, "a client shares memory"
        region = SharedRegion(size, self._lifeline.name)
        backends = list(self._backends)
        message = service_pb2.SystemSharedMemoryRegisterRequest(
            name=region.name, key=f"/{region.name}", byte_size=size
        ).SerializeToString()
        try:
            for backend in backends:
                try:
                    await backend.ask(SERVICE_PREFIX + "SystemSharedMemoryRegister", message, timeout_s=10.0)
                except CallFailed as error:
                    log.warning(
                        "triton refused shared memory, large tensors are sent",
                        extra={"triton": backend.address, "error": error.details},
                    )
                    self.leave(backend)
                else:
                    region.backends.add(backend)
        finally:
            region.path.unlink(missing_ok=True)
        return region


async def _sweep(backend: Backend) -> None:
    """Have a Triton forget the regions of processes that ended without a word."""
    try:
        answer = await backend.ask(SERVICE_PREFIX + "SystemSharedMemoryStatus", b"", timeout_s=10.0)
        for name in service_pb2.SystemSharedMemoryStatusResponse.FromString(answer).regions:
            lifeline = name.removeprefix(REGION_PREFIX).partition("-")[0]
            if name.startswith(REGION_PREFIX) and has_ended(SHM_FOLDER, lifeline):
                message = service_pb2.SystemSharedMemoryUnregisterRequest(name=name).SerializeToString()
                await backend.ask(SERVICE_PREFIX + "SystemSharedMemoryUnregister", message, timeout_s=10.0)
    except CallFailed as error:
        log.debug("shared memory call failed", extra={"triton": backend.address, "error": error.details})


async def _unregister(region: SharedRegion) -> None:
    message = service_pb2.SystemSharedMemoryUnregisterRequest(name=region.name).SerializeToString()
    for backend in region.backends:
        if backend.alive:
            try:
                await backend.ask(SERVICE_PREFIX + "SystemSharedMemoryUnregister", message, timeout_s=10.0)
            except CallFailed as error:
                log.debug("shared memory call failed", extra={"triton": backend.address, "error": error.details})
