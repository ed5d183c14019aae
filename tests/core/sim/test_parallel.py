"""Runs in parallel: the same results, in the same order."""

import importlib.util

import pytest

from tidegate.parallel_backend import Backend, ParallelBackendError
from tidegate.sim.parallel import run_parallel


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_the_order_of_the_tasks(jobs: int) -> None:
    assert list(run_parallel(abs, [-3, 1, -2], jobs=jobs)) == [3, 1, 2]


def test_what_a_task_raises_reaches_the_caller() -> None:
    with pytest.raises(TypeError, match="bad operand"):
        list(run_parallel(abs, ["x", 1], jobs=2))  # type: ignore[arg-type]


def test_a_backend_that_is_not_installed_says_what_to_install() -> None:
    if importlib.util.find_spec("ray"):
        pytest.skip("ray is installed")
    with pytest.raises(ParallelBackendError, match=r'--backend ray: .*pip install "tidegate\[ray\]"'):
        list(run_parallel(abs, [-1, 2], backend=Backend.ray))


def test_an_address_without_a_cluster_says_which_option_is_missing() -> None:
    with pytest.raises(ParallelBackendError, match="choose --backend ray, too"):
        list(run_parallel(abs, [-1, 2], address="10.0.0.1:8786"))
