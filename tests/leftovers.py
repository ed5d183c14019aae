"""A session that leaves something behind fails: a process, a file in the temporary folder, Tidegate's shared memory.

Whatever a test starts, however indirectly, inherits the variable RUN, and with it the temporary folder of this session;
so what other sessions on this machine do is none of its business.
"""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate_proxy.tritons.embedded.guardian import remove_environments

RUN = "TIDEGATE_TEST_RUN"
PATIENCE_S = 20.0
"""How long what is left may take to end by itself; so long is waited only when something is left."""
SHARED_MEMORY = Path("/dev/shm")
LIFELINE = ".lock"
FOUND = pytest.StashKey[list[str]]()
BEFORE = pytest.StashKey[set[str]]()
SINCE_S = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    """Mark what is going to be started."""
    if _is_worker(config):
        return
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # tmp_path is pytest's to clean up
    folder = tempfile.mkdtemp(prefix="tidegate-tests-")
    os.environ[RUN] = os.environ["TMPDIR"] = tempfile.tempdir = folder
    config.stash[BEFORE], config.stash[SINCE_S] = _shared_memory(), time.time()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Look once all tests, and all of xdist's workers, are done."""
    if "joblib" in sys.modules:
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor().shutdown(wait=True)
    if _is_worker(session.config):
        return
    give_up = time.monotonic() + PATIENCE_S
    folder = Path(os.environ[RUN])
    while left := [*_processes(folder), *_files(folder), *_regions(session.config.stash[BEFORE])]:
        if time.monotonic() > give_up:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            break
        time.sleep(0.05)
    session.config.stash[FOUND] = left
    for process in _pids(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
    remove_environments(session.config.stash[SINCE_S])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was left."""
    if left := config.stash.get(FOUND, []):
        terminalreporter.section("left behind by the tests", red=True)
        terminalreporter.write_line("\n".join(left))


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _pids(folder: Path) -> Iterator[int]:
    """The processes of this session, itself not among them."""
    mark = f"{RUN}={folder}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # it is gone by now, or somebody else's
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


def _processes(folder: Path) -> Iterator[str]:
    for pid in _pids(folder):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if "resource_tracker" not in command:  # of multiprocessing: it ends with this process
                yield f"process {pid}: {command:.200}"


def _files(folder: Path) -> Iterator[str]:
    # onnxruntime keeps a number there for as long as somebody uses it, and longer.
    return (f"file {path}" for path in folder.iterdir() if path.name != ".ses")


def _shared_memory() -> set[str]:
    """But for lifelines: the next Tidegate removes that of one which was killed."""
    return {path.name for path in SHARED_MEMORY.glob("tidegate*") if not path.name.endswith(LIFELINE)}


def _regions(before: set[str]) -> Iterator[str]:
    """Shared memory of Tidegate or of a Triton it embeds that is new and that no living process uses."""
    new = _shared_memory() - before
    if new:
        used = {name for maps in Path("/proc").glob("[0-9]*/maps") for name in _mapped(maps)}
        yield from (f"shared memory {SHARED_MEMORY / name}" for name in new - used)


def _mapped(maps: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for line in maps.read_text().splitlines():
            if str(SHARED_MEMORY) in line:
                yield line.split(None, 5)[5].removeprefix(f"{SHARED_MEMORY}/")
