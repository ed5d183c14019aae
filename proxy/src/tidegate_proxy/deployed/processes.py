"""What an actuator has of the processes of workers; `tidegate up` has such."""

from collections.abc import Mapping
from typing import Protocol

from tidegate.documents import Layout, LayoutWorker
from tidegate_proxy.configuration.tritons import TritonAddress


class WorkerNotStarted(Exception):
    """The process of a worker did not come up; the message says why. Nothing of it is left."""


class Processes(Protocol):
    """Starts and stops processes. `start` and `stop` block, and may be called in any thread."""

    def start(self, worker_id: int, worker: LayoutWorker, layout: Layout, within_s: float) -> TritonAddress:
        """Start the process of a worker of a layout, and wait until it is ready. Raises WorkerNotStarted.

        `stop`, called meanwhile, has it end soon.
        """
        ...

    def is_running(self, name: str) -> bool:
        """Whether the process of a worker is there, by the worker's name."""
        ...

    @property
    def restarts(self) -> Mapping[str, int]:
        """How often the process of each worker ended by itself and was started again, by the worker's name."""
        ...

    def stop(self, worker_id: int, name: str) -> None:
        """End the process of a worker; where there is none, do nothing, and let none come up."""
        ...
