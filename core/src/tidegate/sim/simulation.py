"""Virtual time: events in a total order, workers that take as long as they are told to.

A leg that is sent to a worker that runs another one waits there for it.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush

from tidegate.api import NEVER, AnyEvent, BatchFailed, ClockAdvanced, LegFinished, WorkerLost
from tidegate.engine import AnyEffect, CancelLeg, Engine, StartLeg

ServiceTime = Callable[[StartLeg], int]
"""True duration of a leg in ns. The policy never sees it; it learns of it from LegFinished."""


def exact_service(effect: StartLeg) -> int:
    """Every leg takes exactly as long as it was planned to."""
    return effect.batch.legs[effect.leg].duration_ns


def preempted(effect: CancelLeg, now_ns: int) -> BatchFailed:
    """What a simulated worker tells when its leg is taken from it: at once it is free."""
    worker_id = effect.batch.legs[effect.leg].worker_id
    return BatchFailed(now_ns, effect.batch.id, effect.leg, worker_id, "preempted", retry=True)


class Simulation:
    """Drives one engine. Events of one instant: timers first, then what was fed, then in the order of scheduling."""

    def __init__(self, engine: Engine, *, service: ServiceTime = exact_service) -> None:
        self.engine = engine
        self.effects: list[tuple[int, AnyEffect]] = []
        """Everything the engine asked for, with its instant."""
        self._service = service
        self._agenda: list[tuple[int, int, AnyEvent]] = []
        self._scheduled = 0
        self._unscheduled: set[int] = set()
        self._ends: dict[int, int] = {}  # batch id -> what calls the end of its leg off
        self._busy_until_ns: dict[int, int] = {}  # by worker
        self._fed: Iterator[AnyEvent] = iter(())
        self._coming: AnyEvent | None = None
        self._stopped = False

    def schedule(self, events: Iterable[AnyEvent]) -> None:
        """Let events from outside happen at their `now_ns`."""
        for event in events:
            self._schedule(event)

    def feed(self, events: Iterable[AnyEvent]) -> None:
        """Let events from outside happen that come in the order of time: taken one by one, never piled up."""
        self._fed = iter(events)
        self._coming = next(self._fed, None)

    def run(self, until_ns: int | None = None) -> None:
        """Go on until nothing is left to happen, or until an instant."""
        limit_ns = NEVER if until_ns is None else until_ns
        engine, agenda = self.engine, self._agenda
        while not self._stopped:
            coming = self._coming
            event_ns = NEVER if coming is None else coming.now_ns
            scheduled = bool(agenda) and agenda[0][0] < event_ns
            if scheduled:
                event_ns = agenda[0][0]
            wake_ns = engine.next_wake_ns
            if wake_ns is not None and wake_ns <= event_ns:
                # A timer may have been asked for an instant that has passed: it fires now.
                if wake_ns > limit_ns or (coming is None and not agenda and self._only_waits(wake_ns)):
                    return
                self._handle(ClockAdvanced(max(wake_ns, engine.now_ns)))
            elif event_ns > limit_ns:
                return
            elif scheduled:
                _, order, event = heappop(agenda)
                if order in self._unscheduled:
                    self._unscheduled.remove(order)
                else:
                    self._handle(event)
            elif coming is not None:
                self._coming = next(self._fed, None)
                self._handle(coming)
            else:
                return

    def _schedule(self, event: AnyEvent) -> int:
        """Let an event happen; returns what `_unschedule` calls it off with."""
        self._scheduled += 1
        heappush(self._agenda, (event.now_ns, self._scheduled, event))
        return self._scheduled

    def _unschedule(self, order: int) -> None:
        self._unscheduled.add(order)

    def _only_waits(self, wake_ns: int) -> bool:
        """Whether to end where nothing is left but the engine's timers, the next one due then: never, here."""
        del wake_ns
        return False

    def _handle(self, event: AnyEvent) -> None:
        if isinstance(event, WorkerLost):
            self._busy_until_ns.pop(event.worker_id, None)
        for effect in self.engine.handle(event):
            self.effects.append((event.now_ns, effect))
            if isinstance(effect, StartLeg):
                self._run_leg(event.now_ns, effect)
            elif isinstance(effect, CancelLeg):
                self._unschedule(self._ends.pop(effect.batch.id))
                self._busy_until_ns.pop(effect.batch.legs[effect.leg].worker_id, None)
                self._schedule(preempted(effect, event.now_ns))

    def _run_leg(self, now_ns: int, effect: StartLeg) -> None:
        worker_id = effect.batch.legs[effect.leg].worker_id
        started_ns = max(now_ns, self._busy_until_ns.get(worker_id, 0))
        outcome = self.outcome(effect, started_ns, started_ns + self._service(effect))
        self._busy_until_ns[worker_id] = outcome.now_ns
        self._ends[effect.batch.id] = self._schedule(outcome)

    def outcome(self, effect: StartLeg, started_ns: int, ended_ns: int) -> LegFinished | BatchFailed:
        """How a leg ends: it finishes; subclasses make some fail."""
        worker_id = effect.batch.legs[effect.leg].worker_id
        return LegFinished(ended_ns, effect.batch.id, effect.leg, worker_id, started_ns, ended_ns)
