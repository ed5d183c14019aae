"""Virtual time: events in a total order, workers that take as long as they are told to."""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from tidegate.api import AnyEvent, BatchFailed, ClockAdvanced, LegFinished
from tidegate.engine import AnyEffect, Engine, StartLeg

ServiceTime = Callable[[StartLeg], int]
"""True duration of a leg in ns. The policy never sees it; it learns of it from LegFinished."""


def exact_service(effect: StartLeg) -> int:
    """Every leg takes exactly as long as it was planned to."""
    return effect.batch.legs[effect.leg].duration_ns


class Simulation:
    """Drives one engine. Events of one instant: timers first, then in the order in which they were scheduled."""

    def __init__(self, engine: Engine, *, service: ServiceTime = exact_service) -> None:
        self.engine = engine
        self.effects: list[tuple[int, AnyEffect]] = []
        """Everything the engine asked for, with its instant."""
        self._service = service
        self._agenda: list[tuple[int, int, AnyEvent]] = []
        self._scheduled = 0

    def schedule(self, events: Iterable[AnyEvent]) -> None:
        """Let events from outside happen at their `now_ns`."""
        for event in events:
            self._scheduled += 1
            heappush(self._agenda, (event.now_ns, self._scheduled, event))

    def run(self, until_ns: int | None = None) -> None:
        """Go on until nothing is left to happen, or until an instant."""
        while True:
            wake_ns = self.engine.next_wake_ns
            event_ns = self._agenda[0][0] if self._agenda else None
            candidates = [at for at in (wake_ns, event_ns) if at is not None]
            if not candidates or (until_ns is not None and min(candidates) > until_ns):
                return
            if wake_ns is not None and (event_ns is None or wake_ns <= event_ns):
                # A timer may have been asked for an instant that has passed: it fires now.
                self._handle(ClockAdvanced(max(wake_ns, self.engine.now_ns)))
            else:
                self._handle(heappop(self._agenda)[2])

    def _handle(self, event: AnyEvent) -> None:
        for effect in self.engine.handle(event):
            self.effects.append((event.now_ns, effect))
            if isinstance(effect, StartLeg):
                self._run_leg(event.now_ns, effect)

    def _run_leg(self, now_ns: int, effect: StartLeg) -> None:
        self.schedule([self.outcome(effect, now_ns, now_ns + self._service(effect))])

    def outcome(self, effect: StartLeg, started_ns: int, ended_ns: int) -> LegFinished | BatchFailed:
        """How a leg ends: it finishes; subclasses make some fail."""
        worker_id = effect.batch.legs[effect.leg].worker_id
        return LegFinished(ended_ns, effect.batch.id, effect.leg, worker_id, started_ns, ended_ns)
