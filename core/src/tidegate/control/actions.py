"""Actions that a control loop requests from its driver, the simulator or the proxy."""

from dataclasses import dataclass

from tidegate.control.layout_revision import LayoutRevision
from tidegate.control.observation import Observation
from tidegate.observation import ChangeProgressed
from tidegate.schemas import Layout, LayoutWorker


@dataclass(frozen=True)
class QueryController:
    """Action: ask the controller about an observation (`controller_answer`), and pass its answer to `on_answer`.

    The call may take long and may run in a thread: it uses only the controller.
    """

    observation: Observation


@dataclass(frozen=True)
class StartWorker:
    """Action: start a worker's process beside the current ones, load its partitions and warm it up.

    Then call `on_worker_warm` or `on_worker_failed`.
    """

    worker_id: int
    worker: LayoutWorker
    layout: Layout
    """Layout that contains the worker and describes its partitions."""


@dataclass(frozen=True)
class Switch:
    """Action: pass the new models and workers to the engine (TopologyChanged), which uses them from then on.

    Then call `on_switched`, or `on_switch_failed` if the engine rejects them.
    """

    revision: LayoutRevision


@dataclass(frozen=True)
class StopWorker:
    """Action: stop a worker's process, which has drained, exceeded its drain timeout, or is obsolete."""

    worker_id: int
    worker: LayoutWorker


Action = QueryController | StartWorker | Switch | StopWorker | ChangeProgressed
"""Union of all actions. The driver passes ChangeProgressed to the engine, so that every observer sees the change."""
