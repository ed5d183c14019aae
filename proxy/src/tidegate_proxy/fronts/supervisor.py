"""Starts the home and its fronts, each a process, and starts anew those that end.

It is forked off before anything runs, holds the ports, and does nothing but wait: it has no event loop and no threads,
so that it may fork whenever one of its processes is lost.
"""

import ctypes
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
HOME, FRONT = "tidegate-home", "tidegate-front"
"""What `ps` and `top` call the processes."""
_SIGNALS: Final = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_STABLE_S: Final = 10.0
"""Whoever lives so long is started anew at once when it ends."""
_WAIT_S: Final = (0.05, 5.0)
"""How long others wait: at first, and at last."""
_LOOK_S: Final = 60.0
"""How often it wakes where nothing happens."""
_LAST_WORDS_S: Final = 3.0
"""How long fronts have to end when their home has."""


class _Child:
    """One process that is kept alive."""

    def __init__(self, name: str, run: Callable[[Path], int], socket: Path) -> None:
        """`run`: what it does, given the socket; its exit status."""
        self.name = name
        self.run = run
        self.socket = socket
        self.pid = 0
        """0: it does not run."""
        self.start_at = 0.0
        """When it is to be started."""
        self.wait_s = _WAIT_S[0]
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
        if now - self._started_at > _STABLE_S:
            self.wait_s = _WAIT_S[0]
        wait_s, self.wait_s = self.wait_s, min(2 * self.wait_s, _WAIT_S[1])
        self.start_at = now + wait_s
        return wait_s


def supervise(run_home: Callable[[Path], int], run_front: Callable[[Path], int], fronts: int) -> int:
    """Keep a home and so many fronts alive until a signal says to stop, or the home cannot serve; the exit status.

    SIGTERM and SIGINT have the home end, which ends its fronts; SIGHUP goes to all.

    Args:
        run_home: serves; given the socket where fronts find it, which is there when it is ready.
        run_front: has clients; given the same.
        fronts: how many.
    """
    folder = Path(tempfile.mkdtemp(prefix="tidegate-fronts-"))
    try:
        return _Supervisor(folder / "home", run_home, run_front, fronts).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Supervisor:
    def __init__(
        self, socket: Path, run_home: Callable[[Path], int], run_front: Callable[[Path], int], fronts: int
    ) -> None:
        self._socket = socket
        self._home = _Child("the home", run_home, socket)
        self._fronts = [_Child(f"front {number}", run_front, socket) for number in range(1, fronts + 1)]
        self._stopping = False

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
                if not self._home.pid:
                    return self._finish(0)
                _send(self._home, signal.SIGTERM)
            elif number == signal.SIGHUP:
                for child in self._children:
                    _send(child, signal.SIGHUP)
            status = self._reap()
            if status is not None:
                return self._finish(status)
            for child in missing:
                if child.start_at <= time.monotonic() and not self._stopping:
                    child.start()

    @property
    def _children(self) -> list[_Child]:
        return [self._home, *self._fronts]

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
            if child is self._home and (self._stopping or not self._socket.exists()):
                return code if code >= 0 else 1  # it was asked to, or never served, and has said why
            if not self._stopping:
                how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
                log.error("%s ended %s: it is started again in %.2g s", child.name, how, wait_s)

    def _finish(self, status: int) -> int:
        """End what still runs."""
        running = [child for child in self._children if child.pid]
        if not self._home.pid and not self._socket.exists():
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
        os.kill(child.pid, number)  # not reaped yet, so nobody else has its number


def _run(child: _Child, supervisor: int) -> NoReturn:
    """In the child: it gets its signals from the supervisor, not from a terminal, and does not outlive it."""
    status = 1
    try:
        os.setpgid(0, 0)
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        libc.prctl(_PR_SET_NAME, (HOME if child.name == "the home" else FRONT).encode())
        if os.getppid() == supervisor:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            status = child.run(child.socket)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        log.exception("a process of Tidegate's broke")
    finally:
        if os.getppid() != supervisor:  # which was killed, and could not do it
            shutil.rmtree(child.socket.parent, ignore_errors=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
