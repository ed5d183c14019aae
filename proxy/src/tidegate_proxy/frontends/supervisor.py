"""Supervisor: starts shards and frontends, each a process, and restarts those that exit.

It is forked before anything else runs, holds the ports, and only waits: it has no event loop and no threads, so it may
fork whenever one of its processes is lost.
"""

import ctypes
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from tidegate_proxy.tritons.embedded.restarter import RestartPauses

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
SHARD, FRONTEND = "tidegate-shard", "tidegate-front"
"""Process names for `ps` and `top` (Linux keeps 15 bytes)."""
ALL_END: Final = signal.SIGINT
"""Signal that tells shards that all processes end. SIGTERM from elsewhere concerns one process alone."""
_SIGNALS: Final = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LOOK_S: Final = 60.0
"""How often it wakes where nothing happens."""
_LAST_WORDS_S: Final = 3.0
"""How long frontends have to end when their shard has."""


class _Child:
    """One process that is kept alive."""

    def __init__(self, name: str, title: str, run: Callable[[], int], folder: Path) -> None:
        """`title`: what `ps` calls it; `run`: what it does; its exit status. `folder`: of all sockets."""
        self.name = name
        self.title = title
        self.run = run
        self.folder = folder
        self.pid = 0
        """0: it does not run."""
        self.start_at = 0.0
        """When it is to be started."""
        self.has_served = False
        """Whether one of its processes has ever been ready: if so, the next one is restarted however it ends."""
        self._pauses = RestartPauses()
        self._started_at = 0.0

    def start(self) -> None:
        """Fork it off."""
        self._started_at = time.monotonic()
        supervisor = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            _run(self, supervisor)

    def ended(self) -> float:
        """It ended: in how many seconds it is to be started."""
        self.pid = 0
        now = time.monotonic()
        wait_s = self._pauses.after(now - self._started_at)
        self.start_at = now + wait_s
        return wait_s


Run = Callable[[Path], int]
"""Function that a process runs, given a path; returns its exit status."""


RunFrontend = Callable[[Path, Sequence[Path]], int]
"""Function that a frontend runs, given the common folder and the shards' sockets; returns its exit status."""


def supervise(run_shards: Sequence[Run], run_frontend: RunFrontend, frontends: int) -> int:
    """Keep shards and frontends alive until a signal, or until a shard cannot serve; return the exit status.

    SIGTERM and SIGINT stop the shards, and these the frontends; SIGHUP reloads the configuration of the shards, and
    these notify the frontends. Without shards, the frontends are signalled.

    Args:
        run_shards: main function of each shard, given the socket for frontends, which exists when it is ready.
        run_frontend: main function of a frontend, given the folder of all sockets, where it may keep files for its
            successor, and the sockets of all shards.
        frontends: number of frontends.
    """
    folder = Path(tempfile.mkdtemp(prefix="tidegate-frontends-"))
    try:
        return _Supervisor(folder, run_shards, run_frontend, frontends).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Supervisor:
    def __init__(self, folder: Path, run_shards: Sequence[Run], run_frontend: RunFrontend, frontends: int) -> None:
        sockets = [folder / f"shard{number}" for number in range(len(run_shards))]
        names = ["the shard"] if len(sockets) == 1 else [f"shard {number}" for number in range(len(sockets))]
        titles = [SHARD] if len(sockets) == 1 else [f"{SHARD}{number}" for number in range(len(sockets))]
        shards = [
            _Child(name, title, partial(run, socket), folder)
            for name, title, run, socket in zip(names, titles, run_shards, sockets, strict=True)
        ]
        self._frontends = [
            _Child(f"frontend {number}", FRONTEND, partial(run_frontend, folder, sockets), folder)
            for number in range(1, frontends + 1)
        ]
        self._socket_of = dict(zip(shards, sockets, strict=True))
        self._children = [*shards, *self._frontends]
        self._signaled = shards or self._frontends
        """The processes that get the signals which all are to act on: shards pass them on to frontends."""
        self._stopping = False
        self._status = 0
        """With which all ends, where it was asked to."""

    def run(self) -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        for child in self._children:
            child.start()
        while True:
            missing = [] if self._stopping else [child for child in self._children if not child.pid]
            wait_s = min((child.start_at - time.monotonic() for child in missing), default=_LOOK_S)
            received = signal.sigtimedwait(_SIGNALS, max(0.0, wait_s))
            number = received.si_signo if received else None
            if number in (signal.SIGTERM, signal.SIGINT):
                self._stopping = True
                for child in self._signaled:
                    _send(child, ALL_END)
            elif number == signal.SIGHUP:
                for child in self._signaled:
                    _send(child, signal.SIGHUP)
            status = self._reap()
            if status is not None:
                return self._finish(status)
            if self._stopping and not any(child.pid for child in self._signaled):
                return self._finish(self._status)
            for child in missing:
                if child.start_at <= time.monotonic() and not self._stopping:
                    child.start()

    def _reap(self) -> int | None:
        """See who ended; the exit status where that is the end of all."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return None
            if not pid:
                return None
            child = next((one for one in self._children if one.pid == pid), None)
            if child is None:
                continue
            code = os.waitstatus_to_exitcode(status)
            wait_s = child.ended()
            own_status = code if code >= 0 else 1
            if self._stopping:
                self._status = self._status or own_status * (child in self._signaled)
            elif child in self._socket_of and not self._has_served(child, code):
                return own_status  # it has said why
            if not self._stopping:
                how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
                log.error(
                    "process ended, restarting",
                    extra={"component": child.name, "error": how, "restart_in_s": round(wait_s, 2)},
                )

    def _has_served(self, shard: _Child, code: int) -> bool:
        """Whether a shard was ever ready, given how its process ended. Its successor removes the socket, so keep it."""
        shard.has_served = shard.has_served or code == 0 or self._socket_of[shard].exists()
        return shard.has_served

    def _finish(self, status: int) -> int:
        """End what still runs."""
        running = [child for child in self._children if child.pid]
        if not self._stopping:  # a shard has never served
            for child in running:
                _send(child, signal.SIGTERM)
        give_up = time.monotonic() + _LAST_WORDS_S
        for child in running:
            while os.waitpid(child.pid, os.WNOHANG)[0] != child.pid:
                if time.monotonic() > give_up:
                    _send(child, signal.SIGKILL)
                    os.waitpid(child.pid, 0)
                    break
                signal.sigtimedwait(_SIGNALS, 0.05)
        return status


def _send(child: _Child, number: int) -> None:
    if child.pid:
        os.kill(child.pid, number)  # not reaped yet, so no other process has its number


def _run(child: _Child, supervisor: int) -> NoReturn:
    """In the child: it gets its signals from the supervisor, not from a terminal, and does not outlive it."""
    status = 1
    try:
        os.setpgid(0, 0)
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        libc.prctl(_PR_SET_NAME, child.title.encode())
        if os.getppid() == supervisor:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            status = child.run()
    except KeyboardInterrupt:  # all end before it could serve
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        log.exception("process failed")
    finally:
        if os.getppid() != supervisor:  # which was killed, and could not do it
            shutil.rmtree(child.folder, ignore_errors=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
