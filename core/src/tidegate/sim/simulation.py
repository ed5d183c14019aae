"""Virtual time: drives one engine through events of an event queue and its own wake-ups, in a total order.

`Workers` execute stages, and each `Listener` observes.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from tidegate.api import NEVER_NS, BatchFailed, RequestArrived, StageFinished, WorkerJoined, WorkerLost
from tidegate.engine import AnyEffect, AnyStimulus, CancelStage, ClockAdvanced, Engine, FirstResponse, StartStage
from tidegate.sim.event_queue import EventQueue
from tidegate.sim.workers import ExactWorkers, Workers

MAX_WAKE_UPS_AT_ONCE: Final = 10_000
"""Wake-ups at one instant from which a policy is taken to set its timers for now again and again."""


class TimerLoopError(Exception):
    """Error: the policy sets a timer for now whenever one fires, so that time never passes."""

    def __init__(self, now_ns: int) -> None:
        """Create the error. `now_ns`: the instant."""
        super().__init__(
            f"timers fired {MAX_WAKE_UPS_AT_ONCE:,} times in a row at {now_ns} ns: a timer for now or the past fires "
            "at once; set it for later, or return other commands when it is due"
        )


class Listener(Protocol):
    """Listener of a simulation, which may schedule further events."""

    def handled(self, event: AnyStimulus, effects: Sequence[AnyEffect]) -> None:
        """Handle an event that the engine has handled; workers have not received its effects yet."""


class Simulation:
    """Simulation of one engine. Order of simultaneous events: timers, fed events, scheduled events."""

    def __init__(
        self,
        engine: Engine,
        workers: Workers | None = None,
        *,
        listeners: Sequence[Listener] = (),
        patience: int | None = None,
        enough: Callable[[], bool] | None = None,
    ) -> None:
        """Create a simulation.

        `workers`: execute stages; None: exact ones. `listeners`: notified of every event. `patience`: maximum number of
        timers that fire in a row when only timers are left and requests wait; None: run until no timer is left.
        `enough`: called after each event; True ends the run.
        """
        self.engine = engine
        self.agenda = EventQueue()
        self._workers: Workers = workers or ExactWorkers()
        self._handled = tuple(listener.handled for listener in listeners)
        self._patience = patience
        self._timers_in_a_row = 0
        """How many fired since there was anything on the agenda."""
        self._enough = enough
        self._woken_ns, self._wake_ups = -1, 0
        """Instant of the last wake-up, and how many there were at that instant."""

    def schedule(self, events: Iterable[AnyStimulus]) -> None:
        """Schedule events from outside at their `now_ns`."""
        for event in events:
            self.agenda.schedule(event)

    def feed(self, events: Iterable[AnyStimulus]) -> None:
        """Feed events from outside in order of time, taken one by one."""
        self.agenda.feed(events)

    def run(self, until_ns: int = NEVER_NS) -> None:
        """Run until nothing is left to happen, or until `until_ns`.

        Raises TimerLoopError if the policy's timers keep the time from passing.
        """
        engine, agenda, enough = self.engine, self.agenda, self._enough
        while enough is None or not enough():
            event_ns, wake_ns = agenda.next_ns, engine.next_wake_ns
            if wake_ns is not None and wake_ns <= event_ns:
                # A timer may have been asked for an instant that has passed: it fires now.
                if wake_ns > until_ns or (event_ns == NEVER_NS and self._waits_in_vain()):
                    return
                self._count_wake_up(max(wake_ns, engine.now_ns))
                self._handle(ClockAdvanced(max(wake_ns, engine.now_ns)))
            elif event_ns > until_ns or event_ns == NEVER_NS:
                return
            else:
                self._timers_in_a_row = 0
                event = agenda.pop()
                if event is not None:
                    self._handle(event)

    def _count_wake_up(self, now_ns: int) -> None:
        """Raise TimerLoopError where timers keep the time from passing."""
        self._wake_ups = self._wake_ups + 1 if now_ns == self._woken_ns else 1
        self._woken_ns = now_ns
        if self._wake_ups > MAX_WAKE_UPS_AT_ONCE:
            raise TimerLoopError(now_ns)

    def _waits_in_vain(self) -> bool:
        """Whether the run ends here, where nothing is left but the engine's timers."""
        self._timers_in_a_row += 1
        if self._patience is None:
            return False
        return not (self.engine.queued or self.engine.in_flight) or self._timers_in_a_row > self._patience

    def _handle(self, event: AnyStimulus) -> None:
        workers, agenda = self._workers, self.agenda
        kind = type(event)
        if kind is RequestArrived or kind is ClockAdvanced:
            pass  # the most frequent ones
        elif isinstance(event, (StageFinished, BatchFailed)):
            workers.ended(event, agenda)
        elif isinstance(event, FirstResponse):
            workers.responded(event, agenda)
        elif isinstance(event, WorkerLost):
            workers.forget(event.now_ns, event.worker_id, agenda)
        elif isinstance(event, WorkerJoined):
            workers.forget(event.now_ns, event.worker.id, agenda)  # its loss was not noticed
        effects = self.engine.handle(event)
        for handled in self._handled:
            handled(event, effects)
        for effect in effects:
            if isinstance(effect, StartStage):
                workers.start(event.now_ns, effect, agenda)
            elif isinstance(effect, CancelStage):
                workers.cancel(event.now_ns, effect, agenda)
