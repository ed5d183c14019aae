"""Runs on real clusters of two workers on this machine: the same bytes, and what is said when something goes.

`make test-machines` installs Ray; elsewhere these tests skip.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

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


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster of two workers of one core each."""
    pytest.importorskip("ray", reason="Ray is not installed: make test-machines")
    head = {"num_cpus": 1, "object_store_memory": 2**27, "include_dashboard": False}
    cluster = import_module("ray.cluster_utils").Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1, object_store_memory=2**27)
    yield cluster.address
    cluster.shutdown()
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
    command: tuple[str, ...], address: str, scenario: Path, tmp_path: Path
) -> None:
    name, *options = command
    for where in (("--jobs", "1"), ("--backend", "ray", "--address", address)):
        done = run(name, scenario, *options, *where, "-o", tmp_path / f"{where[0]}.json")
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "--backend.json").read_bytes() == (tmp_path / "--jobs.json").read_bytes()


def test_results_come_in_order_and_what_a_task_raises_reaches_the_caller(address: str) -> None:
    results = run_parallel(lambda task: 6 // task, [3, 2, 1, 0], backend=Backend.ray, address=address)
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


def test_the_task_of_a_worker_that_dies_is_done_elsewhere(address: str, tmp_path: Path) -> None:
    results = run_parallel(deadly(tmp_path, lives=1), range(4), backend=Backend.ray, address=address)
    assert list(results) == [0, 2, 4, 6]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_task_that_kills_every_worker_ends_the_run_in_one_line(address: str, tmp_path: Path) -> None:
    with pytest.raises(ParallelBackendError, match=r"Ray at .*: .* memory, and look at their logs"):
        list(run_parallel(deadly(tmp_path, lives=99), range(2), backend=Backend.ray, address=address))


def test_no_cluster_at_the_address_is_one_line_with_the_remedy(scenario: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: make test-machines")
    done = run("sweep", scenario, "--set", "seed=1", "--backend", "ray", "--address", "127.0.0.1:9")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: Ray at 127.0.0.1:9: no ")
    assert "or name another --address" in done.stderr
