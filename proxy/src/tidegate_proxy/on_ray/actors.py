"""Ray actors: each starts processes on its node, which end with it, and reports when one of them ends.

An actor is made first, which is when Ray finds a node for it, and started by a call: what a call brings goes from
process to process, while what an actor is made with is kept by Ray's head.
"""

import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tidegate.schemas import RUN_FOLDER, DeployedWorker
from tidegate_proxy.configuration.tritons import TritonAddress
from tidegate_proxy.deployed.folder import DeploymentError, WorkerPlan
from tidegate_proxy.deployed.state import RunningWorker
from tidegate_proxy.deployed.tritons import RunningTritons
from tidegate_proxy.on_ray.files import References, write_files
from tidegate_proxy.on_ray.role import RoleNotStarted, RoleProcess, free_port, seen_from_elsewhere
from tidegate_proxy.on_ray.role_configs import Document

_PREFIX: Final = "tidegate-ray-"
_LOCK: Final = "lock"


def own_folder() -> Path:
    """Create the folder, for its owner only, and remove those of killed processes. Raises OSError.

    The process holds a lock there until it exits.
    """
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError):  # it is held, gone, or another user's
            descriptor = os.open(lock, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(descriptor)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    before = folder / f"{_LOCK}.new"  # other processes that see the lock find it held
    fcntl.flock(os.open(before, os.O_CREAT | os.O_RDONLY, 0o600), fcntl.LOCK_EX)
    before.rename(folder / _LOCK)
    return folder


_EXIT_POLL_S: Final = 0.1


class NotStarted(Exception):
    """Error: the process of an actor did not start; the message says why."""


@dataclass(frozen=True)
class RayPlacement:
    """Node on which Ray has placed an actor."""

    node: str
    """Id of the node."""
    host: str
    """Address of the node."""


@dataclass(frozen=True)
class StartedProcesses:
    """Processes that run beside an actor."""

    pid: int = 0
    """Process id of a shard or a frontend."""
    workers: tuple[RunningWorker, ...] = ()
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Addresses: `shard` for frontends of a shard; `grpc`, `http` and `metrics` for clients of a frontend."""


class _OnNode:
    """Has a folder on the node from its start to its end."""

    def __init__(self) -> None:
        self._ray: Any = import_module("ray")
        self._folder: Path | None = None
        context = self._ray.get_runtime_context()
        self._place = RayPlacement(context.get_node_id(), self._ray.util.get_node_ip_address())

    def place(self) -> RayPlacement:
        """Return the node that the actor runs on."""
        return self._place

    def _make_folder(self) -> Path:
        self._folder = own_folder()
        return self._folder

    def _remove_folder(self) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


class TritonsActor(_OnNode):
    """Actor with the Tritons of one device."""

    def __init__(self) -> None:
        super().__init__()
        self._tritons: RunningTritons | None = None

    def start(self, workers: Sequence[DeployedWorker], references: References, former: str) -> StartedProcesses:
        """Start a Triton for each worker, and wait until its models are ready. Raises NotStarted.

        `references`: their repositories; `former`: folder in which the deployment was generated.
        """
        try:
            folder = self._make_folder()
            tempfile.tempdir = str(folder)  # for what Tritons leave there whose actor is killed
            write_files(self._ray, references, folder, former)
            plans = [
                WorkerPlan(
                    worker,
                    folder / worker.repository,
                    folder / RUN_FOLDER / f"{Path(worker.repository).name}.log",
                    *(0, 0, 0),
                )
                for worker in workers
            ]
            self._tritons = RunningTritons(folder, self._place.host)
            self._tritons.start_all(plans, lambda _name, _triton: None)
        except (DeploymentError, OSError) as error:
            self.stop()
            # Its log has gone with the folder.
            lines = [line for line in str(error).splitlines() if not line.startswith("(the whole log")]
            raise NotStarted("\n".join(lines)) from None
        return StartedProcesses(workers=self._tritons.workers)

    def until_it_ends(self) -> str:
        """Wait until a Triton exits; return a sentence that names its worker."""
        assert self._tritons is not None, "it was started"
        names = [worker.name for worker in self._tritons.workers]
        while all(self._tritons.is_running(name) for name in names):
            time.sleep(_EXIT_POLL_S)
        ended = next(name for name in names if not self._tritons.is_running(name))
        return f"the Triton of worker {ended!r} ended"

    def stop(self) -> None:
        """Stop all Tritons of the device."""
        if self._tritons:
            self._tritons.stop_all()
        self._remove_folder()


class RoleActor(_OnNode):
    """Actor with a shard, or a frontend of one or several processes."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._name = role
        self._role: RoleProcess | None = None
        self._following = threading.Lock()
        self._latest = 0
        """The number of its document."""

    def address(self) -> str:
        """Return an address on which a shard can listen for frontends."""
        return f"{self._place.host}:{free_port(self._place.host)}"

    def start(
        self, number: int, document: Document, secret: str, references: References, own: Mapping[str, bytes]
    ) -> StartedProcesses:
        """Start the process, and wait until it serves. Raises NotStarted.

        `secret`: common secret of the links. `number`: version of the document; `references`: the files that its
        configuration names; `own`: files written for it, by name.
        """
        try:
            folder = self._make_folder()
            write_files(self._ray, references, folder, str(folder))
            for name, content in own.items():
                (folder / name).write_bytes(content)
            self._latest = number
            self._role = RoleProcess(self._name, folder)
            self._role.start(document, secret)
        except (RoleNotStarted, OSError) as error:
            self._remove_folder()
            raise NotStarted(str(error)) from None
        if self._name == "shard":
            return StartedProcesses(pid=self._role.pid, addresses={"shard": document["shards"][0]["address"]})
        addresses = {name.lower(): address.removesuffix("/metrics") for name, address in self._role.announced.items()}
        addresses = {name: seen_from_elsewhere(address, self._place.host) for name, address in addresses.items()}
        return StartedProcesses(pid=self._role.pid, addresses=addresses)

    def follow(self, number: int, document: Document) -> None:
        """Apply another configuration, unless it has a newer one."""
        with self._following:
            if self._role and number > self._latest:
                self._latest = number
                self._role.follow(document)

    def until_it_ends(self) -> str:
        """Wait until the process exits; return its last output."""
        assert self._role is not None, "it was started"
        return self._role.wait()

    def stop(self, within_s: float) -> None:
        """Let calls in flight end within `within_s` seconds, then exit."""
        if self._role:
            self._role.stop(within_s)
        self._remove_folder()


def address_of(worker: RunningWorker) -> TritonAddress:
    """Return the address at which a shard finds a Triton."""
    return TritonAddress(grpc=worker.grpc, http=worker.http, metrics=worker.metrics, worker=worker.name)
