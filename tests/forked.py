"""Tidegates that are forked off a process which has imported what they need (zygote.py)."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

ZYGOTE = Path(__file__).with_name("zygote.py")
FORK_POLL_S = 0.005
ForkTidegate = Callable[[Sequence[str]], "Forked"]


class Forked:
    """A Tidegate that was forked, to be handled like a subprocess.Popen; what it prints is in files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        while not (folder / "pid").exists():
            time.sleep(FORK_POLL_S)
        self.pid = int((folder / "pid").read_text())

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        status = self.folder / "status"
        return int(status.read_text()) if status.exists() else None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended. Raises subprocess.TimeoutExpired."""
        give_up = time.monotonic() + (timeout or float("inf"))
        while (status := self.poll()) is None:
            if time.monotonic() > give_up:
                raise subprocess.TimeoutExpired("tidegate serve", timeout or 0)
            time.sleep(FORK_POLL_S)
        return status

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it whatever state it is in."""
        self.send_signal(signal.SIGKILL)


@pytest.fixture(scope="session")
def fork_tidegate() -> Iterator[ForkTidegate]:
    """`fork_tidegate(arguments)`: a `tidegate serve`."""
    zygote = subprocess.Popen([sys.executable, str(ZYGOTE)], stdin=subprocess.PIPE, text=True)
    assert zygote.stdin is not None
    orders = zygote.stdin

    def fork(arguments: Sequence[str]) -> Forked:
        folder = Path(tempfile.mkdtemp(prefix="tidegate-forked-"))
        for name in ("out", "errors"):
            (folder / name).touch()
        print(json.dumps({"folder": str(folder), "arguments": list(arguments)}), file=orders, flush=True)
        return Forked(folder)

    yield fork
    orders.close()
    zygote.wait()
