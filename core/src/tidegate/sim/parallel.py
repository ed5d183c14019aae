"""Parallel runs: joblib processes on this machine, or a cluster of Ray or Dask."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from tidegate.parallel_backend import Backend, ParallelBackendError
from tidegate.sim.on_dask import run_on_dask
from tidegate.sim.on_ray import run_on_ray

Task = TypeVar("Task")
Result = TypeVar("Result")


def run_parallel(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    jobs: int = -1,
    backend: Backend = Backend.processes,
    address: str | None = None,
) -> Iterator[Result]:
    """Apply a function to every task; yield the results in the order of the tasks, which must pickle.

    `jobs`: number of parallel tasks; -1: one for each core, 1: in this process. `address`: of the cluster, which then
    determines the parallelism; None: start a cluster of `jobs` processes on this machine for this run. The results
    depend on none of this. If a machine of a cluster is lost, another one runs its task. Raises ParallelBackendError,
    and whatever the function raises.
    """
    match backend:
        case Backend.processes if address is not None:
            raise ParallelBackendError("--address is that of a cluster: choose --backend ray or --backend dask, too")
        case Backend.processes if jobs == 1 or len(tasks) <= 1:
            yield from map(function, tasks)
        case Backend.processes:
            import joblib  # noqa: PLC0415 - of the extra `sim`

            calls = [joblib.delayed(function)(task) for task in tasks]
            yield from joblib.Parallel(n_jobs=jobs, return_as="generator", batch_size=1)(calls)
        case Backend.ray:
            yield from run_on_ray(function, tasks, jobs=jobs, address=address)
        case Backend.dask:
            yield from run_on_dask(function, tasks, jobs=jobs, address=address)
