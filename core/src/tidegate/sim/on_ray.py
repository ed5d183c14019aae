"""Runs on a cluster of Ray."""

import socket
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, TypeVar

from tidegate.parallel_backend import ParallelBackendError
from tidegate.sim.agreement import agree, what_is_installed

Task = TypeVar("Task")
Result = TypeVar("Result")
TIMEOUT_S = 10
"""How long a cluster may take to answer, and each of its nodes."""


def run_on_ray(
    function: Callable[[Task], Result], tasks: Sequence[Task], *, jobs: int, address: str | None
) -> Iterator[Result]:
    """Apply a function to every task on a cluster; yields the results in the order of the tasks.

    `address`: of the head, `HOST:PORT` (from one of the cluster's machines) or `ray://HOST:PORT` (from any); None: a
    cluster of `jobs` processes on this machine. A task whose node dies is done on another; one that fails so four
    times ends the run. Raises ParallelBackendError, and whatever the function raises.
    """
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise ParallelBackendError(f'--backend ray: {error}; pip install "tidegate[ray]"') from error
    cluster = f"Ray at {address}" if address else "Ray on this machine"
    _connect(ray, cluster, jobs, address)
    try:
        agreement = agree(cluster, _installed_on_nodes(ray, cluster))
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
                    raise ParallelBackendError(f"{cluster}: {why} ({_first_line(error)})") from error
    finally:
        ray.shutdown()


def _connect(ray: Any, cluster: str, jobs: int, address: str | None) -> None:  # noqa: ANN401
    """Become a driver of the cluster."""
    if address is None:
        # "local": never the cluster that RAY_ADDRESS or a file of this machine names, which nobody asked for.
        cpus = jobs if jobs > 0 else None
        ray.init("local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        return
    remedy = "start one with `ray start --head`, or name another --address"
    _, _, place = address.rpartition("//")
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal():
        raise ParallelBackendError(f"--address {address}: not HOST:PORT or ray://HOST:PORT")
    try:
        # Ray itself ends the process when nobody answers for a while.
        socket.create_connection((host, int(port)), TIMEOUT_S).close()
        ray.init(address, log_to_driver=False, logging_level="ERROR")
    except (OSError, OverflowError) as error:
        raise ParallelBackendError(f"{cluster}: no head answers ({error}): {remedy}") from error
    except (RuntimeError, ValueError, ImportError, ray.exceptions.RayError) as error:
        # Another version of Ray or Python, another token, no node on this machine: Ray says which.
        raise ParallelBackendError(f"{cluster}: {_first_line(error)}") from error


def _installed_on_nodes(ray: Any, cluster: str) -> dict[str, dict[str, str]]:  # noqa: ANN401
    """What every node that runs tasks has, by its address."""
    strategy = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    ask = ray.remote(num_cpus=0)(what_is_installed())
    answers = {
        f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}": ask.options(
            scheduling_strategy=strategy(node["NodeID"], soft=False)
        ).remote()
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU")
    }
    if not answers:
        raise ParallelBackendError(f"{cluster}: no node has a CPU to lend: start one with `ray start --address ...`")
    try:
        return dict(zip(answers, ray.get(list(answers.values()), timeout=6 * TIMEOUT_S), strict=True))
    except ray.exceptions.RayError as error:
        raise ParallelBackendError(f"{cluster}: a node does not answer ({_first_line(error)})") from error


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split("\n\n")[0].split())
