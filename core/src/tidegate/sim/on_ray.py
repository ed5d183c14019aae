"""Parallel runs on a Ray cluster."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from tidegate.parallel_backend import ParallelBackendError
from tidegate.sim.cluster_version_check import check_versions
from tidegate.sim.ray_cluster import connect, first_line, import_ray, installed_on_nodes

Task = TypeVar("Task")
Result = TypeVar("Result")


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
        # "local": never the cluster that RAY_ADDRESS or a file of this machine names, which nobody asked for.
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
