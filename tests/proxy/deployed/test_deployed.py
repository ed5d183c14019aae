"""What `tidegate up` and `tidegate down` say where there is nothing to start, or to stop."""

import fcntl
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from tests.conftest import eventually
from tests.python_models import write_model
from tidegate_proxy import plugin
from tidegate_proxy.app.doctor.diagnosis import restarted_tritons
from tidegate_proxy.configuration.tritons import TritonAddress
from tidegate_proxy.deployed.folder import DeploymentError, read_plan
from tidegate_proxy.deployed.state import RunningState, held, holder, read_state, write_state
from tidegate_proxy.deployed.tritons import RunningTritons, running_tritons
from tidegate_proxy.tritons.embedded.restarter import PAUSES_S, STABLE_S, RestartPauses
from tidegate_triton_models import model_source

DEPLOYMENT: dict[str, Any] = {
    "deploy_target": "embedded",
    "partitions": [
        {"name": "p", "model": "m", "blocks": [0, 1], "file": "weights/p.onnx", "inputs": ["x"], "outputs": ["y"]}
    ],
    "workers": [
        {
            "name": f"gpu/{number}",
            "repository": f"workers/gpu-{number}",
            "launch": f"workers/gpu-{number}.sh",
            "device": {"node": "n", "id": number},
            "slice": {"type": "whole"},
            "hosts": ["p"],
        }
        for number in range(2)
    ],
}
TRITONS: list[dict[str, Any]] = [
    {"worker": "gpu/0", "grpc": "127.0.0.1:9001", "http": "127.0.0.1:9000"},
    {"worker": "gpu/1", "grpc": "127.0.0.1:9011", "share_memory": False},
]
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write(deploy_target=..., tritons=[...])`: a folder that looks like a deployment."""

    def make(tritons: list[dict[str, Any]] = TRITONS, **changes: object) -> Path:
        folder = tmp_path / "deployment"
        for number in range(2):
            (folder / "workers" / f"gpu-{number}").mkdir(parents=True)
        (folder / "deployment.json").write_text(json.dumps({**DEPLOYMENT, **changes}))
        (folder / "layout.json").write_text("{}")
        (folder / "tidegate.yaml").write_text(json.dumps({"layout": "layout.json", "tritons": tritons}))
        return folder

    return make


def run(command: str, *arguments: object) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    for spec in plugin.tidegate_commands():
        app.command(spec.name)(spec.run)
    return CliRunner().invoke(app, [command, *map(str, arguments)])


def test_workers_listen_where_the_configuration_says(write: Write) -> None:
    plan = read_plan(write())
    assert [(w.name, w.repository.name, w.grpc_port, w.http_port) for w in plan.workers] == [
        ("gpu/0", "gpu-0", 9001, 9000),
        ("gpu/1", "gpu-1", 9011, 0),
    ]
    assert plan.left_out == ()


def test_on_free_ports_the_rest_of_the_configuration_holds(write: Write) -> None:
    plan = read_plan(write(), free_ports=True)
    assert {(w.grpc_port, w.http_port, w.metrics_port) for w in plan.workers} == {(0, 0, 0)}
    moved = TritonAddress(grpc="127.0.0.1:4", http="127.0.0.1:5", metrics="127.0.0.1:6", worker="gpu/1")
    config = plan.reread({"gpu/1": moved})
    assert [triton.grpc for triton in config.tritons] == ["127.0.0.1:9001", "127.0.0.1:4"]
    assert (config.tritons[1].http, config.tritons[1].shares_memory) == ("127.0.0.1:5", False)
    assert (config.listen.grpc, config.listen.http) == ("127.0.0.1:0", "127.0.0.1:0")


def test_a_worker_that_the_configuration_leaves_out_is_not_started(write: Write) -> None:
    plan = read_plan(write(TRITONS[:1]))
    assert ([worker.name for worker in plan.workers], plan.left_out) == (["gpu/0"], ("gpu/1",))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"deploy_target": "triton"}, "was generated for full Tritons"),
        ({"tritons": [{**TRITONS[0], "worker": "gpu/7"}]}, "is worker 'gpu/7', which"),
        ({"tritons": [{**TRITONS[0], "grpc": "10.0.0.1:9001"}]}, "is worker 'gpu/0' on another machine"),
        ({"workers": [{**DEPLOYMENT["workers"][0], "repository": "../../etc"}]}, "is not inside the folder"),
        ({"workers": [{**DEPLOYMENT["workers"][0], "repository": "gone"}]}, "worker 'gpu/0' has no repository"),
        ({"tritons": [{"grpc": "nowhere"}]}, "'nowhere' is not HOST:PORT"),
    ],
)
def test_a_deployment_that_cannot_be_started_here(write: Write, changes: dict[str, Any], says: str) -> None:
    if "tritons" not in changes:
        changes = {"tritons": TRITONS[:1], **changes}
    folder = write(**changes)
    result = run("up", folder)
    assert result.exit_code == 1
    assert says in result.stderr
    assert not (folder / "run").exists()


@pytest.mark.parametrize("command", ["up", "down"])
def test_what_is_no_deployment(tmp_path: Path, command: str) -> None:
    result = run(command, tmp_path)
    assert result.exit_code == 1
    assert f"{tmp_path} holds no deployment" in result.stderr


def test_down_where_nothing_is_up(write: Write) -> None:
    folder = write()
    result = run("down", folder)
    assert (result.exit_code, result.stdout) == (0, f"nothing of {folder} was up\n")


def test_a_state_that_is_left_of_a_crash_is_no_error(write: Write) -> None:
    folder = write()
    with held(folder):
        write_state(folder, RunningState(pid=1, grpc="localhost:1", http="", metrics="", workers=()))
    assert holder(folder) is None
    result = run("down", folder, "--json")
    assert json.loads(result.stdout) == {"proxy": None, "workers": [], "ended_before": []}
    assert read_state(folder) is None


def test_two_do_not_have_one_deployment_up(write: Write) -> None:
    folder = write()
    (folder / "run").mkdir()
    with (folder / "run" / "lock").open("w") as lock:
        lock.write("4711")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert holder(folder) == 4711
        result = run("up", folder)
    assert result.exit_code == 1
    assert "is up already (process 4711): it is being started; `tidegate down" in result.stderr


def test_one_repository_without_models_ends_all(write: Write) -> None:
    plan = read_plan(write(), free_ports=True)
    with (
        pytest.raises(DeploymentError, match=r"worker 'gpu/[01]' did not start: .* holds no models"),
        running_tritons(plan.folder, plan.workers, lambda name, triton: None),
    ):
        pass


CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
parameters { key: "alpha_ms" value: { string_value: "1" } }
"""


def test_a_triton_that_ends_by_itself_is_started_again_where_it_was(write: Write) -> None:
    plan = read_plan(write(), free_ports=True)
    for number in range(2):
        write_model(plan.folder / "workers" / f"gpu-{number}", "gpu", model_source("emulated_gpu").read_text(), CONFIG)
    told = []

    def changed(tritons: RunningTritons) -> None:
        told.append(tritons.workers)

    with running_tritons(plan.folder, plan.workers, lambda name, triton: None, changed) as tritons:
        before = {worker.name: worker for worker in tritons.workers}
        for _ in range(2):
            times = tritons.restarts["gpu/1"]
            os.kill(next(worker.pid for worker in tritons.workers if worker.name == "gpu/1"), signal.SIGSEGV)
            eventually(lambda times=times: tritons.restarts["gpu/1"] > times, "it to be started again")
        after = {worker.name: worker for worker in told[-1]}
        assert after["gpu/0"] == before["gpu/0"]
        changes = {"pid": after["gpu/1"].pid, "restarts": 2}
        assert after["gpu/1"] == before["gpu/1"].model_copy(update=changes)
        assert after["gpu/1"].pid != before["gpu/1"].pid
        state = RunningState(pid=1, grpc="", http="", metrics="", workers=tritons.workers)
        write_state(plan.folder, state)
        (finding,) = restarted_tritons(plan.folder)
        assert "worker gpu/1: its Triton ended by itself and was started again 2 times; see why in" in str(finding)
        log = Path(after["gpu/1"].log).read_text()
        assert log.count("Started GRPCInferenceService") == 3, "the log of what ended is kept"
    assert not any(Path(f"/proc/{worker.pid}").exists() for worker in after.values())


def test_a_worker_that_is_ended_while_it_is_started_again_stays_ended(write: Write) -> None:
    plan = read_plan(write(), free_ports=True)
    for number in range(2):
        write_model(plan.folder / "workers" / f"gpu-{number}", "gpu", model_source("emulated_gpu").read_text(), CONFIG)
    with running_tritons(plan.folder, plan.workers, lambda name, triton: None) as tritons:
        first = next(worker.pid for worker in tritons.workers if worker.name == "gpu/1")
        os.kill(first, signal.SIGKILL)
        eventually(lambda: not tritons.is_running("gpu/1"), "it to end")
        tritons.stop(1, "gpu/1")
        assert [worker.name for worker in tritons.workers] == ["gpu/0"]
        assert not tritons.is_running("gpu/1")


def test_a_process_that_keeps_ending_is_started_less_often() -> None:
    pauses = RestartPauses()
    early = [pauses.after(0.1) for _ in range(9)]
    assert early[0] == PAUSES_S[0]
    assert early == sorted(early)
    assert early[-1] == PAUSES_S[1]
    assert pauses.after(STABLE_S + 1) == PAUSES_S[0]
