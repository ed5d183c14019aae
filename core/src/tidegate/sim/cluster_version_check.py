"""Version check of a cluster: every machine must have the versions of this one, so that runs give the same bytes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tidegate.api import CommandSpec
from tidegate.host import PluginError, Plugins
from tidegate.parallel_backend import ParallelBackendError

Installed = Mapping[str, str]
"""Versions by name: Python, the libraries of the simulator, Tidegate and its plugins."""

PYTHON_KEY = "Python"
REQUIRED_NAMES = (PYTHON_KEY, "tidegate", "numpy")
"""Names that every run needs; plugins are required only by runs that use them."""


def what_is_installed() -> Callable[[], dict[str, str]]:
    """Return a function that lists the versions installed where it runs.

    Ray and Dask pickle such an inner function by value, so a worker without Tidegate can answer, too.
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
