"""State of a running deployment: a file, and a lock that is correct even after a crash."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tidegate.api import VersionedDocument
from tidegate.schemas import RUN_FOLDER, STATE_FILE, DocumentError, read_document, write_document
from tidegate_proxy.deployed.folder import DeploymentError

_LOCK = "lock"


class RunningWorker(BaseModel):
    """A worker that was started, with its process."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    pid: int
    """Process id of its tritonserver."""
    grpc: str
    http: str
    metrics: str
    log: str
    restarts: int = 0
    """Number of times that its Triton exited and was restarted."""
    node: str | None = None
    """Address of its Ray node; None: this machine."""


class RunningPart(BaseModel):
    """Shard or frontend on a Ray node."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    node: str
    """Address of the node."""
    pid: int
    """Process id on the node."""
    addresses: dict[str, str]
    """Addresses: `shard` for frontends of a shard; `grpc`, `http` and `metrics` for clients of a frontend."""


class RunningState(VersionedDocument):
    """Running deployment; addresses are those for clients."""

    pid: int
    """Process id of the proxy, or on Ray of the supervisor; the Tritons end with it."""
    grpc: str
    http: str
    metrics: str
    workers: tuple[RunningWorker, ...]
    shards: tuple[RunningPart, ...] = ()
    """Shards on Ray; otherwise the proxy is one process, `pid`."""
    frontends: tuple[RunningPart, ...] = ()
    """Frontends on Ray; the addresses above are those of the first."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the deployment's lock for this process. Raises DeploymentError if another process holds it."""
    run = folder / RUN_FOLDER
    run.mkdir(exist_ok=True)
    with (run / _LOCK).open("a+", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            state = read_state(folder)
            where = f"its gRPC address is {state.grpc}" if state else "it is being started"
            raise DeploymentError(
                f"{folder} is up already (process {holder(folder)}): {where}; `tidegate down {folder}` ends it"
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def holder(folder: Path) -> int | None:
    """Return the process that runs or is starting the deployment, or None."""
    try:
        with (folder / RUN_FOLDER / _LOCK).open("r+", encoding="ascii") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                text = lock.read()
                return int(text) if text else None
    except FileNotFoundError:
        pass
    return None


def write_state(folder: Path, state: RunningState) -> None:
    """Write the state file atomically. Raises OSError."""
    new = folder / f"{STATE_FILE}.new"
    write_document(new, state)
    new.replace(folder / STATE_FILE)


def read_state(folder: Path) -> RunningState | None:
    """Return the state from the file; None if it cannot be read."""
    with contextlib.suppress(DocumentError):
        return read_document(folder / STATE_FILE, RunningState)
    return None


def remove_state(folder: Path) -> None:
    """Remove the state file."""
    (folder / STATE_FILE).unlink(missing_ok=True)
