"""`tidegate triton`, as a shell runs it."""

import contextlib
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.conftest import eventually
from tests.python_models import write_model
from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_triton_models import model_source

RUN = "import typer; from tidegate_proxy.commands.triton import triton; typer.run(triton)"
CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
parameters { key: "alpha_ms" value: { string_value: "1" } }
"""
FREE_PORTS = ["--grpc-port", "0", "--http-port", "0", "--metrics-port", "0"]


def _command(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", RUN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_prints_addresses_and_models_and_ends_on_sigterm(
    start_triton: Callable[..., EmbeddedTriton], tmp_path: Path
) -> None:
    write_model(tmp_path, "gpu", model_source("emulated_gpu").read_text(), CONFIG)
    command = _command(*FREE_PORTS, str(tmp_path), "--", "--log-verbose=1")
    assert command.stdout is not None
    lines = [command.stdout.readline() for _ in range(5)]
    command.send_signal(signal.SIGTERM)
    _, errors = command.communicate(timeout=120)
    assert [line.split()[0] for line in lines[:4]] == ["gRPC", "HTTP", "metrics", "models"]
    assert lines[3].split() == ["models", "gpu:1"]
    assert lines[4] == "Ctrl-C stops it\n"
    assert (command.returncode, errors) == (0, "")


def test_a_server_that_ends_by_itself_is_started_again(tmp_path: Path) -> None:
    write_model(tmp_path, "gpu", model_source("emulated_gpu").read_text(), CONFIG)
    command = _command(*FREE_PORTS, str(tmp_path))
    assert command.stdout is not None
    address = [command.stdout.readline() for _ in range(5)][1].split()[1]

    def pids() -> list[int]:
        """The processes that listen at its HTTP port: one, or none."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"--http-port={address.rpartition(':')[2]}\0" in (process / "cmdline").read_text():
                    found.append(int(process.name))
        return found

    def is_ready() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/v2/models/gpu/ready") as answer:
            return bool(answer.status == 200)
        return False

    servers = [pid for pid in pids() if Path(f"/proc/{pid}/comm").read_text() == "tritonserver\n"]
    os.kill(servers[0], signal.SIGSEGV)
    eventually(lambda: servers[0] not in pids() and is_ready(), "it to serve again at the same address")
    command.send_signal(signal.SIGTERM)
    _, errors = command.communicate(timeout=120)
    assert command.returncode == 0
    assert "triton ended, restarting: it ended (triton=tritonserver" in errors
    assert not pids()


def test_exits_with_the_reason(tmp_path: Path) -> None:
    command = _command(str(tmp_path / "absent"))
    _, errors = command.communicate(timeout=120)
    assert command.returncode == 1
    assert errors.startswith(f"error: the model repository {tmp_path / 'absent'} does not exist or is no folder: ")
