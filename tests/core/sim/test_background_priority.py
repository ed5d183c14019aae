"""A process that simulates beside another one does not outlive it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import eventually

BESIDE = "from tidegate.sim.background_priority import step_aside; step_aside(); print(flush=True); input()"
PARENT = f"""
import subprocess, sys
beside = subprocess.Popen([sys.executable, "-c", {BESIDE!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
beside.stdout.readline()
print(beside.pid, flush=True)
beside.wait()
"""


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it ends once it reads")
def test_one_that_is_stopped_ends_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        beside = int(parent.stdout.readline())
        os.kill(beside, signal.SIGSTOP)
        eventually(lambda: _state(beside) == "T", "it to be stopped")
        parent.kill()
    eventually(lambda: _state(beside) in ("gone", "Z"), "it to end")
