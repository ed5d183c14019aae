"""Interface between a simulation and its workers, and the simplest workers."""

from collections.abc import Callable
from typing import Protocol

from tidegate.api import BatchFailed, StageFinished
from tidegate.engine import CancelStage, FirstResponse, StartStage
from tidegate.sim.event_queue import EventQueue

Outcome = StageFinished | BatchFailed


class Workers(Protocol):
    """Interface of a simulation's workers: they execute effects and schedule the end of each stage in `agenda`."""

    def start(self, now_ns: int, effect: StartStage, agenda: EventQueue) -> None:
        """Start a stage on its worker, which may still run another."""

    def cancel(self, now_ns: int, effect: CancelStage, agenda: EventQueue) -> None:
        """Cancel a stage; its outcome must still be reported once."""

    def ended(self, outcome: Outcome, agenda: EventQueue) -> None:
        """Handle a scheduled outcome, just before the engine gets it."""

    def responded(self, event: FirstResponse, agenda: EventQueue) -> None:
        """Handle a scheduled first response, just before the engine gets it."""

    def forget(self, now_ns: int, worker_id: int, agenda: EventQueue) -> None:
        """Cancel the stages of a worker that was lost or joins again; their outcomes need not be reported."""


Execution = Callable[[StartStage, int], Outcome]
"""Function (effect, start in ns) that returns the outcome of a stage; policies do not see it before it happens."""


def finished(effect: StartStage, started_ns: int, ended_ns: int) -> StageFinished:
    """Return the event of a stage that finished."""
    worker_id = effect.batch.stages[effect.stage].worker_id
    return StageFinished(ended_ns, effect.batch.id, effect.stage, worker_id, started_ns, ended_ns)


def failed(effect: StartStage, ended_ns: int, reason: str, *, retry: bool) -> BatchFailed:
    """Return the event of a stage that failed at `ended_ns`.

    `reason`: text of the error; `retry`: whether the worker is to blame, so that its requests are tried again.
    """
    return BatchFailed(
        ended_ns, effect.batch.id, effect.stage, effect.batch.stages[effect.stage].worker_id, reason, retry
    )


def preempted(effect: CancelStage, now_ns: int) -> BatchFailed:
    """Return the event of a stage that was preempted."""
    worker_id = effect.batch.stages[effect.stage].worker_id
    return BatchFailed(now_ns, effect.batch.id, effect.stage, worker_id, "preempted", retry=True)


def as_planned(effect: StartStage, started_ns: int) -> StageFinished:
    """Return the event of a stage that ends after its planned duration."""
    return finished(effect, started_ns, started_ns + effect.batch.stages[effect.stage].duration_ns)


def taking(service_ns: Callable[[StartStage], int]) -> Execution:
    """Return an execution that lasts `service_ns(effect)` ns."""

    def execute(effect: StartStage, started_ns: int) -> StageFinished:
        return finished(effect, started_ns, started_ns + service_ns(effect))

    return execute


class ExactWorkers:
    """Workers whose stages end as an execution determines; a stage waits if its worker is busy."""

    def __init__(self, execution: Execution = as_planned) -> None:
        self._execution = execution
        self._ends: dict[int, int] = {}
        """The numbers of the outcomes on the agenda, by batch id."""
        self._busy_until_ns: dict[int, int] = {}
        """When a worker will have run all that it was sent, by worker id."""

    def start(self, now_ns: int, effect: StartStage, agenda: EventQueue) -> None:
        """Start the stage as soon as the worker is free."""
        worker_id = effect.batch.stages[effect.stage].worker_id
        outcome = self._execution(effect, max(now_ns, self._busy_until_ns.get(worker_id, 0)))
        self._busy_until_ns[worker_id] = outcome.now_ns
        self._ends[effect.batch.id] = agenda.schedule(outcome)

    def cancel(self, now_ns: int, effect: CancelStage, agenda: EventQueue) -> None:
        """Free the worker at once; `agenda`: the end of the stage is removed, and its outcome scheduled."""
        number = self._ends.pop(effect.batch.id, None)
        if number is None:
            return  # it has ended at this very instant
        agenda.call_off(number)
        self._busy_until_ns.pop(effect.batch.stages[effect.stage].worker_id, None)
        agenda.schedule(preempted(effect, now_ns))

    def ended(self, outcome: Outcome, agenda: EventQueue) -> None:
        """Ignore the outcome: nothing is left to cancel."""
        self._ends.pop(outcome.batch_id, None)

    def responded(self, event: FirstResponse, agenda: EventQueue) -> None:
        """Ignore the first response."""

    def forget(self, now_ns: int, worker_id: int, agenda: EventQueue) -> None:
        """Free the worker; late outcomes of its stages change nothing."""
        self._busy_until_ns.pop(worker_id, None)
