"""Runs on real clusters of two workers on this machine: the same bytes, and what is said when something goes.

`make test-machines` installs Dask and Ray; elsewhere these tests skip.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tidegate.parallel_backend import Backend, ParallelBackendError
from tidegate.sim.parallel import run_parallel

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
SCENARIO = {
    "duration_s": 1,
    "workers": [{"count": 2}],
    "models": [{"name": "resnet", "slo_ms": 25, "profile": {"alpha_ms": 1, "beta_ms": 5, "max_batch": 16}}],
    "arrivals": {"rate_rps": 300},
    "policies": [{"name": "fifs"}],
}


@pytest.fixture(scope="module", params=[Backend.dask, Backend.ray])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Backend, str]]:
    """A cluster of two workers of one core each, and its address."""
    backend: Backend = request.param
    if backend is Backend.dask:
        distributed: Any = pytest.importorskip("distributed", reason="Dask is not installed: make test-machines")
        options: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
        options["local_directory"] = str(tmp_path_factory.mktemp("dask"))
        with closing(distributed.LocalCluster(**options)) as local:
            yield backend, local.scheduler_address
        shutil.rmtree(Path(tempfile.gettempdir(), "dask-scratch-space"), ignore_errors=True)
        return
    pytest.importorskip("ray", reason="Ray is not installed: make test-machines")
    head = {"num_cpus": 1, "object_store_memory": 2**27, "include_dashboard": False}
    ray_cluster = import_module("ray.cluster_utils").Cluster(initialize_head=True, head_node_args=head)
    ray_cluster.add_node(num_cpus=1, object_store_memory=2**27)
    yield backend, ray_cluster.address
    ray_cluster.shutdown()
    shutil.rmtree(Path(tempfile.gettempdir(), "ray"))


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """A scenario of a second."""
    path = tmp_path / "scenario.yaml"
    path.write_text(json.dumps(SCENARIO))
    return path


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Call `tidegate` as a user does."""
    command = [str(Path(sys.executable).with_name("tidegate")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("command", [("sweep", "--set", "arrivals.rate_rps=200,300,400"), ("goodput", "--seed", "1")])
def test_the_same_bytes_wherever_runs_go(
    command: tuple[str, ...], cluster: tuple[Backend, str], scenario: Path, tmp_path: Path
) -> None:
    backend, address = cluster
    name, *options = command
    for where in (("--jobs", "1"), ("--backend", backend, "--address", address)):
        done = run(name, scenario, *options, *where, "-o", tmp_path / f"{where[0]}.json")
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "--backend.json").read_bytes() == (tmp_path / "--jobs.json").read_bytes()


def test_results_come_in_order_and_what_a_task_raises_reaches_the_caller(cluster: tuple[Backend, str]) -> None:
    backend, address = cluster
    results = run_parallel(lambda task: 6 // task, [3, 2, 1, 0], backend=backend, address=address)
    assert [next(results) for _ in range(3)] == [2, 3, 6]
    with pytest.raises(ZeroDivisionError):
        next(results)


def deadly(folder: Path, lives: int) -> Callable[[int], int]:
    """A function that kills the process in which it runs, for its first calls; one inside of another travels whole."""

    def double(task: int) -> int:
        lost = len(list(folder.iterdir()))
        if task == 1 and lost < lives:
            (folder / str(lost)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 2 * task

    return double


def test_the_task_of_a_worker_that_dies_is_done_elsewhere(cluster: tuple[Backend, str], tmp_path: Path) -> None:
    backend, address = cluster
    results = run_parallel(deadly(tmp_path, lives=1), range(4), backend=backend, address=address)
    assert list(results) == [0, 2, 4, 6]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_task_that_kills_every_worker_ends_the_run_in_one_line(cluster: tuple[Backend, str], tmp_path: Path) -> None:
    backend, address = cluster
    with pytest.raises(ParallelBackendError, match=rf"{backend.title()} at .*: .* memory, and look at their logs"):
        list(run_parallel(deadly(tmp_path, lives=99), range(2), backend=backend, address=address))


@pytest.mark.parametrize("backend", [Backend.dask, Backend.ray])
def test_nobody_at_the_address_is_one_line_with_the_remedy(backend: Backend, scenario: Path) -> None:
    pytest.importorskip({"dask": "distributed", "ray": "ray"}[backend], reason="not installed: make test-machines")
    done = run("sweep", scenario, "--set", "seed=1", "--backend", backend, "--address", "127.0.0.1:9")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: {backend.title()} at 127.0.0.1:9: no ")
    assert "or name another --address" in done.stderr
