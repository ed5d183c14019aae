"""The latest of what an engine took in, one by one: what the timeline of a request is told from."""

from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from tidegate.api import AnyCommand, AnyEvent, RequestArrived, RequestCancelled, TimerFired
from tidegate.observation import AnyEffect, AnyStimulus, ClockAdvanced, LogEntry, ObserverOptions, PolicyTraceObserver

_TELLING: Final = frozenset({RequestArrived, RequestCancelled, TimerFired})
"""Events that a timeline needs even if the policy returned no command."""
MAX_TOLD: Final = 10_000
"""So many things that a policy was told because of one stimulus are kept, the latest: a policy that takes over from
another is told of all that waits, however much that is."""


class BufferedEvent(msgspec.Struct, frozen=True, gc=False):
    """A stimulus, what the policy made of it and what followed.

    Neither it nor what it holds is known to the garbage collector, which forgets tuples of what it does not know, but
    not lists: tens of thousands of these would have it walk through all of them time and again.
    """

    event: AnyStimulus
    effects: tuple[AnyEffect, ...] = ()
    told: tuple[tuple[AnyEvent, tuple[AnyCommand, ...]], ...] = ()
    """Events that the policy got because of it, with its commands."""

    @property
    def commands(self) -> list[AnyCommand]:
        """All that the policy wanted because of it."""
        return [command for _, answer in self.told for command in answer]

    @property
    def answers(self) -> int:
        """How often the policy wanted something because of it."""
        return sum(1 for _, answer in self.told if answer)


class EventBuffer(PolicyTraceObserver):
    """Keeps the latest of them, bounded by number and by age.

    It holds what the engine made anyhow, and makes next to nothing of its own: this is on the hot path.
    """

    def __init__(self, *, most: int, longest_ns: int) -> None:
        """`most`: how many are kept; `longest_ns`: how old they may be, which `trim` sees to."""
        super().__init__(ObserverOptions())
        self.latest: deque[BufferedEvent] = deque(maxlen=most)
        """In the order of time."""
        self.count = 0
        """How many there have been."""
        self.answers = 0
        """How often the policy has wanted something."""
        self._longest_ns = longest_ns
        self._told: deque[tuple[AnyEvent, tuple[AnyCommand, ...]]] = deque(maxlen=MAX_TOLD)

    def told(self, event: AnyEvent, commands: Sequence[AnyCommand]) -> None:
        """The policy was told of something."""
        if commands:
            self._told.append((event, tuple(commands)))
            self.answers += 1
        elif type(event) in _TELLING:
            self._told.append((event, ()))

    def handled(self, event: AnyStimulus, commands: Sequence[AnyCommand], effects: Sequence[AnyEffect]) -> None:
        """The engine took in a stimulus."""
        told = self._told
        if told or effects or type(event) is not ClockAdvanced:  # else nothing came of it
            self.latest.append(BufferedEvent(event, tuple(effects), tuple(told)))
            self.count += 1
            told.clear()

    def trim(self, now_ns: int) -> None:
        """Forget what is too old."""
        latest, oldest_ns = self.latest, now_ns - self._longest_ns
        while latest and latest[0].event.now_ns < oldest_ns:
            latest.popleft()


def moment_of(entry: LogEntry) -> BufferedEvent:
    """Return the buffered event of an entry of an event log, which lacks most events that the policy got."""
    event = entry.event
    commands = tuple(entry.commands)
    told = ((event, commands),) if commands else ()
    return BufferedEvent(event, tuple(entry.effects), told)  # type: ignore[arg-type]  # or of what follows from them
