"""The event log: one JSON line for the setup, then one for every stimulus with its commands and effects.

Replayed through an engine, its events give the same commands (invariant 7). A reducer derives the outcome of every
request from it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import msgspec

from tidegate.api import AnyCommand, Setup
from tidegate.observation.effects import AnyEffect
from tidegate.observation.observer import EngineSettings, Observer, ObserverOptions
from tidegate.observation.stimuli import AnyStimulus

LOG_VERSION = 3


class LogHeader(msgspec.Struct, frozen=True):
    """First line of an event log: policy, options and setup of the engine."""

    version: int
    policy: str
    options: dict[str, Any]
    setup: Setup
    settings: EngineSettings


class _Version(msgspec.Struct, frozen=True):
    """Fields that the headers of all versions have."""

    version: int


class LogEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Further line of an event log; empty fields are omitted."""

    event: AnyStimulus
    commands: Sequence[AnyCommand] = []
    effects: Sequence[AnyEffect] = []


class Recorder(Observer):
    """Observer that writes the event log to a binary file, which it does not close."""

    def __init__(self, out: BinaryIO) -> None:
        super().__init__(ObserverOptions())
        self._out = out
        self._encoder = msgspec.json.Encoder()

    def started(self, policy: str, options: dict[str, Any], setup: Setup, settings: EngineSettings) -> None:
        """Write the header line: policy name, options, setup and engine settings."""
        self._write(LogHeader(LOG_VERSION, policy, options, setup, settings))
        self._out.flush()

    def handled(self, event: AnyStimulus, commands: Sequence[AnyCommand], effects: Sequence[AnyEffect]) -> None:
        """Write one line for a stimulus."""
        self._write(LogEntry(event, commands, effects))

    def close(self) -> None:
        """Flush the log to the file."""
        self._out.flush()

    def _write(self, line: LogHeader | LogEntry) -> None:
        self._out.write(self._encoder.encode(line) + b"\n")


def read_log(lines: Iterable[bytes]) -> tuple[LogHeader, Iterator[LogEntry]]:
    """Decode an event log. Raises ValueError, with the line number, if it is invalid or of another version."""
    remaining = iter(lines)
    first = next(remaining, b"")
    try:
        version = msgspec.json.decode(first, type=_Version).version
        if version != LOG_VERSION:
            raise ValueError(f"the log has version {version}, this Tidegate reads {LOG_VERSION}: record it again")
        header = msgspec.json.decode(first, type=LogHeader)
    except msgspec.DecodeError as error:
        why = f"{error}; `tidegate serve --event-log` writes such a file"
        raise ValueError(f"line 1 is no header of an event log: {why}") from error
    return header, _entries(remaining)


def _entries(lines: Iterator[bytes]) -> Iterator[LogEntry]:
    decoder = msgspec.json.Decoder(LogEntry)
    for number, line in enumerate(lines, start=2):
        try:
            yield decoder.decode(line)
        except msgspec.DecodeError as error:
            raise ValueError(f"line {number} is no entry of an event log: {error}") from error
