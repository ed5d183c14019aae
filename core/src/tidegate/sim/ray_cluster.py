"""Connections to a Ray cluster, whose nodes must have the versions of this machine: runs then give the same bytes."""

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tidegate.api import CommandSpec
from tidegate.host import PluginError, Plugins
from tidegate.parallel_backend import ParallelBackendError

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
        if address != "auto":  # Ray itself ends the process when no server answers for a while
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


Installed = Mapping[str, str]
"""Versions by name: Python, the libraries of the simulator, Tidegate and its plugins."""

PYTHON_KEY = "Python"
REQUIRED_NAMES = (PYTHON_KEY, "tidegate", "numpy")
"""Names that every run needs; plugins are required only by runs that use them."""


def what_is_installed() -> Callable[[], dict[str, str]]:
    """Return a function that lists the versions installed where it runs.

    Ray pickles such an inner function by value, so a worker without Tidegate can answer, too.
    """

    def installed() -> dict[str, str]:
        import sys  # noqa: PLC0415 - imported where it runs
        from importlib import metadata  # noqa: PLC0415

        found = {"Python": f"{sys.version_info.major}.{sys.version_info.minor}"}
        for distribution in metadata.distributions():
            name = distribution.metadata["Name"]
            if name == "numpy" or any(entry.group == "tidegate" for entry in distribution.entry_points):
                found[name] = distribution.version
        return found

    return installed


@dataclass(frozen=True)
class ClusterVersions:
    """Versions on the workers of a cluster, compared with this machine; created by `check_versions`."""

    cluster: str
    missing: Mapping[str, tuple[str, ...]]
    """Missing plugins of each worker, by the worker's address; plugins as pip names them."""

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Context that turns a PluginError for a plugin missing on a worker into one with a remedy.

        Raises ParallelBackendError in place of PluginError.
        """
        try:
            yield
        except PluginError as error:
            if not self.missing:
                raise
            worker, wanted = next(iter(self.missing.items()))
            remedy = f"pip install {' '.join(wanted)}"
            raise ParallelBackendError(f"{self.cluster}: {error}; worker {worker} lacks plugins: {remedy}") from error


def check_versions(cluster: str, workers: Mapping[str, Installed]) -> ClusterVersions:
    """Compare the versions on the workers, by address, with this machine's.

    `cluster`: name of the cluster in messages. Raises ParallelBackendError if runs could not start there or would give
    other results.
    """
    used = {name for (kind, _), name in Plugins.installed().source.items() if kind is not CommandSpec}
    here = {name: version for name, version in what_is_installed()().items() if name in {*REQUIRED_NAMES, *used}}
    for worker, there in workers.items():
        for name, version in here.items():
            if name not in there and name in REQUIRED_NAMES:
                remedy = f'pip install "tidegate[sim]=={here["tidegate"]}" there'
                raise ParallelBackendError(f"{cluster}: worker {worker} has no {name}: {remedy}")
            if there.get(name, version) != version:
                remedy = f"run Python {version}" if name == PYTHON_KEY else f"pip install {name}=={version}"
                found = f"{name} {there[name]}, and this machine {version}"
                raise ParallelBackendError(f"{cluster}: worker {worker} has {found}: {remedy} there")
    missing = {
        worker: tuple(f"{name}=={version}" for name, version in here.items() if name not in there)
        for worker, there in workers.items()
    }
    return ClusterVersions(cluster, {worker: plugins for worker, plugins in missing.items() if plugins})
