"""A recorded run again: the same events must give the same commands, from a fresh engine and policy (invariant 7)."""

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.api import AnyCommand, AnyEvent, EngineSettings, Policy, Setup
from tidegate.engine import Engine, LogEntry, LogHeader


@dataclass(frozen=True)
class Difference:
    """The first event at which the replay did something else than the recording."""

    number: int
    """Of the event, counted from 1."""
    event: AnyEvent
    recorded: list[AnyCommand]
    replayed: list[AnyCommand]


@dataclass(frozen=True)
class Replay:
    """What a replay found."""

    events: int
    """How many were replayed: all, or those up to the difference."""
    commands: int
    difference: Difference | None


class _LastCommands:
    """An observer that keeps the commands of the last event."""

    def __init__(self) -> None:
        self.commands: list[AnyCommand] = []

    def engine_started(self, policy: str, options: object, setup: Setup, settings: EngineSettings) -> None:
        pass

    def event_handled(self, event: AnyEvent, commands: list[AnyCommand]) -> None:
        self.commands = commands

    def close(self) -> None:
        pass


def replay(header: LogHeader, entries: Iterable[LogEntry], policy: Policy) -> Replay:
    """Feed a log to an engine over `policy`, which must be made as the header says; stops at the first difference."""
    last = _LastCommands()
    settings = header.settings
    engine = Engine(
        policy,
        name=header.policy,
        learn=settings.learn,
        max_tries=settings.max_tries,
        first_lead_ns=settings.first_lead_ns,
        observers=[last],
    )
    events = commands = 0
    for entry in entries:
        events += 1
        engine.handle(entry.event)
        if last.commands != entry.commands:
            return Replay(events, commands, Difference(events, entry.event, entry.commands, last.commands))
        commands += len(last.commands)
    return Replay(events, commands, None)
