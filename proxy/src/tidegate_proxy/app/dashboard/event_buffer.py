"""Buffer of the latest stimuli of an engine, from which request timelines are built."""

from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from tidegate.api import AnyCommand, AnyEvent, RequestArrived, RequestCancelled, TimerFired
from tidegate.observation import AnyEffect, AnyStimulus, ClockAdvanced, LogEntry, ObserverOptions, PolicyTraceObserver

_TELLING: Final = frozenset({RequestArrived, RequestCancelled, TimerFired})
"""Events that a timeline needs even if the policy returned no command."""
MAX_TOLD: Final = 10_000
"""Maximum number of policy notifications kept per stimulus, the latest; a new policy is notified of the whole queue."""


class BufferedEvent(msgspec.Struct, frozen=True, gc=False):
    """Stimulus with the policy's commands and the effects.

    Neither it nor its contents are tracked by the garbage collector, which untracks tuples of untracked objects, but
    not lists: it would otherwise traverse tens of thousands of these again and again.
    """

    event: AnyStimulus
    effects: tuple[AnyEffect, ...] = ()
    policy_events: tuple[tuple[AnyEvent, tuple[AnyCommand, ...]], ...] = ()
    """Events that the policy got because of it, with its commands."""

    @property
    def commands(self) -> list[AnyCommand]:
        """All commands of the policy because of it."""
        return [command for _, answer in self.policy_events for command in answer]

    @property
    def answers(self) -> int:
        """Number of notifications to which the policy answered with commands."""
        return sum(1 for _, answer in self.policy_events if answer)


class EventBuffer(PolicyTraceObserver):
    """Buffer of the latest stimuli, bounded by number and by age.

    It keeps objects that the engine creates anyway, and allocates almost nothing: this is on the hot path.
    """

    def __init__(self, *, most: int, longest_ns: int) -> None:
        """Create a buffer of at most `most` entries; `trim` drops those older than `longest_ns`."""
        super().__init__(ObserverOptions())
        self.latest: deque[BufferedEvent] = deque(maxlen=most)
        """Entries in the order of time."""
        self.count = 0
        """Number of entries so far."""
        self.answers = 0
        """Number of notifications so far to which the policy answered with commands."""
        self._longest_ns = longest_ns
        self._policy_events: deque[tuple[AnyEvent, tuple[AnyCommand, ...]]] = deque(maxlen=MAX_TOLD)

    def on_policy_event(self, event: AnyEvent, commands: Sequence[AnyCommand]) -> None:
        """Record a notification of the policy."""
        if commands:
            self._policy_events.append((event, tuple(commands)))
            self.answers += 1
        elif type(event) in _TELLING:
            self._policy_events.append((event, ()))

    def handled(self, event: AnyStimulus, commands: Sequence[AnyCommand], effects: Sequence[AnyEffect]) -> None:
        """Record a stimulus that the engine handled."""
        policy_events = self._policy_events
        if policy_events or effects or type(event) is not ClockAdvanced:  # else nothing came of it
            self.latest.append(BufferedEvent(event, tuple(effects), tuple(policy_events)))
            self.count += 1
            policy_events.clear()

    def trim(self, now_ns: int) -> None:
        """Drop entries that are too old."""
        latest, oldest_ns = self.latest, now_ns - self._longest_ns
        while latest and latest[0].event.now_ns < oldest_ns:
            latest.popleft()


def moment_of(entry: LogEntry) -> BufferedEvent:
    """Return the buffered event of an entry of an event log, which lacks most events that the policy got."""
    event = entry.event
    commands = tuple(entry.commands)
    policy_events = ((event, commands),) if commands else ()
    return BufferedEvent(event, tuple(entry.effects), policy_events)  # type: ignore[arg-type]  # or of what follows from them
