"""Backends that run independent tasks in parallel, by name."""

from enum import StrEnum


class Backend(StrEnum):
    """Name of a backend that runs tasks in parallel."""

    processes = "processes"
    """Processes on this machine."""
    ray = "ray"


class ParallelBackendError(Exception):
    """Error: a backend cannot be used; the message says what to install or start."""
