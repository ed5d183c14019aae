"""Independent runs on many cores, or on many machines: joblib, with processes here, Ray or Dask beyond."""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from importlib import import_module
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


class Backend(StrEnum):
    """Where tasks run."""

    processes = "processes"
    """Processes of this machine."""
    ray = "ray"
    dask = "dask"


class ParallelBackendError(Exception):
    """A backend that cannot be used; the message says what to install or to start."""


def run_parallel(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    jobs: int = -1,
    backend: Backend = Backend.processes,
) -> Iterator[Result]:
    """Apply a function to every task; yields the results in the order of the tasks, which must pickle.

    `jobs`: how many at once; -1: as many as there are cores, 1: in this process. What the results are depends on
    neither. Raises ParallelBackendError, and whatever the function raises.
    """
    import joblib  # noqa: PLC0415 - of the extra `sim`

    if backend is Backend.processes and (jobs == 1 or len(tasks) <= 1):
        yield from map(function, tasks)
        return
    calls = [joblib.delayed(function)(task) for task in tasks]
    if backend is Backend.processes:
        yield from joblib.Parallel(n_jobs=jobs, return_as="generator", batch_size=1)(calls)
        return
    with _connected(backend):
        yield from joblib.Parallel(n_jobs=jobs)(calls)


def _connected(backend: Backend) -> Any:  # noqa: ANN401 - joblib has no types
    """A context in which joblib uses the cluster that Ray or Dask finds, or starts on this machine."""
    import joblib  # noqa: PLC0415

    try:
        if backend is Backend.ray:
            import_module("ray.util.joblib").register_ray()
        else:
            import_module("distributed").Client()  # joblib takes the newest client
    except ImportError as error:
        package = "ray" if backend is Backend.ray else "dask[distributed]"
        raise ParallelBackendError(f'--backend {backend}: {error}; pip install "{package}"') from error
    return joblib.parallel_config(backend=str(backend))
