"""Guardian process between Tidegate and tritonserver, so that nothing of the server outlives either of them.

Run by path with one argument, a JSON `GuardianTask`; it needs the standard library only. It stops the server when its
parent asks (a byte on stdin) or dies in any way, waits for every process of the server, including the stubs of the
Python backend, and removes the server's shared memory and folder. If the guardian itself is killed, the kernel kills
the server: this process has one thread, so the parent-death signal cannot fire early, as it would if a thread of a
larger program started the server and ended.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TypedDict

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class GuardianTask(TypedDict):
    """Command that the guardian runs, and files that it removes afterwards."""

    command: list[str]
    """tritonserver and its options."""
    parent: int
    """Process whose death ends the server."""
    grace_s: float
    """Time between SIGTERM and SIGKILL, in seconds; 0 kills at once."""
    folder: str
    """Temporary folder of the server."""
    shm_prefix: str
    """Beginning of the names of the server's regions in /dev/shm."""
    since_s: float
    """Time before its start, in seconds since 1970."""


def remove_traces(task: GuardianTask) -> None:
    """Remove the server's folders and shared memory; missing ones are ignored."""
    for region in Path("/dev/shm").glob(f"{task['shm_prefix']}*"):  # noqa: S108 - where Linux keeps shared memory
        region.unlink(missing_ok=True)
    shutil.rmtree(task["folder"], ignore_errors=True)
    remove_environments(task["since_s"])


def remove_environments(
    since_s: float,
    folder: Path = Path("/tmp"),  # noqa: S108 - as the Python backend has it, whatever TMPDIR says
    processes: Path = Path("/proc"),
) -> None:
    """Remove the empty folders that killed Tritons have left since `since_s`, in seconds since the epoch.

    The Python backend creates one at its start, without a mark of its owner: one that is older than every live
    tritonserver is unused. `folder`: where they are; `processes`: the process table.
    """
    until_s = time.time()  # first: one that begins while we look has made none before
    until_s = min([until_s, *filter(None, map(_began_s, processes.glob("[0-9]*")))])
    for path in folder.glob("python_env_*"):
        with contextlib.suppress(OSError):  # it is in use, gone, or another user's
            if since_s <= path.stat().st_ctime < until_s:
                path.rmdir()


def _began_s(process: Path) -> float | None:
    """When a tritonserver began, or a second before, in seconds since 1970; None for anything else."""
    with contextlib.suppress(OSError):
        if (process / "comm").read_text() == "tritonserver\n":
            ticks = int((process / "stat").read_text().rpartition(")")[2].split()[19])
            lines = (process.parent / "stat").read_text().splitlines()
            boot_s = next(int(line.split()[1]) for line in lines if line.startswith("btime"))
            return boot_s + ticks / os.sysconf("SC_CLK_TCK") - 1  # the boot's second is rounded
    return None


def _main() -> int:
    task: GuardianTask = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    # Stubs that lose the server become our children, so that we can wait for their end.
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # A handler and not SIG_IGN, which the server would inherit. The parent decides when this ends.
        signal.signal(number, lambda *_: None)
    parent = os.pidfd_open(task["parent"]) if os.getppid() == task["parent"] else None
    if parent is None or os.getppid() != task["parent"]:
        remove_traces(task)
        return 1
    server = subprocess.Popen(
        task["command"],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        stderr=sys.stderr,
        process_group=0,
        # Safe here: this process has no second thread.
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),  # noqa: PLW1509
    )
    print(server.pid, flush=True)  # noqa: T201 - the parent reads it
    ended = os.pidfd_open(server.pid)
    # The parent's own end is watched too: a process forked from it may hold the other end of stdin open.
    ready, _, _ = select.select([sys.stdin, parent, ended], [], [])
    if ended not in ready and task["grace_s"] > 0:
        server.terminate()
        select.select([ended], [], [], task["grace_s"])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    code = server.wait()
    _end_children()
    remove_traces(task)
    return code if code >= 0 else 128 - code


def _end_children() -> None:
    """Kill and await what the server leaves to us, processes that a model moved to a session of their own included."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    with contextlib.suppress(ChildProcessError):
        while True:
            for child in children.read_text().split():
                os.kill(int(child), signal.SIGKILL)
            os.wait()


if __name__ == "__main__":
    sys.exit(_main())
