"""What a control loop asks of its driver: the simulator, or the proxy."""

from dataclasses import dataclass

from tidegate.control.observation import Observation
from tidegate.control.roster import Roster
from tidegate.documents import Layout, LayoutWorker
from tidegate.observation import ChangeProgressed


@dataclass(frozen=True)
class AskController:
    """Have `ControlLoop.answer` find out what the controller wants. Answer with `has_answered`.

    It may take long, and may run in a thread: it touches nothing but the controller.
    """

    observation: Observation


@dataclass(frozen=True)
class StartWorker:
    """Start a process beside those that serve, load what it hosts, warm it. Answer with `is_warm` or `has_failed`."""

    worker_id: int
    worker: LayoutWorker
    layout: Layout
    """The layout that it is of: its partitions are described there."""


@dataclass(frozen=True)
class Switch:
    """Tell the engine of the new models and workers (PlanChanged): from now on these are given work.

    Answer with `has_switched`, or with `has_not_switched` where the engine refuses that.
    """

    roster: Roster


@dataclass(frozen=True)
class StopWorker:
    """Stop a process: it has drained, is not wanted any more, or drains for too long."""

    worker_id: int
    worker: LayoutWorker


Order = AskController | StartWorker | Switch | StopWorker | ChangeProgressed
"""The closed union; ChangeProgressed is to be told to the engine, so that all who watch it see the change."""
