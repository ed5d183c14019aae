"""The engine behind a lock: threads make it see one event after the other, and carry out the effects.

Events come from the thread that takes clients' calls, from the threads that take Tritons' answers, and
from the event loop. Effects are carried out, without the lock, by whoever caused them.
"""

import threading
import time
from collections.abc import Callable, Iterable

from tidegate.api import AnyEvent, ClockAdvanced, PlanChanged, WorkerJoined
from tidegate.engine import AnyEffect, Engine, EngineRestarted
from tidegate_proxy.alarm import Alarm
from tidegate_proxy.faults import faults
from tidegate_proxy.observability.observability import Observability

BUSY_NS = 100_000
"""After so long an engine that another thread held is advanced."""
ASK_AGAIN_NS = 10_000_000
"""After so long an engine that could not say when to wake it is asked again."""


class LockedEngine:
    """One engine under the monotonic clock, for many threads."""

    def __init__(
        self,
        engine: Engine,
        observability: Observability,
        carry_out: Callable[[AnyEffect], None],
        give_up: Callable[[AnyEffect], None],
        begin_anew: Callable[[], None],
    ) -> None:
        """`carry_out` performs one effect; should it raise, `give_up` ends whatever that effect concerned.

        Both are called without the lock, `begin_anew` with it, when the engine knows of no request and no leg any more.
        """
        self.engine = engine
        self.lock = threading.Lock()
        """Guards the engine and its metrics."""
        self._observability = observability
        self._carry_out = carry_out
        self._give_up = give_up
        self._begin_anew = begin_anew
        self._busy_since_ns = 0
        """When the event came that is being taken in; 0: none is."""
        self._alarm = Alarm(self._advance)

    def seen_ns(self) -> int:
        """The engine's last sign of life; from any thread, without the lock."""
        return self._busy_since_ns or time.monotonic_ns()

    def acquire(self, patience_s: float) -> bool:
        """Take the lock; False where whoever holds it has not come back for so long."""
        if self.lock.acquire(blocking=False):
            return True
        left_s = patience_s - (time.monotonic_ns() - self.seen_ns()) / 1e9
        return left_s > 0 and self.lock.acquire(timeout=left_s)

    def close(self) -> None:
        """The last event is past: time does not go on by itself any more, and observers close what they have open."""
        self._alarm.close()
        with self.lock:
            effects = self.engine.close()
        self.perform(effects)

    def handle(self, event: AnyEvent) -> list[AnyEffect]:
        """With the lock held: let the engine take in what happened. The effects are to be performed without it.

        Raises ValueError for a worker that joins, or a plan, that the engine refuses; nothing has changed then.
        """
        self._busy_since_ns = event.now_ns
        try:
            effects = self.engine.handle(event)
        except Exception as error:
            if isinstance(event, WorkerJoined | PlanChanged) and isinstance(error, ValueError):
                self._busy_since_ns = 0
                raise
            faults.report("the engine", error)
            effects = self.engine.start_anew(event, error)
        if effects and type(effects[0]) is EngineRestarted:
            self._begin_anew()
        try:
            self._observability.handled(event, effects, time.monotonic_ns() - event.now_ns)
            self._alarm.set(self.engine.next_wake_ns)
        except Exception as error:  # the effects are to be carried out nevertheless
            faults.report("what follows an event", error)
            self._alarm.set(time.monotonic_ns() + ASK_AGAIN_NS)
        self._busy_since_ns = 0
        return effects

    def perform(self, effects: Iterable[AnyEffect]) -> None:
        """Carry them out, without the lock."""
        for effect in effects:
            try:
                self._carry_out(effect)
            except Exception as error:  # the other effects are those of other requests
                faults.report(f"carrying out {type(effect).__name__}", error)
                self._give_up_quietly(effect)

    def _give_up_quietly(self, effect: AnyEffect) -> None:
        try:
            self._give_up(effect)
        except Exception as error:
            faults.report(f"giving up {type(effect).__name__}", error)

    def _advance(self) -> None:
        """In the loop, which must not wait for an engine that hangs."""
        if not self.lock.acquire(blocking=False):
            self._alarm.set(time.monotonic_ns() + BUSY_NS)
            return
        try:
            effects = self.handle(ClockAdvanced(time.monotonic_ns()))
        finally:
            self.lock.release()
        self.perform(effects)
