"""Replay of an event log: the same events must give the same commands from a new engine and policy (invariant 7)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidegate.api import AnyCommand, Policy
from tidegate.engine import AnyEffect, AnyStimulus, Engine, Policies
from tidegate.observation import LogEntry, LogHeader, Observer, ObserverOptions, TimelineRecorder


@dataclass(frozen=True)
class ReplayDifference:
    """The first event at which the replay differs from the log."""

    number: int
    """Number of the event, from 1."""
    event: AnyStimulus
    recorded: Sequence[AnyCommand]
    replayed: Sequence[AnyCommand]


@dataclass(frozen=True)
class ReplayResult:
    """Result of a replay: the first difference, if any."""

    events: int
    """Number of replayed events: all, or those up to the difference."""
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
    """Feed an event log to a new engine, up to the first difference; return the result.

    `policy`: created as the header describes. `observers`: of the engine. `timelines`: records timelines. `policies`:
    creates the policies of PolicyChanged events.
    """
    last = _LastCommands()
    settings = header.settings
    engine = Engine(
        policy,
        name=header.policy,
        learn=settings.learn,
        max_tries=settings.max_tries,
        first_lead_ns=settings.first_lead_ns,
        priority_floors=settings.priority_floors,
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
