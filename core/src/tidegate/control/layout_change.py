"""One change of the layout: new workers start beside the old ones, then the switch, then the old ones drain.

A pure state machine. The old layout serves until every new worker is warm; the new layout serves from the same instant
on. So no model ever has fewer workers than in the smaller of the two layouts. A failure before the switch undoes the
change.
"""

from dataclasses import dataclass
from typing import Literal

from tidegate.control.capacity import gpus_of
from tidegate.control.controller import Observation
from tidegate.control.layout_revision import LayoutRevision
from tidegate.observation import ChangeProgressed
from tidegate.observation.stimuli import ChangeState
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


WorkerState = Literal["starting", "warm", "serving", "draining", "stopped"]


class LayoutChange:
    """Change from one layout revision to another. Every method returns actions for the driver."""

    def __init__(
        self, number: int, before: LayoutRevision, after: LayoutRevision, *, start_limit_ns: int, drain_limit_ns: int
    ) -> None:
        """Create a change with a number that identifies it in events.

        `start_limit_ns`: maximum time in ns for the new workers to become warm; `drain_limit_ns`: for the old workers
        to drain.
        """
        self.number = number
        self.before, self.after = before, after
        self.state: ChangeState = "starting"
        self.workers: dict[int, WorkerState] = {
            **dict.fromkeys(before.ids, "serving"),
            **dict.fromkeys([worker_id for worker_id in after.ids if worker_id not in before.ids], "starting"),
        }
        """The state of every worker of either layout, by id."""
        self._start_limit_ns, self._drain_limit_ns = start_limit_ns, drain_limit_ns
        self._switching = False
        """Whether the driver is about to say that it has switched, or could not."""
        self.limit_ns = 0
        """When `pass_time` is to be called at the latest."""

    @property
    def revision(self) -> LayoutRevision:
        """The current revision."""
        return self.after if self.state in {"switched", "done"} else self.before

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return self.state in {"done", "undone"}

    @property
    def draining(self) -> tuple[int, ...]:
        """Ids of old workers that get no more work and still run something."""
        return self._in("draining")

    def begin(self, now_ns: int) -> list[Action]:
        """Start the new workers, or switch at once if there are none."""
        self.limit_ns = now_ns + self._start_limit_ns
        workers = self.after.workers
        starts = [StartWorker(number, workers[number], self.after.layout) for number in self._in("starting")]
        return [self._progress(now_ns), *starts, *self._switch_if_warm(now_ns)]

    def on_worker_warm(self, now_ns: int, worker_id: int) -> list[Action]:
        """Handle a new worker that has loaded and run its partitions; switch if it was the last."""
        if self.workers.get(worker_id) != "starting":
            return []
        self.workers[worker_id] = "warm"
        return self._switch_if_warm(now_ns)

    def on_worker_failed(self, now_ns: int, worker_id: int, why: str) -> list[Action]:
        """Handle the loss of a worker's process; the loss of a new worker before the switch undoes the change.

        `why`: error text, for logs.
        """
        match self.workers.get(worker_id):
            case "starting" | "warm" if not self._switching:
                name = self.after.workers[worker_id].name
                return self.undo(now_ns, f"worker {name!r} did not come up: {why}")
            case "draining":
                return self.on_worker_drained(now_ns, worker_id)
            case _:
                return []

    def on_switched(self, now_ns: int) -> list[Action]:
        """Handle the switch of the engine to the new layout: old workers drain."""
        if not self._switching:
            return []
        self._switching = False
        for worker_id in self.workers:
            self.workers[worker_id] = "serving" if worker_id in self.after.ids else "draining"
        self.limit_ns = now_ns + self._drain_limit_ns
        self.state = "switched"
        actions: list[Action] = [self._progress(now_ns)]
        if not self.draining:
            self.state = "done"
            actions.append(self._progress(now_ns))
        return actions

    def on_switch_failed(self, now_ns: int, why: str) -> list[Action]:
        """Handle the engine's rejection of the new layout (`why`): undo the change."""
        self._switching = False
        return self.undo(now_ns, f"the switch was refused: {why}")

    def on_worker_drained(self, now_ns: int, worker_id: int) -> list[Action]:
        """Handle an old worker that has drained: stop it."""
        if self.workers.get(worker_id) != "draining":
            return []
        stop = self._stop(worker_id)
        if self.draining:
            return [stop]
        self.state = "done"
        return [stop, self._progress(now_ns)]

    def pass_time(self, now_ns: int) -> list[Action]:
        """Undo the change if workers did not start in time; stop workers that did not drain in time."""
        if self.is_over or self._switching or now_ns < self.limit_ns:
            return []
        if self.state == "starting":
            slow = [self.after.workers[number].name for number in self._in("starting")]
            seconds = self._start_limit_ns / 1e9
            return self.undo(now_ns, f"not up within {seconds:g} s: {', '.join(slow)}")
        stops = [self._stop(worker_id) for worker_id in self.draining]
        self.state = "done"
        return [*stops, self._progress(now_ns)]

    def undo(self, now_ns: int, why: str) -> list[Action]:
        """Stop the new workers and keep the old layout; without effect after the switch. `why`: text for logs."""
        if self.state != "starting" or self._switching:
            return []
        self.state = "undone"
        started = [number for number in self.after.ids if self.workers[number] in {"starting", "warm"}]
        return [*(self._stop(number) for number in started), self._progress(now_ns, why)]

    def _switch_if_warm(self, now_ns: int) -> list[Action]:
        if self._in("starting"):
            return []
        self._switching = True
        return [Switch(self.after)]

    def _stop(self, worker_id: int) -> StopWorker:
        self.workers[worker_id] = "stopped"
        workers = self.before.workers | self.after.workers
        return StopWorker(worker_id, workers[worker_id])

    def _in(self, state: WorkerState) -> tuple[int, ...]:
        return tuple(worker_id for worker_id, its in self.workers.items() if its == state)

    def _progress(self, now_ns: int, reason: str = "") -> ChangeProgressed:
        return progress(now_ns, self.number, self.state, self.before, self.after, reason)


def progress(
    now_ns: int, number: int, state: ChangeState, before: LayoutRevision, after: LayoutRevision, reason: str = ""
) -> ChangeProgressed:
    """Return the event that reports a change from one revision to another.

    `number`: number of the change; `reason`: why it was undone, empty if it was not.
    """
    old, new = before.workers, after.workers
    starts = tuple(worker.name for worker_id, worker in new.items() if worker_id not in old)
    stops = tuple(worker.name for worker_id, worker in old.items() if worker_id not in new)
    serving = after if state in {"switched", "done"} else before
    return ChangeProgressed(now_ns, number, state, starts, stops, gpus_of(serving.layout), reason)
