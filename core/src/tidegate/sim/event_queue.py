"""Future events of a simulation in a total order: by time, then fed events before scheduled ones."""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from tidegate.api import NEVER_NS
from tidegate.engine import AnyStimulus, ClockAdvanced


class EventQueue:
    """Priority queue of future events."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, AnyStimulus]] = []
        self._scheduled = 0
        self._called_off: set[int] = set()
        """Numbers of events that lie in the heap still and won't happen."""
        self._fed: Iterator[AnyStimulus] = iter(())
        self._coming: AnyStimulus | None = None
        """The first of what is fed."""

    @property
    def next_ns(self) -> int:
        """Time of the next event in ns; NEVER_NS if there is none. A cancelled event counts until it is popped."""
        coming, heap = self._coming, self._heap
        coming_ns = NEVER_NS if coming is None else coming.now_ns
        return heap[0][0] if heap and heap[0][0] < coming_ns else coming_ns

    def schedule(self, event: AnyStimulus) -> int:
        """Schedule an event at its `now_ns`; return a number that cancels it."""
        self._scheduled += 1
        heappush(self._heap, (event.now_ns, self._scheduled, event))
        return self._scheduled

    def call_off(self, number: int) -> None:
        """Cancel a scheduled event by its number."""
        self._called_off.add(number)

    def feed(self, events: Iterable[AnyStimulus]) -> None:
        """Feed events in order of time; they are taken one by one from the iterator."""
        self._fed = iter(events)
        self._coming = next(self._fed, None)

    def pop(self) -> AnyStimulus | None:
        """Remove and return the next event; None: it was cancelled, or there is none."""
        coming, heap = self._coming, self._heap
        if heap and (coming is None or heap[0][0] < coming.now_ns):
            _, number, event = heappop(heap)
            if number not in self._called_off:
                return event
            self._called_off.remove(number)
            return None
        if coming is not None:
            self._coming = next(self._fed, None)
        return coming


class ListenerWakeUp:
    """The one pending wake-up of a listener in the event queue, at the next instant that the listener waits for."""

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue
        self._at_ns = NEVER_NS

    def passed(self, now_ns: int) -> None:
        """Forget a wake-up that has come; `now_ns`: time of the current event."""
        if now_ns >= self._at_ns:
            self._at_ns = NEVER_NS

    def schedule(self, wake_ns: int) -> None:
        """Wake the simulation at an instant, unless it is woken earlier; NEVER_NS: not at all."""
        if wake_ns < self._at_ns:
            self._at_ns = wake_ns
            self._queue.schedule(ClockAdvanced(wake_ns))
