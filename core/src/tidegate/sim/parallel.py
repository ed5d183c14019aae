"""Parallel runs: joblib processes on this machine, or a Ray cluster."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from tidegate.parallel_backend import Backend, ParallelBackendError
from tidegate.sim.ray_cluster import check_versions, connect, first_line, import_ray, installed_on_nodes

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
            raise ParallelBackendError("--address is that of a cluster: choose --backend ray, too")
        case Backend.processes if jobs == 1 or len(tasks) <= 1:
            yield from map(function, tasks)
        case Backend.processes:
            import joblib  # noqa: PLC0415 - of the extra `sim`

            calls = [joblib.delayed(function)(task) for task in tasks]
            yield from joblib.Parallel(n_jobs=jobs, return_as="generator", batch_size=1)(calls)
        case Backend.ray:
            yield from run_on_ray(function, tasks, jobs=jobs, address=address)


def run_on_ray(
    function: Callable[[Task], Result], tasks: Sequence[Task], *, jobs: int, address: str | None
) -> Iterator[Result]:
    """Apply a function to every task on a Ray cluster; yield the results in the order of the tasks.

    `address`: of the head, `HOST:PORT` (from a machine of the cluster) or `ray://HOST:PORT` (from any); None: start a
    cluster of `jobs` processes here. If a node dies, another one runs its task; a task that fails four times in this
    manner ends the run. Raises ParallelBackendError, and whatever the function raises.
    """
    ray = import_ray("--backend ray")
    cluster = f"Ray at {address}" if address else "Ray on this machine"
    if address:
        connect(ray, cluster, address, "--address")
    else:
        # "local": never the cluster that RAY_ADDRESS or a file of this machine names, which the user did not ask for.
        cpus = jobs if jobs > 0 else None
        ray.init("local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        agreement = check_versions(cluster, installed_on_nodes(ray, cluster))
        remote = ray.remote(function)
        references = [remote.remote(task) for task in tasks]
        with agreement.explained():
            while references:
                try:
                    yield ray.get(references.pop(0))
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from error  # what the function raised
                except ray.exceptions.RayError as error:
                    why = "a run was lost again and again: give workers more memory, and look at their logs"
                    raise ParallelBackendError(f"{cluster}: {why} ({first_line(error)})") from error
    finally:
        ray.shutdown()
