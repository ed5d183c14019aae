"""Engine on the monotonic clock: handles one event after the other, executes effects, wakes it on time.

Event loops wake in whole milliseconds, batches start in tenths.
"""

import asyncio
import ctypes
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidegate.api import WorkerJoined
from tidegate.engine import AnyEffect, AnyStimulus, ClockAdvanced, Engine, PolicyChanged, PolicyOverran, TopologyChanged
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.observability.metrics import Metrics

_libc: Final = ctypes.CDLL(None, use_errno=True)
_CLOCK_MONOTONIC: Final = 1
_ABSOLUTE: Final = 1
_Spec: Final = ctypes.c_long * 4
"""struct itimerspec: interval and instant, each in seconds and nanoseconds."""
_SECOND_NS: Final = 1_000_000_000


class WakeTimer:
    """Timer for one instant, which can be reset any number of times. It fires in the loop it was created in."""

    def __init__(self, ring: Callable[[], None]) -> None:
        """Create the wake timer. Raises OSError if the kernel has no timer left."""
        self._ring = ring
        self.at_ns: int | None = None
        """Instant at which it fires; None: never."""
        self._armed_ns: int | None = None
        """When the kernel wakes the loop; None: not at all."""
        self._loop = asyncio.get_running_loop()
        self._timer = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), f"no timer: {os.strerror(ctypes.get_errno())}")
        self._loop.add_reader(self._timer, self._woken)

    def set(self, at_ns: int | None) -> None:
        """Set the instant of the monotonic clock at which it fires; None: never."""
        self.at_ns = at_ns
        # A timer that wakes the loop too early is left alone: it looks at the clock and is armed again.
        if at_ns is not None and (self._armed_ns is None or at_ns < self._armed_ns):
            self._arm(at_ns)

    def close(self) -> None:
        """Stop the timer for good."""
        timer, self._timer = self._timer, -1
        self.at_ns = None
        if timer >= 0:
            self._loop.remove_reader(timer)
            os.close(timer)

    def _arm(self, at_ns: int) -> None:
        if self._timer >= 0:
            self._armed_ns = at_ns
            seconds, nanoseconds = divmod(max(1, at_ns), _SECOND_NS)
            spec = _Spec(0, 0, seconds, nanoseconds)
            _libc.timerfd_settime(self._timer, _ABSOLUTE, ctypes.byref(spec), None)

    def _woken(self) -> None:
        try:
            os.read(self._timer, 8)
        except BlockingIOError:
            return  # it was armed again meanwhile
        self._armed_ns = None
        if self.at_ns is None:
            return
        if self.at_ns > time.monotonic_ns():
            self._arm(self.at_ns)
            return
        self.at_ns = None
        try:
            self._ring()
        except Exception as error:  # there is a next time
            faults.report("the alarm", error)


ASK_AGAIN_NS = 10_000_000
"""Interval in ns after which an engine that failed to name its next timer is queried again."""


DECISION_BUDGET_NS = 20_000_000
"""Time limit in ns of the decision on one event."""
MAX_OVERRUN_NS = 1_000_000_000
"""Limit in ns of the total time in decisions beyond the budget ..."""
OVERRUN_WINDOW_NS = 10_000_000_000
"""... within a window of about this many ns."""
WATCHED_EVENTS = 256
"""Number of events after a slow decision for which CPU time is measured, which takes a system call."""


class DecisionBudget:
    """Detector of a policy whose decisions take too long, while everything else waits.

    A decision also seems long if the machine gave the CPU to other processes. So the CPU time of this thread counts,
    measured for a while after a slow decision. The sum decays by a tenth of the elapsed time.
    """

    def __init__(self) -> None:
        self._watched = 0
        """Number of events still to be measured."""
        self._overrun_ns = 0
        self._counted_ns = 0
        """When that was counted."""

    def began_ns(self) -> int | None:
        """Return the CPU time of the thread as a decision begins; None where it is not measured."""
        return time.thread_time_ns() if self._watched else None

    def ended(self, now_ns: int, seemed_ns: int, began_ns: int | None) -> PolicyOverran | None:
        """Count a decision of this apparent duration; return the event for the engine if the policy is too slow."""
        took_ns = seemed_ns
        if began_ns is not None:
            self._watched -= 1
            took_ns = time.thread_time_ns() - began_ns
        if took_ns <= DECISION_BUDGET_NS:
            return None
        self._watched = WATCHED_EVENTS
        if began_ns is None:
            return None
        leaked_ns = (now_ns - self._counted_ns) * MAX_OVERRUN_NS // OVERRUN_WINDOW_NS
        self._overrun_ns = max(0, self._overrun_ns - leaked_ns) + took_ns
        self._counted_ns = now_ns
        if self._overrun_ns < MAX_OVERRUN_NS:
            return None
        overran = PolicyOverran(now_ns, self._overrun_ns, OVERRUN_WINDOW_NS, DECISION_BUDGET_NS)
        self._overrun_ns = 0
        return overran


@dataclass(eq=False, repr=False)
class LiveEngine:
    """Engine that runs in the event loop it was created in."""

    engine: Engine
    _metrics: Metrics
    _carry_out: Callable[[AnyEffect], None]
    """Executes one effect; if it raises, `give_up` ends what the effect concerned."""
    _give_up: Callable[[AnyEffect], None]

    def __post_init__(self) -> None:
        self._effects: deque[AnyEffect] = deque()
        """The effects that are to be carried out, in their order."""
        self._performing = False
        self._put_off: Callable[[], None] | None = None
        self._alarm = WakeTimer(self._advance)
        self._budget = DecisionBudget()

    def seen_ns(self) -> int:
        """Return the engine's last sign of life: now, unless a timer is overdue."""
        now_ns = time.monotonic_ns()
        return min(now_ns, self._alarm.at_ns or now_ns)

    def put_off(self, telling: Callable[[], None]) -> None:
        """Defer `telling`, which reports events to the engine, until before the next event.

        The caller has caught up before, and ensures that `catch_up` is called soon.
        """
        self._put_off = telling

    def catch_up(self) -> None:
        """Report deferred events to the engine."""
        telling, self._put_off = self._put_off, None
        if telling is None:
            return
        try:
            telling()
        except Exception as error:  # other events are not affected
            faults.report("notifying the engine", error)

    def _catch_up_in_order(self) -> None:
        """Catch up like `catch_up`, for timers that are due before the event about to be handled."""
        performing, self._performing = self._performing, True
        try:
            self.catch_up()
        finally:
            self._performing = performing

    def close(self) -> None:
        """Stop: timers do not fire any more, and observers close their files."""
        self._alarm.close()
        self._effects += self.engine.close()
        self.perform()

    def take_in(self, event: AnyStimulus) -> None:
        """Let the engine handle a stimulus, and execute the effects. See `handle`."""
        self.handle(event)
        self.perform()

    def handle(self, event: AnyStimulus) -> None:
        """Let the engine handle a stimulus; `perform` executes the effects.

        Raises ValueError for a worker that joins, a layout or a policy that the engine rejects; nothing has changed
        then.
        """
        if self._put_off is not None:
            self._catch_up_in_order()
        began_ns = self._budget.began_ns()
        try:
            effects = self.engine.handle(event)
        except Exception as error:
            if isinstance(event, WorkerJoined | TopologyChanged | PolicyChanged) and isinstance(error, ValueError):
                raise
            faults.report("the engine", error)
            effects = self.engine.rebuild_state(event, error)
        self._effects += effects
        now_ns = time.monotonic_ns()
        overran = self._budget.ended(now_ns, now_ns - event.now_ns, began_ns)
        try:
            self._metrics.handled(event, effects, now_ns - event.now_ns)
        except Exception as error:  # metrics do not disturb scheduling
            faults.report("metrics", error)
        try:
            self._alarm.set(self.engine.next_wake_ns)
        except Exception as error:  # the effects are to be carried out nevertheless
            faults.report("what follows an event", error)
            self._alarm.set(time.monotonic_ns() + ASK_AGAIN_NS)
        if overran is not None:
            self.handle(overran)

    def perform(self) -> None:
        """Execute pending effects, unless this is a nested call: then the outer call does so."""
        if self._performing:
            return
        self._performing = True
        try:
            while self._effects:
                self._perform_one(self._effects.popleft())
        finally:
            self._performing = False

    def _perform_one(self, effect: AnyEffect) -> None:
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
        self.take_in(ClockAdvanced(time.monotonic_ns()))
