"""`tidegate up --ray` on a real cluster of three raylets on this machine, one of which is killed under load.

`make test-machines` installs Ray; elsewhere these tests skip.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from tests.proxy.on_ray.deployment import layout, write_deployment
from tidegate_proxy.tritons.embedded.guardian import GuardianTask, remove_traces

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
TIDEGATE = str(Path(sys.executable).with_name("tidegate"))
ON_DEVICES = ("--takes", "dev=1", "--free-ports")
SERVED_AGAIN_WITHIN_S = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that has no device, and two nodes with room for two each."""
    pytest.importorskip("ray", reason="Ray is not installed: make test-machines")
    node = {"num_cpus": 4, "object_store_memory": 2**27}
    made = import_module("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={**node, "include_dashboard": False}
    )
    for _ in range(2):
        made.add_node(**node, resources={"dev": 2})
    yield made
    made.shutdown()
    shutil.rmtree(Path(tempfile.gettempdir(), "ray"), ignore_errors=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A deployment of two models."""
    return write_deployment(tmp_path / "deployment", layout("ant", "cat"))


def tidegate(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TIDEGATE, *map(str, arguments)], capture_output=True, text=True, timeout=180, check=False)


def eventually(holds: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + SERVED_AGAIN_WITHIN_S
    while not holds():
        assert time.monotonic() < give_up, what
        time.sleep(0.05)


def exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pids(state: dict[str, Any]) -> list[int]:
    return [state["pid"], *(each["pid"] for what in ("workers", "shards", "frontends") for each in state[what])]


def folders() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob("tidegate-ray-*"))


def descendants(pid: int) -> list[int]:
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            children += map(int, task.read_text().split())
    return [pid, *(each for child in children for each in descendants(child))]


def tasks_of(pid: int) -> list[GuardianTask]:
    """What a guardian of a Triton would remove in the end, were it not killed; nothing for other processes."""
    words = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    return [json.loads(words[-1])] if len(words) > 1 and words[-2].endswith("guardian.py") else []


def one(client: Any, model: str) -> None:
    tensor = triton_grpc.InferInput("X", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
    assert client.infer(model, [tensor], client_timeout=30).as_numpy("Y").tolist() == [[2.0]]


class Load:
    """Clients that ask for the models again and again, until the block is left."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.answered: Counter[str] = Counter()
        self.failed: dict[str, list[str]] = {"ant": [], "cat": []}
        self._stop = threading.Event()
        self._clients = [threading.Thread(target=self._ask, args=(name,)) for name in self.failed for _ in range(2)]

    def __enter__(self) -> "Load":
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for client in self._clients:
            client.join()

    def are_served(self) -> bool:
        before = Counter(self.answered)
        time.sleep(0.5)
        return all(self.answered[name] > before[name] + 2 for name in self.failed)

    def _ask(self, name: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with triton_grpc.InferenceServerClient(self.address, channel_args=options) as client:
            while not self._stop.wait(0.02):
                try:
                    one(client, name)
                    self.answered[name] += 1
                except InferenceServerException as error:
                    self.failed[name].append(str(error))


def test_what_is_up_in_the_background_is_served_and_ends_without_a_trace(cluster: Any, folder: Path) -> None:
    done = tidegate("up", folder, "--ray", cluster.address, "--frontends", "2", *ON_DEVICES, "--json")
    assert done.returncode == 0, done.stderr
    state = json.loads(done.stdout)
    secrets = [path.read_text() for path in Path(tempfile.gettempdir()).glob("tidegate-ray-*/links.secret")]
    assert len(state["shards"]) == 1, "as many as were asked for"
    for frontend in state["frontends"]:
        with triton_grpc.InferenceServerClient(frontend["addresses"]["grpc"]) as client:
            one(client, "ant")
            one(client, "cat")
    first, second = (worker["pid"] for worker in state["workers"])
    os.kill(first, signal.SIGKILL)  # a Triton alone: its shard goes on
    read: Callable[[], Any] = lambda: json.loads((folder / "run" / "state.json").read_text())  # noqa: E731
    eventually(lambda: read()["workers"][0]["pid"] != first, "its Triton to be started again")
    with triton_grpc.InferenceServerClient(state["grpc"]) as client:
        eventually(lambda: _is_answered(client, "ant"), "the shard to have heard of it")
    assert read()["shards"] == state["shards"]
    assert read()["workers"][1]["pid"] == second
    started = read()
    down = tidegate("down", folder, "--json")
    assert json.loads(down.stdout)["workers"] == ["on-ant", "on-cat"]
    assert not any(map(exists, pids(started)))
    logs = [
        path.read_bytes() for path in Path(tempfile.gettempdir(), "ray").glob("session_*/logs/**/*") if path.is_file()
    ]
    logs.append((folder / "run" / "proxy.log").read_bytes())
    assert len(set(secrets)) == 1, "shards and frontends share one"
    assert not any(secrets[0].encode() in log for log in logs)


def _is_answered(client: Any, model: str) -> bool:
    try:
        one(client, model)
    except InferenceServerException:
        return False
    return True


def test_all_ends_with_a_supervisor_that_is_killed(cluster: Any, folder: Path) -> None:
    done = tidegate("up", folder, "--ray", cluster.address, *ON_DEVICES, "--json")
    assert done.returncode == 0, done.stderr
    state = json.loads(done.stdout)
    os.kill(state["pid"], signal.SIGKILL)
    eventually(lambda: not any(map(exists, pids(state))), "all to end")
    stopped = tidegate("down", folder)
    assert (stopped.returncode, stopped.stdout) == (0, f"nothing of {folder} was up\n")


def test_what_does_not_start_is_told_in_a_line_and_nothing_stays(cluster: Any, tmp_path: Path) -> None:
    before = set(folders())
    roomless = write_deployment(tmp_path / "roomless", layout("ant"), startup_timeout_s=2)
    done = tidegate("up", roomless, "--ray", cluster.address, "--takes", "GPU=1")
    assert done.returncode == 1
    assert (
        "no node had GPU=1 free for device here/0 within 2 s (startup_timeout_s). Its nodes have, in all: "
        in done.stderr
    )
    assert "CPU=4, dev=2" in done.stderr
    broken = write_deployment(tmp_path / "broken", layout("ant"))
    (broken / "workers" / "on-ant" / "ant" / "1" / "model.py").write_text("raise ValueError('out of memory')")
    done = tidegate("up", broken, "--ray", cluster.address, *ON_DEVICES)
    assert done.returncode == 1
    assert "device here/0 did not start on node" in done.stderr
    assert "out of memory" in done.stderr
    eventually(lambda: set(folders()) <= before, "folders to go")


def test_no_cluster_at_the_address_is_one_line_with_the_remedy(folder: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: make test-machines")
    done = tidegate("up", folder, "--ray", "127.0.0.1:9")
    assert done.returncode == 1
    assert done.stderr.count("\n") <= 2
    assert "error: Ray at 127.0.0.1:9: no head answers" in done.stderr
    assert "`ray start --head`, or name another --ray" in done.stderr


def test_a_node_that_is_killed_under_load_costs_its_models_alone_until_they_are_elsewhere(
    cluster: Any, folder: Path
) -> None:
    """The last test, as it costs the cluster a node."""
    command = [TIDEGATE, "up", str(folder), "--ray", cluster.address, "--shards", "2", *ON_DEVICES]
    up = subprocess.Popen([*command, "--foreground", "--json"], stdout=subprocess.PIPE, text=True)
    tasks: list[GuardianTask] = []
    too_late = threading.Timer(120, up.kill)
    too_late.start()
    try:
        assert up.stdout is not None
        events = (json.loads(line) for line in up.stdout)
        state = next(event for event in events if event["event"] in ("serving", "failed"))["state"]
        nodes = {
            node.node_id: descendants(node.all_processes["raylet"][0].process.pid) for node in cluster.worker_nodes
        }
        (ant,) = (worker["pid"] for worker in state["workers"] if worker["name"] == "on-ant")
        (victim,) = (processes for processes in nodes.values() if ant in processes)
        assert state["shards"][0]["pid"] in victim, "the shard is beside its Triton"
        assert state["frontends"][0]["pid"] not in victim
        with Load(state["grpc"]) as load:
            eventually(load.are_served, "both models to be answered")
            tasks = [task for pid in victim for task in tasks_of(pid)]
            for pid in victim:  # as a machine goes that loses its power
                os.kill(pid, signal.SIGKILL)
            back = (event["part"] for event in events if event["event"] == "back")
            assert [next(back), next(back)] == ["device here/0", "shard 0"]
            eventually(load.are_served, "both to be answered again")
        assert load.failed["cat"] == [], "the other node goes on"
        assert load.failed["ant"]
        assert {why.split("]")[0] for why in load.failed["ant"]} <= {
            "[StatusCode.UNAVAILABLE",
            "[StatusCode.DEADLINE_EXCEEDED",
        }
        now = json.loads((folder / "run" / "state.json").read_text())
        assert not set(pids(now)) & set(victim)
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 0
        eventually(lambda: not any(map(exists, pids(now))), "all to end")
    finally:
        too_late.cancel()
        for task in tasks:
            remove_traces(task)
        up.kill()
        up.communicate()
