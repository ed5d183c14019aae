"""Outcomes of a recorded run from beginning to end, in intervals."""

from collections.abc import Sequence
from typing import Final

import msgspec

from tidegate.api import NS_PER_MS, Batch, Request
from tidegate.observation import LogEntry, OutcomeListener, Reducer

MAX_INTERVALS: Final = 240
"""Largest number of intervals; none is shorter than a second."""
MIN_NS: Final = 1_000_000_000


class OverviewInterval(msgspec.Struct):
    """Number of requests that ended in an interval, by outcome."""

    from_ms: float
    length_ms: float
    on_time: int = 0
    late: int = 0
    dropped: int = 0
    failed: int = 0


class Overview(msgspec.Struct, frozen=True):
    """Outcomes over the part of the run that was read."""

    pieces: list[OverviewInterval]
    read_ms: float
    done: bool
    error: str = ""
    """Error that stopped the reader; "" if none."""


class OverviewReader(OutcomeListener):
    """Reader that counts outcomes by interval. One thread feeds it; another may call `overview`."""

    def __init__(self, first_ns: int, last_ns: int) -> None:
        """Create an empty overview. `first_ns`, `last_ns`: instants of the first and the last entry of the log."""
        self._first_ns = first_ns
        self._length_ns = max(MIN_NS, (last_ns - first_ns) // MAX_INTERVALS + 1)
        count = (last_ns - first_ns) // self._length_ns + 1
        length_ms = self._length_ns / NS_PER_MS
        self._pieces = [OverviewInterval(number * length_ms, length_ms) for number in range(count)]
        self._read_ns = first_ns
        self._done = False
        self._error = ""
        self._reducer = Reducer(self)

    def overview(self) -> Overview:
        """Return the overview of the part that was read."""
        pieces = [piece for piece in self._pieces if piece.on_time or piece.late or piece.dropped or piece.failed]
        return Overview(pieces, (self._read_ns - self._first_ns) / NS_PER_MS, self._done, self._error)

    def take(self, entry: LogEntry) -> None:
        """Add the next entry."""
        self._read_ns = entry.event.now_ns
        self._reducer.handled(entry.event, entry.effects)

    def end(self, error: str = "") -> None:
        """Mark the end of the log, or the error that stopped the reader."""
        self._done, self._error = True, error

    def _piece(self, at_ns: int) -> OverviewInterval:
        number = (at_ns - self._first_ns) // self._length_ns
        return self._pieces[min(max(0, number), len(self._pieces) - 1)]

    def answered(self, batch: Batch, requests: Sequence[Request], ended_ns: int) -> None:
        """Count the requests of an answered batch."""
        late = sum(ended_ns > request.deadline_ns for request in requests)
        piece = self._piece(ended_ns)
        piece.late += late
        piece.on_time += len(requests) - late

    def dropped(self, now_ns: int, request: Request, reason: str) -> None:
        """Count a dropped request."""
        self._piece(now_ns).dropped += 1

    def failed(self, now_ns: int, request: Request, reason: str) -> None:
        """Count a failed request."""
        self._piece(now_ns).failed += 1
