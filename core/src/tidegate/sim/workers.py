"""What a simulation needs of the workers that it simulates, and the simplest ones."""

from collections.abc import Callable
from typing import Protocol

from tidegate.api import BatchFailed, LegFinished
from tidegate.engine import CancelLeg, StartLeg
from tidegate.sim.agenda import Agenda

Outcome = LegFinished | BatchFailed


class Workers(Protocol):
    """All workers of one simulation: they hear what the engine asks of them, and schedule how each leg ends."""

    def start(self, now_ns: int, effect: StartLeg, agenda: Agenda) -> None:
        """The engine sends a leg to its worker, which may still run another."""

    def cancel(self, now_ns: int, effect: CancelLeg, agenda: Agenda) -> None:
        """The engine takes a leg back; its outcome is still to be told, and once only."""

    def ended(self, outcome: Outcome, agenda: Agenda) -> None:
        """An outcome that was scheduled has come; the engine is told of it right after this."""

    def forget(self, now_ns: int, worker_id: int, agenda: Agenda) -> None:
        """Nothing runs on a worker any more: it was lost, or joins anew. Outcomes of its legs need not be told."""


Execution = Callable[[StartLeg, int], Outcome]
"""How a leg ends that its worker begins with at an instant in ns. No policy sees it before it has come."""


def finished(effect: StartLeg, started_ns: int, ended_ns: int) -> LegFinished:
    """What a worker tells of a leg that went well."""
    worker_id = effect.batch.legs[effect.leg].worker_id
    return LegFinished(ended_ns, effect.batch.id, effect.leg, worker_id, started_ns, ended_ns)


def failed(effect: StartLeg, ended_ns: int, reason: str, *, retry: bool) -> BatchFailed:
    """What a worker tells of a leg that went wrong."""
    return BatchFailed(ended_ns, effect.batch.id, effect.leg, effect.batch.legs[effect.leg].worker_id, reason, retry)


def preempted(effect: CancelLeg, now_ns: int) -> BatchFailed:
    """What a worker tells when its leg is taken from it."""
    worker_id = effect.batch.legs[effect.leg].worker_id
    return BatchFailed(now_ns, effect.batch.id, effect.leg, worker_id, "preempted", retry=True)


def as_planned(effect: StartLeg, started_ns: int) -> LegFinished:
    """An execution that takes exactly as long as was planned."""
    return finished(effect, started_ns, started_ns + effect.batch.legs[effect.leg].duration_ns)


def taking(service_ns: Callable[[StartLeg], int]) -> Execution:
    """An execution that goes well and takes so many ns."""

    def execute(effect: StartLeg, started_ns: int) -> LegFinished:
        return finished(effect, started_ns, started_ns + service_ns(effect))

    return execute


class ExactWorkers:
    """Workers whose legs end exactly as an execution says; one that is sent to a busy worker waits there."""

    def __init__(self, execution: Execution = as_planned) -> None:
        self._execution = execution
        self._ends: dict[int, int] = {}
        """The numbers of the outcomes on the agenda, by batch id."""
        self._busy_until_ns: dict[int, int] = {}
        """When a worker will have run all that it was sent, by worker id."""

    def start(self, now_ns: int, effect: StartLeg, agenda: Agenda) -> None:
        """Run it as soon as the worker is free."""
        worker_id = effect.batch.legs[effect.leg].worker_id
        outcome = self._execution(effect, max(now_ns, self._busy_until_ns.get(worker_id, 0)))
        self._busy_until_ns[worker_id] = outcome.now_ns
        self._ends[effect.batch.id] = agenda.schedule(outcome)

    def cancel(self, now_ns: int, effect: CancelLeg, agenda: Agenda) -> None:
        """The worker is free at once."""
        number = self._ends.pop(effect.batch.id, None)
        if number is None:
            return  # it has ended at this very instant
        agenda.call_off(number)
        self._busy_until_ns.pop(effect.batch.legs[effect.leg].worker_id, None)
        agenda.schedule(preempted(effect, now_ns))

    def ended(self, outcome: Outcome, agenda: Agenda) -> None:
        """Nothing is left to call off."""
        self._ends.pop(outcome.batch_id, None)

    def forget(self, now_ns: int, worker_id: int, agenda: Agenda) -> None:
        """The worker is free; outcomes of what it ran are told late, as they are live, and change nothing."""
        self._busy_until_ns.pop(worker_id, None)
