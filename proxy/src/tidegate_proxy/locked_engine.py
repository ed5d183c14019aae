"""The engine behind a lock: threads make it see one event after the other, and carry out the effects.

Events come from the thread that takes clients' calls, from the threads that take Tritons' answers, from the alarm and
from the event loop. Effects are carried out, without the lock, by whoever caused them.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable

from tidegate.api import AnyEvent, ClockAdvanced
from tidegate.engine import AnyEffect, Engine
from tidegate_proxy.alarm import Alarm
from tidegate_proxy.observability.observability import Observability

log = logging.getLogger(__name__)


class LockedEngine:
    """One engine under the monotonic clock, for many threads."""

    def __init__(self, engine: Engine, observability: Observability, carry_out: Callable[[AnyEffect], None]) -> None:
        """`carry_out` performs one effect; it is called without the lock."""
        self.engine = engine
        self.lock = threading.Lock()
        """Guards the engine and its metrics."""
        self._observability = observability
        self._carry_out = carry_out
        self._alarm = Alarm(self._advance)

    def close(self) -> None:
        """Time does not go on by itself any more."""
        self._alarm.close()

    def handle(self, event: AnyEvent) -> list[AnyEffect]:
        """With the lock held: let the engine take in what happened. The effects are to be performed without it."""
        effects = self.engine.handle(event)
        self._observability.handled(event, effects, time.monotonic_ns() - event.now_ns)
        self._alarm.set(self.engine.next_wake_ns)
        return effects

    def perform(self, effects: Iterable[AnyEffect]) -> None:
        """Carry them out, without the lock."""
        for effect in effects:
            try:
                self._carry_out(effect)
            except Exception:  # the other effects are those of other requests
                log.exception("%s failed", type(effect).__name__)

    def _advance(self) -> None:
        with self.lock:
            effects = self.handle(ClockAdvanced(time.monotonic_ns()))
        self.perform(effects)
