"""The embedded Triton: start, stop, and what it says and leaves when things go wrong."""

import http.client
import importlib.metadata
import importlib.util
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tritonclient.grpc as triton_grpc

from tests.python_models import write_model
from tidegate_proxy.tritons.embedded import EmbeddedTriton, TritonStartError, log
from tidegate_proxy.tritons.embedded.guardian import remove_environments
from tidegate_proxy.tritons.embedded.install import TritonInstall

CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }
"""
ECHO = """
import tidegate_triton_models  # an editable install, found through the virtual environment
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensors = [request.inputs()[0].as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", tensor)]) for tensor in tensors]
"""
FAILING = """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("the weights are | torn,\\nline by line")
"""
# Its own child holds every pipe of the parent open beyond the parent's death.
PARENT = """
import os
import sys
from tidegate_proxy.tritons.embedded import EmbeddedTriton
with EmbeddedTriton([sys.argv[1]], grace_s=0) as triton:
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
    print(triton.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_model(tmp_path / "repository", "echo", ECHO, CONFIG)
    return tmp_path / "repository"


def _traces(pid: int) -> tuple[str, Path]:
    """Prefix of the shared memory and the folder of a running server."""
    arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    (prefix,) = (word.rpartition("=")[2] for word in arguments if "shm-region-prefix-name" in word)
    (folder,) = (word.partition("=")[2] for word in arguments if word.startswith("--backend-directory"))
    return prefix, Path(folder)


def _regions(prefix: str) -> list[Path]:
    return list(Path("/dev/shm").glob(f"{prefix}*"))


def _group(pid: int) -> list[int]:
    """Processes of the server's group: itself and the stubs."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == pid and fields[0] != "Z":
            members.append(int(stat.parent.name))
    return members


def _await_end(pid_fd: int) -> None:
    ready, _, _ = select.select([pid_fd], [], [], 20)
    os.close(pid_fd)
    assert ready, "the process is still there after 20 s"


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("grace_s", [0, 1])
def test_serves_and_leaves_nothing_behind(
    start_triton: Callable[..., EmbeddedTriton], repository: Path, tmp_path: Path, grace_s: float
) -> None:
    triton = start_triton([repository], log=tmp_path / "log" / "triton.log", grace_s=grace_s)
    with triton_grpc.InferenceServerClient(triton.grpc_address) as client:
        assert client.is_model_ready("echo")
        assert client.get_server_metadata().version == "2.51.0"
    connection = http.client.HTTPConnection(triton.metrics_address)
    connection.request("GET", "/metrics")
    assert b"nv_inference_count" in connection.getresponse().read()
    connection.close()
    prefix, folder = _traces(triton.pid)
    assert _regions(prefix)
    assert folder.exists()
    assert len(_group(triton.pid)) == 2
    triton.stop()
    assert not triton.running
    assert not _regions(prefix)
    assert not folder.exists()
    assert not _group(triton.pid)
    assert "successfully loaded 'echo'" in triton.log_text
    assert (tmp_path / "log" / "triton.log").read_text() == triton.log_text
    triton.stop()  # once more does nothing


def test_dies_with_a_killed_parent(start_triton: Callable[..., EmbeddedTriton], repository: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(repository)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    prefix, folder = _traces(pid)
    guardian = os.pidfd_open(_parent_of(pid))
    parent.kill()
    _await_end(guardian)
    parent.communicate()
    assert not _group(pid)
    assert not _regions(prefix)
    assert not folder.exists()


def test_dies_with_a_killed_guardian(start_triton: Callable[..., EmbeddedTriton], repository: Path) -> None:
    triton = start_triton([repository])
    prefix, folder = _traces(triton.pid)
    server = os.pidfd_open(triton.pid)
    os.kill(_parent_of(triton.pid), signal.SIGKILL)
    _await_end(server)
    assert triton.wait() == -signal.SIGKILL
    triton.stop()
    assert not _regions(prefix)
    assert not folder.exists()


def test_what_killed_tritons_have_left_goes_where_no_process_owns_it(tmp_path: Path) -> None:
    processes, folder, ticks = tmp_path / "proc", tmp_path / "tmp", os.sysconf("SC_CLK_TCK")
    folders = {name: folder / f"python_env_{name}" for name in ("old", "full", "empty")}
    for path in folders.values():
        path.mkdir(parents=True)
    (folders["full"] / "env").touch()
    made_s = folders["old"].stat().st_ctime
    boot_s = int(made_s) - 30

    def process(number: int, name: str, began_s: float) -> None:
        (processes / str(number)).mkdir(parents=True)
        (processes / str(number) / "comm").write_text(f"{name}\n")
        fields = ["S", *["0"] * 18, str(int((began_s - boot_s) * ticks))]
        (processes / str(number) / "stat").write_text(f"{number} (a ) b) {' '.join(fields)}\n")

    process(1, "python", boot_s)
    process(2, "tritonserver", made_s + 10)
    process(3, "tritonserver", made_s - 10)
    (processes / "stat").write_text(f"cpu 0\nbtime {boot_s}\n")
    remove_environments(made_s - 20, folder, processes)
    assert len([*folder.iterdir()]) == 3, "they may be of the third"
    shutil.rmtree(processes / "3")
    remove_environments(made_s + 5, folder, processes)
    assert len([*folder.iterdir()]) == 3, "they were there before"
    remove_environments(made_s - 20, folder, processes)
    assert [*folder.iterdir()] == [folders["full"]]


def test_a_killed_server_is_noticed(start_triton: Callable[..., EmbeddedTriton], repository: Path) -> None:
    triton = start_triton([repository])
    os.kill(triton.pid, signal.SIGKILL)
    assert triton.wait() == 128 + signal.SIGKILL
    assert not triton.running
    assert triton.start().running
    triton.stop()


def test_a_failing_model_fails_the_start_with_its_reason(
    start_triton: Callable[..., EmbeddedTriton], repository: Path, tmp_path: Path
) -> None:
    write_model(repository, "torn", FAILING, CONFIG)
    write_model(repository, "syntax", "def", CONFIG)
    with pytest.raises(TritonStartError) as raised:
        start_triton([repository], log=tmp_path / "triton.log")
    lines = str(raised.value).splitlines()
    where = repository / "torn" / "1" / "model.py"
    assert (
        f"  model 'torn': Internal: ValueError: the weights are | torn, line by line (at {where}(4): initialize)"
        in lines
    )
    assert any(line.startswith("  model 'syntax': Internal: SyntaxError") for line in lines)
    assert lines[-1] == f"(the whole log: {tmp_path / 'triton.log'})"
    assert len(lines) == 4


def test_a_config_or_option_that_cannot_be_read(start_triton: Callable[..., EmbeddedTriton], repository: Path) -> None:
    with pytest.raises(TritonStartError, match="unrecognized option '--no-such-option=1'"):
        start_triton([repository], options=["--no-such-option=1"])
    (repository / "echo" / "config.pbtxt").write_text('backend: "python" color: 3')
    with pytest.raises(TritonStartError, match='has no field named "color"'):
        start_triton([repository])
    with pytest.raises(ValueError, match="--http-port=1: EmbeddedTriton sets this option itself"):
        EmbeddedTriton([repository], options=["--http-port=1"])


def test_a_taken_port_is_named(start_triton: Callable[..., EmbeddedTriton], repository: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TritonStartError, match=f"cannot listen on 127.0.0.1:{port}: .*Stop what listens there"):
            start_triton([repository], grpc_port=port)


@pytest.mark.parametrize("port", [0, 8001])
def test_an_address_of_another_machine_is_named_with_the_remedy(
    start_triton: Callable[..., EmbeddedTriton], repository: Path, port: int
) -> None:
    words = f"the embedded Triton cannot listen on 192.0.2.1:{port}: .*; give an address of this machine"
    with pytest.raises(TritonStartError, match=words):
        start_triton([repository], host="192.0.2.1", grpc_port=port)


def test_a_port_lost_to_another_process_is_replaced(
    start_triton: Callable[..., EmbeddedTriton], repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = EmbeddedTriton._free_port
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1]])
        monkeypatch.setattr(EmbeddedTriton, "_free_port", lambda self: next(ports, None) or choose(self))
        triton = start_triton([repository])
        assert triton.grpc_address != f"127.0.0.1:{taken.getsockname()[1]}"
        triton.stop()


def test_repositories_are_checked_first(tmp_path: Path) -> None:
    with pytest.raises(TritonStartError, match="does not exist"):
        EmbeddedTriton([tmp_path / "absent"]).start()
    with pytest.raises(TritonStartError, match="holds no models"):
        EmbeddedTriton([tmp_path]).start()
    (tmp_path / "echo" / "1").mkdir(parents=True)
    (tmp_path / "echo" / "config.pbtxt").touch()
    with pytest.raises(TritonStartError, match="echo is a model, not a repository: give the folder around it"):
        EmbeddedTriton([tmp_path / "echo"]).start()


def test_a_repository_may_have_a_config_of_its_own(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find() -> None:
        raise TritonStartError("the repositories pass")

    monkeypatch.setattr(TritonInstall, "find", find)
    (repository / "config.pbtxt").touch()
    changes: tuple[Callable[[], object], ...] = (
        lambda: None,
        lambda: (repository / "echo").rename(repository / "7"),
        (repository / "7" / "config.pbtxt").unlink,
    )
    for change in changes:
        change()
        with pytest.raises(TritonStartError, match="the repositories pass"):
            EmbeddedTriton([repository]).start()


def test_what_the_machine_lacks_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version_info", (3, 13, 0))
        with pytest.raises(TritonStartError, match=r"3\.11 or 3\.12"):
            TritonInstall.find()
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda _: None)
        with pytest.raises(TritonStartError, match=r"pip install \"tidegate-proxy\[embedded\]\""):
            TritonInstall.find()
    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "version", lambda _: "2.1.0")
        with pytest.raises(TritonStartError, match=r"numpy 2\.1\.0 is installed"):
            TritonInstall.find()
    missing = "stub: error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file"
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 127, "", missing))
        with pytest.raises(TritonStartError, match=r"needs libpython3\.11\.so\.1\.0, .*: apt-get install libpython3"):
            TritonInstall.find()


def test_reasons_fall_back_to_the_last_lines() -> None:
    assert log.failure_reasons("one\n\ntwo") == ["one", "two"]
    assert log.failure_reasons("") == []
    row = "| m | 1 | UNAVAILABLE: Invalid argument: unable to find backend library for backend 'onnxruntime' |"
    (reason,) = log.failure_reasons(row)
    assert reason.startswith("model 'm': Invalid argument: unable")
    assert reason.endswith("has the Python backend only: `tidegate generate MODEL.onnx -o FOLDER`)")


def test_a_flag_of_later_releases_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tritonserver 2\.51 shares memory without it; leave it out"):
        EmbeddedTriton([tmp_path], options=["--allow-client-shm=true"])
