"""Random access to an event log by bisection, because entries are in the order of time."""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from tidegate.api import NEVER_NS
from tidegate.observation import LogEntry, LogHeader, read_log

_ARRIVAL: Final = b'{"event":{"event":"RequestArrived"'


class _At(msgspec.Struct):
    now_ns: int


class _When(msgspec.Struct):
    """All that has to be read of an entry to know when it was."""

    event: _At


class _Id(msgspec.Struct):
    id: int


class _Arrival(msgspec.Struct):
    request: _Id


class _WhichRequest(msgspec.Struct):
    event: _Arrival


class LogFile:
    """Event log in a file, mapped into memory: only the parts in use are read."""

    def __init__(self, path: Path) -> None:
        """Create the log file. Raises OSError, or ValueError if the file is no event log or contains no event."""
        with path.open("rb") as file:
            self.header: LogHeader = read_log(iter([file.readline()]))[0]
            self.begin = file.tell()
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.end = self._bytes.rfind(b"\n") + 1
        """End of the last complete line: the last one may be truncated if a Tidegate was killed."""
        if self.end <= self.begin:
            raise ValueError("nothing happened while it was recorded")
        self._when = msgspec.json.Decoder(_When)
        self._entry = msgspec.json.Decoder(LogEntry)
        self._which = msgspec.json.Decoder(_WhichRequest)
        self.first_ns = self._at_ns(self.begin)
        self.last_ns = self._at_ns(self._line_of(self.end - 1, self.begin))

    def close(self) -> None:
        """Close the file."""
        self._bytes.close()

    def offset_at(self, at_ns: int) -> int:
        """Return the offset of the first line at or after an instant, or the end of the file."""
        low, high = self.begin, self.end
        while low < high:
            middle = self._line_of((low + high) // 2, low)
            if self._at_ns(middle) < at_ns:
                low = self._next(middle)
            else:
                high = middle
        return low

    def offset_of(self, request_id: int) -> int | None:
        """Return the offset of a request's arrival, or None; ids must ascend in the order of arrival."""
        low, high = self.begin, self.end
        while low < high:
            middle = self._line_of((low + high) // 2, low)
            found = self._bytes.find(_ARRIVAL, middle, high)
            if found < 0:
                high = middle
                continue
            known = self._which.decode(self._line(found)).event.request.id
            if known == request_id:
                return found
            if known < request_id:
                low = self._next(found)
            else:
                high = middle  # nothing arrived in between
        return None

    def entries(self, first: int, until_ns: int = NEVER_NS) -> Iterator[tuple[LogEntry, int]]:
        """Yield the entries from an offset up to an instant, each with the offset of the next line.

        Raises ValueError.
        """
        while first < self.end:
            after = self._next(first)
            try:
                entry = self._entry.decode(self._bytes[first : after - 1])
            except msgspec.DecodeError as error:
                raise ValueError(f"byte {first} of the log begins no entry: {error}") from error
            if entry.event.now_ns > until_ns:
                return
            yield entry, after
            first = after

    def later(self, offset: int) -> int:
        """Return the offset of the first line that begins at or after an offset."""
        if offset <= self.begin:
            return self.begin
        return self._bytes.find(b"\n", offset - 1) + 1 or self.end

    def _line_of(self, offset: int, least: int) -> int:
        """Where the line begins that an offset is in, which begins at `least` or later."""
        return self._bytes.rfind(b"\n", least, offset) + 1 or least

    def _next(self, offset: int) -> int:
        return self._bytes.find(b"\n", offset) + 1 or self.end

    def _line(self, offset: int) -> bytes:
        return self._bytes[offset : self._next(offset) - 1]

    def _at_ns(self, offset: int) -> int:
        try:
            return self._when.decode(self._line(offset)).event.now_ns
        except msgspec.DecodeError as error:
            raise ValueError(f"byte {offset} of the log begins no entry: {error}") from error
