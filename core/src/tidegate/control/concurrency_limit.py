"""Adaptive concurrency limit: how many streams of a model a server runs at once, found by their throughput.

Throughput rises with concurrency up to a knee, from which on streams only slow each other down. The knee is where power
is largest: throughput / latency (Kleinrock, "Power and deterministic rules of thumb", 1979). By Little's law latency is
concurrency / throughput, so responses and time at each concurrency tell both. Envoy and Netflix's concurrency-limits
compare latencies instead, which for streams depend on their lengths.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

LEVEL_RATIO: Final = 1.25
"""Ratio of a concurrency level to the one below it: the limit is found to within this ratio."""
MAX_LIMIT: Final = 512
"""Largest limit, in streams."""
INITIAL_LIMIT: Final = 8
"""Streams at first, before anything is known."""
MIN_RESPONSES_PER_STREAM: Final = 64
"""Responses for each stream of the limit after which it is reconsidered."""
MIN_WINDOW_RESPONSES: Final = 2048
"""Responses after which it is reconsidered at the earliest: first responses, which take longer, come in clusters."""
MIN_LOWERING_GAIN: Final = 1.02
"""Ratio of powers from which on a lower limit is better: about equal ones are not worth a change."""
MIN_BOUND_FRACTION: Final = 0.5
"""Fraction of the time at the limit below which there is nothing to learn about it."""
HISTORY_WEIGHT: Final = 0.7
"""Weight of what was observed before at a level whenever it is observed again."""
MAX_AGE_WINDOWS: Final = 200
"""Windows after which a level that was not observed since is tried again."""


def _levels() -> tuple[int, ...]:
    levels = [1]
    while levels[-1] < MAX_LIMIT:
        levels.append(min(MAX_LIMIT, max(levels[-1] + 1, round(levels[-1] * LEVEL_RATIO))))
    return tuple(levels)


CONCURRENCY_LEVELS: Final = _levels()
"""The limits that are tried."""
_LEVEL_OF: Final = tuple(
    upper for lower, upper in pairwise((0, *CONCURRENCY_LEVELS)) for _ in range(upper - lower)
)  # of a concurrency of 1 and more


@dataclass(slots=True)
class _LevelRecord:
    """Responses and time observed at one level of concurrency."""

    stream_ns: float = 0.0
    """Time of all streams together."""
    elapsed_ns: float = 0.0
    responses: float = 0.0
    window: int = 0
    """Number of the window in which it was last observed."""

    def add(self, other: "_LevelRecord", window: int) -> None:
        self.stream_ns = HISTORY_WEIGHT * self.stream_ns + other.stream_ns
        self.elapsed_ns = HISTORY_WEIGHT * self.elapsed_ns + other.elapsed_ns
        self.responses = HISTORY_WEIGHT * self.responses + other.responses
        self.window = window

    @property
    def gap_ns(self) -> float:
        """Mean time between the responses of a stream."""
        return self.stream_ns / self.responses

    @property
    def power(self) -> float:
        """Throughput by latency."""
        return (self.responses / self.elapsed_ns) / self.gap_ns


class ConcurrencyLimit:
    """Adaptive concurrency limit of one model on one server. It has no clock: instants are arguments, in ns."""

    def __init__(self, slo_gap_ns: int | None = None, initial: int = INITIAL_LIMIT) -> None:
        """Create the limit. `slo_gap_ns`: longest mean time between responses; None: the knee of throughput."""
        self.slo_gap_ns = slo_gap_ns
        self._limit = _LEVEL_OF[min(initial, MAX_LIMIT) - 1]
        self._busy = 0
        self._since_ns = 0
        self._window: dict[int, _LevelRecord] = {}
        self._responses = 0
        self._bound_ns = 0
        """Time in the window at the limit."""
        self._windows = 0
        self._known: dict[int, _LevelRecord] = {}

    @property
    def limit(self) -> int:
        """Number of streams that the server may run at once."""
        return self._limit

    def begin(self, now_ns: int) -> None:
        """Record that a stream begins."""
        self._elapse(now_ns)
        self._busy += 1

    def end(self, now_ns: int) -> None:
        """Record that a stream has ended."""
        self._elapse(now_ns)
        self._busy -= 1

    def respond(self, now_ns: int) -> bool:
        """Record a response of one of the streams; return whether the limit has changed."""
        self._elapse(now_ns)
        if self._busy:
            self._of_window(self._busy).responses += 1
            self._responses += 1
        if self._responses < max(MIN_WINDOW_RESPONSES, MIN_RESPONSES_PER_STREAM * self._limit):
            return False
        before = self._limit
        self._reconsider()
        return self._limit != before

    def _elapse(self, now_ns: int) -> None:
        elapsed_ns, self._since_ns = now_ns - self._since_ns, now_ns
        if self._busy:
            record = self._of_window(self._busy)
            record.elapsed_ns += elapsed_ns
            record.stream_ns += elapsed_ns * self._busy
        if self._busy >= self._limit:
            self._bound_ns += elapsed_ns

    def _of_window(self, busy: int) -> _LevelRecord:
        level = _LEVEL_OF[min(busy, MAX_LIMIT) - 1]
        return self._window.get(level) or self._window.setdefault(level, _LevelRecord())

    def _reconsider(self) -> None:
        """End a window: choose the limit by what is known of each level."""
        window, self._window, self._responses = self._window, {}, 0
        self._windows += 1
        bound_ns, self._bound_ns = self._bound_ns, 0
        elapsed_ns = sum(record.elapsed_ns for record in window.values())
        for level, record in window.items():
            if record.responses >= MIN_RESPONSES_PER_STREAM and record.elapsed_ns:
                self._known.setdefault(level, _LevelRecord()).add(record, self._windows)
        known = {
            level: record for level, record in self._known.items() if self._windows - record.window <= MAX_AGE_WINDOWS
        }
        if bound_ns < MIN_BOUND_FRACTION * elapsed_ns or self._limit not in known:
            return
        self._limit = self._best(known)

    def _best(self, known: dict[int, _LevelRecord]) -> int:
        """Return the level to run at: a known one, or an unknown one beside it."""
        current, place = known[self._limit], CONCURRENCY_LEVELS.index(self._limit)
        following, preceding = (
            CONCURRENCY_LEVELS[min(place + 1, len(CONCURRENCY_LEVELS) - 1)],
            CONCURRENCY_LEVELS[max(place - 1, 0)],
        )
        if self.slo_gap_ns is not None:
            met = [level for level, record in known.items() if record.gap_ns <= self.slo_gap_ns]
            if current.gap_ns > self.slo_gap_ns:
                return max((level for level in met if level < self._limit), default=preceding)
            return following if following not in known or following in met else self._limit
        best = max(known, key=lambda level: known[level].power)
        if best > self._limit or known[best].power > MIN_LOWERING_GAIN * current.power:
            return best
        return next((level for level in (following, preceding) if level not in known), self._limit)
