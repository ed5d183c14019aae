"""Pending timers: one for each key, fired in the order of (time, order of setting)."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from tidegate.api import NEVER_NS, TimerKey

MAX_DEAD_TIMERS = 64
"""Number of cancelled entries that a heap may always contain."""


class Timers:
    """Timers in a heap; moved and cancelled entries stay until they surface or are the majority."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, TimerKey]] = []
        self._live: dict[TimerKey, int] = {}
        self._order = 0
        self._most = MAX_DEAD_TIMERS
        """The entries from which on it is worth looking for dead ones."""
        self.earliest_ns = NEVER_NS
        """Nothing is due before, and perhaps nothing then: so that most events need not ask."""

    def __len__(self) -> int:
        return len(self._live)

    def set(self, key: TimerKey, at_ns: int) -> None:
        """Set a timer to `at_ns`, or move it."""
        if len(self._heap) >= self._most:
            self._sweep()
        self._order += 1
        self._live[key] = self._order
        heappush(self._heap, (at_ns, self._order, key))
        self.earliest_ns = min(self.earliest_ns, at_ns)

    def _sweep(self) -> None:
        """Forget what is dead: those who set timers for far instants, and move or cancel them, are clients at last."""
        self._heap = [entry for entry in self._heap if self._live.get(entry[2]) == entry[1]]
        heapify(self._heap)
        self._most = 2 * len(self._heap) + MAX_DEAD_TIMERS

    def cancel(self, key: TimerKey) -> None:
        """Cancel a timer; without effect if it is not set."""
        self._live.pop(key, None)

    def clear(self) -> None:
        """Cancel all timers."""
        self._live.clear()
        self._heap.clear()
        self.earliest_ns = NEVER_NS

    @property
    def next_ns(self) -> int:
        """Time of the next timer, in ns; NEVER_NS if none is set."""
        heap, live = self._heap, self._live
        while heap:
            at_ns, order, key = heap[0]
            if live.get(key) == order:
                self.earliest_ns = at_ns
                return at_ns
            heappop(heap)
        self.earliest_ns = NEVER_NS
        return NEVER_NS

    def pop_next(self, now_ns: int) -> TimerKey | None:
        """Remove the next timer if it is due; return its key, or None."""
        if self.next_ns > now_ns:
            return None
        _, _, key = heappop(self._heap)
        del self._live[key]
        return key

    def pop_due(self, now_ns: int) -> Iterator[tuple[int, TimerKey]]:
        """Remove the due timers one by one; yield the time in ns and the key of each.

        A timer that is set, moved or cancelled meanwhile is left out.
        """
        due = []
        while self._heap and self._heap[0][0] <= now_ns:
            due.append(heappop(self._heap))
        self.earliest_ns = self._heap[0][0] if self._heap else NEVER_NS
        for at_ns, order, key in due:
            if self._live.get(key) == order:
                del self._live[key]
                yield at_ns, key
