"""Pending timers, how much later than requested they fire, and how long responses travel.

Timers fire in the order of (time, order of setting), one for each key. Their lateness is learned, so that policies set
them early enough.
"""

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from tidegate.api import NEVER_NS, TimerKey
from tidegate.observation.timeline_recorder import MAX_RESPONSE_MARGIN_FRACTION

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


WINDOW_WAKE_UPS = 128
"""Number of latest wake-ups that determine the timer latency, and minimum number between two decreases."""
COVERED_FRACTION = 0.99
"""Fraction of wake-ups that are no later than the timer latency."""
UNSEEN_STAGES = 64
"""Number of stages without a wake-up after which the timer latency is halved, since it may be what prevents timers."""
TOO_SHORT_NS, TOO_LONG = 20_000, 0.1
"""Error from which a new value is published: too short by this many ns, or too long by this fraction."""


class TimerLatency:
    """Learner of the timer latency: how much later than requested a wake-up may come.

    The value is a high quantile of the latest wake-ups, and never the longest of them, so a single stall of the host
    changes nothing. It rises with the second wake-up that was later, because a late batch is lost. It also falls
    without wake-ups, because a high value can keep policies from setting timers that would correct it.
    """

    def __init__(self, slack_ns: int) -> None:
        """Create a learner with an initial timer latency in ns, used until wake-ups were observed."""
        self.slack_ns = slack_ns
        self._latest: deque[int] = deque(maxlen=WINDOW_WAKE_UPS)
        self._until_fall = WINDOW_WAKE_UPS
        self._unseen_stages = 0

    def stage_started(self) -> int | None:
        """Record the start of a stage; return the latency if it falls for lack of wake-ups."""
        self._unseen_stages += 1
        if self._unseen_stages < UNSEEN_STAGES or self.slack_ns <= TOO_SHORT_NS:
            return None
        self._unseen_stages = 0
        self.slack_ns //= 2
        return self.slack_ns

    def observe(self, late_ns: int) -> int | None:
        """Add the lateness of one wake-up; return the latency in ns if it has moved enough."""
        self._unseen_stages = 0
        self._latest.append(late_ns)
        self._until_fall -= 1
        if (late_ns <= self.slack_ns and self._until_fall > 0) or len(self._latest) == 1:
            return None
        later = max(1, round((1 - COVERED_FRACTION) * len(self._latest)))
        slack_ns = sorted(self._latest)[-1 - later]
        may_fall = self._until_fall <= 0
        if may_fall:
            self._until_fall = WINDOW_WAKE_UPS
        falls = may_fall and slack_ns < (1 - TOO_LONG) * self.slack_ns
        if not falls and slack_ns <= self.slack_ns + TOO_SHORT_NS:
            return None
        self.slack_ns = slack_ns
        return slack_ns


MEAN_GAIN = 1 / 64
"""Gain of the running mean and mean deviation, as TCP estimates round trips: about the last hundred batches count."""
MARGIN_DEVIATIONS = 2.0
ROUND_TRIP_RATIO = 2.0
"""Ratio of the whole response latency to the part that Tidegate sees."""
AT_FIRST_NS = 1_000_000
"""Initial mean in ns; without it, the first requests would be held until a response is too late."""


class ResponseMargin:
    """Learner of the time that responses take to reach clients after the last stage, kept free before deadlines."""

    def __init__(self) -> None:
        self._mean_ns = float(AT_FIRST_NS)
        self._deviation_ns = AT_FIRST_NS / 2

    def observe(self, lag_ns: int) -> None:
        """Add the time from a batch's last stage to the delivery of its responses."""
        surprise = lag_ns - self._mean_ns
        self._mean_ns += MEAN_GAIN * surprise
        self._deviation_ns += MEAN_GAIN * (abs(surprise) - self._deviation_ns)

    @property
    def network_latency_ns(self) -> int:
        """Mean response latency, in ns, from the end of a stage to the client; the margin is longer."""
        return round(ROUND_TRIP_RATIO * self._mean_ns)

    def before(self, deadline_ns: int, now_ns: int) -> int:
        """Return the time by which a response must be ready to reach the client by the deadline.

        NEVER_NS and past deadlines are returned unchanged.
        """
        if deadline_ns == NEVER_NS or deadline_ns <= now_ns:
            return deadline_ns
        estimate_ns = ROUND_TRIP_RATIO * (self._mean_ns + MARGIN_DEVIATIONS * self._deviation_ns)
        return deadline_ns - round(min(estimate_ns, MAX_RESPONSE_MARGIN_FRACTION * (deadline_ns - now_ns)))
