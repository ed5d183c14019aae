"""Background process of a deployment: start and stop."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidegate.schemas import RUN_FOLDER
from tidegate_proxy.deployed.folder import DeploymentError
from tidegate_proxy.deployed.state import RunningState, held, holder, read_state, remove_state

Event = Mapping[str, Any]
"""An object that `tidegate up --foreground --json` prints, one per line; `event` is its type."""
Tell = Callable[[Event], None]

PROXY_LOG: Final = "proxy.log"
_LAST_LINES: Final = 8
_STOP_WITHIN_S: Final = 30.0
_EXIT_POLL_S: Final = 0.05


@dataclass(frozen=True)
class StoppedDeployment:
    """Processes of a deployment that were stopped."""

    pid: int
    """Process id of the proxy."""
    workers: tuple[str, ...]
    ended_before: tuple[str, ...]
    """Workers whose Triton had exited before."""
    killed: bool
    """Whether the proxy was killed, because it took too long."""


def start_in_background(folder: Path, *, options: Sequence[str] = (), tell: Tell) -> RunningState:
    """Start the deployment of a folder; return when it serves. Raises DeploymentError, with nothing left running.

    `options`: command-line options of `tidegate up`. `tell`: called with each event that the process prints.
    """
    run = folder / RUN_FOLDER
    with held(folder):  # or say that it is up already
        log = (run / PROXY_LOG).open("w", encoding="utf-8")
    command = [sys.executable, "-c", "from tidegate.cli import main; main()", "up", str(folder.absolute())]
    command += ["--foreground", "--json", *options]
    with log:
        # A session of its own: what happens to this terminal does not concern it.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
    try:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                event = json.loads(line)
                tell(event)
                if event["event"] == "serving":
                    return RunningState.model_validate(event["state"])
                if event["event"] == "failed":
                    raise DeploymentError(event["error"])
        raise DeploymentError(
            f"the proxy did not start: it ended with status {process.wait()}\n{_last_lines(run / PROXY_LOG)}"
        )
    except BaseException:
        _end(process)
        raise


def stop_in_background(folder: Path, *, timeout_s: float) -> StoppedDeployment | None:
    """Stop a running deployment and wait for its end; return None if none runs. Raises DeploymentError."""
    pid = holder(folder)
    state = read_state(folder)
    if pid is None:
        remove_state(folder)
        return None
    workers = state.workers if state and state.pid == pid else ()
    here = tuple(worker for worker in workers if worker.node is None)  # those elsewhere end with the supervisor
    gone = tuple(worker.name for worker in here if not _exists(worker.pid))
    killed = False
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        pass
    except PermissionError as error:
        raise DeploymentError(f"{folder} was started by another user (process {pid}), who must end it") from error
    else:
        try:
            signal.pidfd_send_signal(process, signal.SIGTERM)
            if not select.select([process], [], [], timeout_s)[0]:
                killed = True
                signal.pidfd_send_signal(process, signal.SIGKILL)
                select.select([process], [], [])
        except PermissionError as error:
            raise DeploymentError(f"{folder} was started by another user (process {pid}), who must end it") from error
        finally:
            os.close(process)
    give_up = time.monotonic() + _STOP_WITHIN_S
    while alive := [worker for worker in here if _exists(worker.pid)]:  # of a proxy that was killed
        if time.monotonic() > give_up:
            raise DeploymentError(f"worker {alive[0].name!r} does not end: its Triton is process {alive[0].pid}")
        time.sleep(_EXIT_POLL_S)
    remove_state(folder)
    return StoppedDeployment(pid, tuple(worker.name for worker in workers), gone, killed)


def _end(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _exists(pid: int) -> bool:
    """Whether the process runs; one that has ended but was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _last_lines(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
    return "\n".join([*(f"  {line}" for line in lines), f"(the whole log: {log})"])
