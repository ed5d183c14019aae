"""Connections to a Ray cluster, and the versions installed on its nodes."""

import socket
from importlib import import_module
from typing import Any

from tidegate.parallel_backend import ParallelBackendError
from tidegate.sim.cluster_version_check import what_is_installed

TIMEOUT_S = 10
"""Time limit in seconds for a cluster, and for each of its nodes, to answer."""


def import_ray(option: str) -> Any:  # noqa: ANN401 - a module
    """Import Ray, which is an extra; `option`: command-line option that needs it. Raises ParallelBackendError."""
    try:
        return import_module("ray")
    except ImportError as error:
        raise ParallelBackendError(f'{option}: {error}; pip install "tidegate[ray]"') from error


def connect(ray: Any, cluster: str, address: str, option: str) -> None:  # noqa: ANN401
    """Connect this process to a Ray cluster.

    `address`: HOST:PORT, ray://HOST:PORT, or `auto` for that of this machine. `cluster`: its name in messages;
    `option`: command-line option that names it. Raises ParallelBackendError.
    """
    remedy = f"start one with `ray start --head`, or name another {option}"
    _, _, place = address.rpartition("//")
    host, _, port = place.rpartition(":")
    if address != "auto" and not (host and port.isdecimal()):
        raise ParallelBackendError(f"{option} {address}: not HOST:PORT, ray://HOST:PORT or auto")
    try:
        if address != "auto":  # Ray itself ends the process when nobody answers for a while
            socket.create_connection((host, int(port)), TIMEOUT_S).close()
        ray.init(address, log_to_driver=False, logging_level="ERROR")
    except (OSError, OverflowError) as error:
        raise ParallelBackendError(f"{cluster}: no head answers ({error}): {remedy}") from error
    except (RuntimeError, ValueError, ImportError, ray.exceptions.RayError) as error:
        # Another version of Ray or Python, another token, no node on this machine: Ray says which.
        raise ParallelBackendError(f"{cluster}: {first_line(error)}") from error


def installed_on_nodes(ray: Any, cluster: str) -> dict[str, dict[str, str]]:  # noqa: ANN401
    """Return the versions on every node that runs tasks, by address; `cluster`: its name in messages.

    Raises ParallelBackendError if a node does not answer.
    """
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
        raise ParallelBackendError(f"{cluster}: a node does not answer ({first_line(error)})") from error


def first_line(error: Exception) -> str:
    """Return the first line of an error of Ray."""
    return " ".join(str(error).split("\n\n")[0].split())
