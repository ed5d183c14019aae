"""A recorded run again: the same events must give the same commands, from a fresh engine and policy (invariant 7)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidegate.api import AnyCommand, Policy
from tidegate.engine import AnyEffect, AnyStimulus, Engine, Policies
from tidegate.observation import LogEntry, LogHeader, Observer, ObserverOptions, TimelineRecorder


@dataclass(frozen=True)
class ReplayDifference:
    """The first event at which the replay differs from the log."""

    number: int
    """The number of the event, counted from 1."""
    event: AnyStimulus
    recorded: Sequence[AnyCommand]
    replayed: Sequence[AnyCommand]


@dataclass(frozen=True)
class ReplayResult:
    """Result of a replay: the first difference, if any."""

    events: int
    """How many were replayed: all, or those up to the difference."""
    commands: int
    difference: ReplayDifference | None


class _LastCommands(Observer):
    """Keeps the commands of the last event."""

    def __init__(self) -> None:
        super().__init__(ObserverOptions())
        self.commands: Sequence[AnyCommand] = ()

    def handled(self, event: AnyStimulus, commands: Sequence[AnyCommand], effects: Sequence[AnyEffect]) -> None:
        self.commands = commands


def replay(
    header: LogHeader,
    entries: Iterable[LogEntry],
    policy: Policy,
    *,
    observers: Sequence[Observer] = (),
    timelines: TimelineRecorder | None = None,
    policies: Policies | None = None,
) -> ReplayResult:
    """Feed a log to an engine over `policy`, which must be made as the header says; stops at the first difference.

    `observers` watch it, and `timelines` are kept of its requests. `policies`: makes those that it was changed to.
    """
    last = _LastCommands()
    settings = header.settings
    engine = Engine(
        policy,
        name=header.policy,
        learn=settings.learn,
        max_tries=settings.max_tries,
        first_lead_ns=settings.first_lead_ns,
        observers=[last, *observers],
        timelines=timelines,
        policies=policies,
    )
    events = commands = 0
    for entry in entries:
        events += 1
        engine.handle(entry.event)
        if last.commands != entry.commands:
            return ReplayResult(events, commands, ReplayDifference(events, entry.event, entry.commands, last.commands))
        commands += len(last.commands)
    return ReplayResult(events, commands, None)
