"""Interface between a simulation and its workers, and the simplest workers."""

from collections.abc import Callable
from typing import Protocol

from tidegate.api import BatchFailed, StageFinished
from tidegate.engine import CancelStage, StartStage
from tidegate.sim.event_queue import EventQueue

Outcome = StageFinished | BatchFailed


class Workers(Protocol):
    """All workers of one simulation: they hear what the engine asks of them, and schedule how each stage ends."""

    def start(self, now_ns: int, effect: StartStage, agenda: EventQueue) -> None:
        """The engine sends a stage to its worker, which may still run another."""

    def cancel(self, now_ns: int, effect: CancelStage, agenda: EventQueue) -> None:
        """The engine takes a stage back; its outcome is still to be told, and once only."""

    def ended(self, outcome: Outcome, agenda: EventQueue) -> None:
        """An outcome that was scheduled has come; the engine is told of it right after this."""

    def forget(self, now_ns: int, worker_id: int, agenda: EventQueue) -> None:
        """Nothing runs on a worker any more: it was lost, or joins anew. Outcomes of its stages need not be told."""


Execution = Callable[[StartStage, int], Outcome]
"""How a stage ends that its worker begins with at an instant in ns. No policy sees it before it has come."""


def finished(effect: StartStage, started_ns: int, ended_ns: int) -> StageFinished:
    """Return the event of a stage that finished."""
    worker_id = effect.batch.stages[effect.stage].worker_id
    return StageFinished(ended_ns, effect.batch.id, effect.stage, worker_id, started_ns, ended_ns)


def failed(effect: StartStage, ended_ns: int, reason: str, *, retry: bool) -> BatchFailed:
    """Return the event of a stage that failed."""
    return BatchFailed(
        ended_ns, effect.batch.id, effect.stage, effect.batch.stages[effect.stage].worker_id, reason, retry
    )


def preempted(effect: CancelStage, now_ns: int) -> BatchFailed:
    """Return the event of a stage that was preempted."""
    worker_id = effect.batch.stages[effect.stage].worker_id
    return BatchFailed(now_ns, effect.batch.id, effect.stage, worker_id, "preempted", retry=True)


def as_planned(effect: StartStage, started_ns: int) -> StageFinished:
    """An execution that takes exactly as long as was planned."""
    return finished(effect, started_ns, started_ns + effect.batch.stages[effect.stage].duration_ns)


def taking(service_ns: Callable[[StartStage], int]) -> Execution:
    """An execution that goes well and takes so many ns."""

    def execute(effect: StartStage, started_ns: int) -> StageFinished:
        return finished(effect, started_ns, started_ns + service_ns(effect))

    return execute


class ExactWorkers:
    """Workers whose stages end exactly as an execution says; one that is sent to a busy worker waits there."""

    def __init__(self, execution: Execution = as_planned) -> None:
        self._execution = execution
        self._ends: dict[int, int] = {}
        """The numbers of the outcomes on the agenda, by batch id."""
        self._busy_until_ns: dict[int, int] = {}
        """When a worker will have run all that it was sent, by worker id."""

    def start(self, now_ns: int, effect: StartStage, agenda: EventQueue) -> None:
        """Run it as soon as the worker is free."""
        worker_id = effect.batch.stages[effect.stage].worker_id
        outcome = self._execution(effect, max(now_ns, self._busy_until_ns.get(worker_id, 0)))
        self._busy_until_ns[worker_id] = outcome.now_ns
        self._ends[effect.batch.id] = agenda.schedule(outcome)

    def cancel(self, now_ns: int, effect: CancelStage, agenda: EventQueue) -> None:
        """The worker is free at once."""
        number = self._ends.pop(effect.batch.id, None)
        if number is None:
            return  # it has ended at this very instant
        agenda.call_off(number)
        self._busy_until_ns.pop(effect.batch.stages[effect.stage].worker_id, None)
        agenda.schedule(preempted(effect, now_ns))

    def ended(self, outcome: Outcome, agenda: EventQueue) -> None:
        """Nothing is left to call off."""
        self._ends.pop(outcome.batch_id, None)

    def forget(self, now_ns: int, worker_id: int, agenda: EventQueue) -> None:
        """The worker is free; outcomes of what it ran are told late, as they are live, and change nothing."""
        self._busy_until_ns.pop(worker_id, None)
