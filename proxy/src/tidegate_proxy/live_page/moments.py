"""The latest of what an engine took in, one by one: what the story of a request is told from."""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from tidegate.api import AnyCommand, AnyEvent
from tidegate.observation import AnyEffect, AnyStimulus, ClockAdvanced, LogEntry, ObserverOptions, Witness

MOST_TOLD: Final = 10_000
"""So many things that a policy was told because of one stimulus are kept; no engine tells more of one."""


class Moment(NamedTuple):
    """A stimulus, what the policy made of it and what followed."""

    event: AnyStimulus
    commands: Sequence[AnyCommand] = ()
    effects: Sequence[AnyEffect] = ()
    told: Sequence[tuple[AnyEvent, Sequence[AnyCommand]]] = ()
    """What the policy was told because of it, with its answers."""


class Moments(Witness):
    """Keeps the latest of them, bounded by number and by age.

    It holds what the engine made anyhow, and makes next to nothing of its own: this is on the hot path.
    """

    def __init__(self, *, most: int, longest_ns: int) -> None:
        """`most`: how many are kept; `longest_ns`: how old they may be, which `trim` sees to."""
        super().__init__(ObserverOptions())
        self.latest: deque[Moment] = deque(maxlen=most)
        """In the order of time."""
        self.count = 0
        """How many there have been."""
        self._longest_ns = longest_ns
        self._told: list[tuple[AnyEvent, Sequence[AnyCommand]]] = []

    def told(self, event: AnyEvent, commands: Sequence[AnyCommand]) -> None:
        """The policy was told of something."""
        if len(self._told) < MOST_TOLD:
            self._told.append((event, commands))

    def handled(self, event: AnyStimulus, commands: Sequence[AnyCommand], effects: Sequence[AnyEffect]) -> None:
        """The engine took in a stimulus."""
        told = self._told
        if told:
            self._told = []
        elif not effects and type(event) is ClockAdvanced:
            return  # nothing came of it
        # The lists go on in other hands: what is kept is a copy, and of those that are empty nothing.
        self.latest.append(Moment(event, tuple(commands), tuple(effects), told))
        self.count += 1

    def trim(self, now_ns: int) -> None:
        """Forget what is too old."""
        latest, oldest_ns = self.latest, now_ns - self._longest_ns
        while latest and latest[0].event.now_ns < oldest_ns:
            latest.popleft()


def moment_of(entry: LogEntry) -> Moment:
    """What a recording tells. It does not say what the policy was told, but it was told of most stimuli themselves."""
    event = entry.event
    told = ((event, entry.commands),) if entry.commands else ()
    return Moment(event, entry.commands, entry.effects, told)  # type: ignore[arg-type]  # or of what follows from them
