"""The event log: one JSON line for the setup, then one for every stimulus with the commands it was answered with.

It is what invariant 7 (parity) is shown with: fed back through an engine, the events give the same commands.
"""

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import msgspec

from tidegate.api import AnyCommand, AnyEvent, EngineSettings, Setup

LOG_VERSION = 2


class LogHeader(msgspec.Struct, frozen=True):
    """The first line of a log: what the engine was made of."""

    version: int
    policy: str
    options: dict[str, Any]
    setup: Setup
    settings: EngineSettings


class _Version(msgspec.Struct, frozen=True):
    """What every version's header tells."""

    version: int


class LogEntry(msgspec.Struct, frozen=True):
    """Every further line."""

    event: AnyEvent
    commands: list[AnyCommand]


class Recorder:
    """An observer that writes the event log to a binary file (which it does not close)."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._encoder = msgspec.json.Encoder()

    def engine_started(self, policy: str, options: dict[str, Any], setup: Setup, settings: EngineSettings) -> None:
        """Write the header."""
        self._write(LogHeader(LOG_VERSION, policy, options, setup, settings))

    def event_handled(self, event: AnyEvent, commands: list[AnyCommand]) -> None:
        """Write one line."""
        self._write(LogEntry(event, commands))

    def close(self) -> None:
        """See that all of it is in the file."""
        self._out.flush()

    def _write(self, line: LogHeader | LogEntry) -> None:
        self._out.write(self._encoder.encode(line) + b"\n")


def read_log(lines: Iterable[bytes]) -> tuple[LogHeader, Iterator[LogEntry]]:
    """Decode a log. Raises ValueError (with the line) for what is not one, or is of another version."""
    remaining = iter(lines)
    first = next(remaining, b"")
    try:
        version = msgspec.json.decode(first, type=_Version).version
        if version != LOG_VERSION:
            raise ValueError(f"the log has version {version}, this Tidegate reads {LOG_VERSION}: record it anew")
        header = msgspec.json.decode(first, type=LogHeader)
    except msgspec.DecodeError as error:
        raise ValueError(f"line 1 is no header of an event log: {error}") from error
    return header, _entries(remaining)


def _entries(lines: Iterator[bytes]) -> Iterator[LogEntry]:
    decoder = msgspec.json.Decoder(LogEntry)
    for number, line in enumerate(lines, start=2):
        try:
            yield decoder.decode(line)
        except msgspec.DecodeError as error:
            raise ValueError(f"line {number} is no entry of an event log: {error}") from error
