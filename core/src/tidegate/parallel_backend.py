"""Where independent runs go, by name, and what is raised when they cannot."""

from enum import StrEnum


class Backend(StrEnum):
    """Interface of a backend that runs tasks in parallel."""

    processes = "processes"
    """Processes of this machine."""
    ray = "ray"
    dask = "dask"


class ParallelBackendError(Exception):
    """Error: a backend cannot be used; the message says what to install or start."""
