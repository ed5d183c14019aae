"""Actions that a control loop asks its driver, the simulator or the proxy, to carry out."""

from dataclasses import dataclass

from tidegate.control.layout_revision import LayoutRevision
from tidegate.control.observation import Observation
from tidegate.observation import ChangeProgressed
from tidegate.schemas import Layout, LayoutWorker


@dataclass(frozen=True)
class QueryController:
    """Have `ControlLoop.answer` find out what the controller wants. Answer with `on_answer`.

    It may take long, and may run in a thread: it touches nothing but the controller.
    """

    observation: Observation


@dataclass(frozen=True)
class StartWorker:
    """Start a process beside those that serve, load what it hosts, warm it.

    Answer with `on_worker_warm` or `on_worker_failed`.
    """

    worker_id: int
    worker: LayoutWorker
    layout: Layout
    """The layout that it is of: its partitions are described there."""


@dataclass(frozen=True)
class Switch:
    """Tell the engine of the new models and workers (TopologyChanged): from now on these are given work.

    Answer with `on_switched`, or with `on_switch_failed` where the engine refuses that.
    """

    revision: LayoutRevision


@dataclass(frozen=True)
class StopWorker:
    """Stop a process: it has drained, is not wanted any more, or drains for too long."""

    worker_id: int
    worker: LayoutWorker


Action = QueryController | StartWorker | Switch | StopWorker | ChangeProgressed
"""The closed union; ChangeProgressed is to be told to the engine, so that all who watch it see the change."""
