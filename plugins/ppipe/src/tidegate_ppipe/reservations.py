"""Reservation tables of workers, uplinks and downlinks (PPipe, section 5.4 and Algorithm 2)."""

from bisect import bisect_left, bisect_right


class Reservation:
    """Reservation of a resource during [start, end) in ns; compared by identity."""

    __slots__ = ("end_ns", "holder", "start_ns")

    def __init__(self, start_ns: int, end_ns: int, holder: object = None) -> None:
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.holder = holder
        """Batch or stage that it is reserved for."""


class Timetable:
    """Reserved intervals of one resource, by start.

    They do not overlap when reserved; after corrections they may. A time is free if no interval covers it.
    """

    __slots__ = ("_ends", "_intervals", "_starts")

    def __init__(self) -> None:
        self._intervals: list[Reservation] = []
        self._starts: list[int] = []
        self._ends: list[int] = []
        """The latest end up to each interval: rising, whatever the corrections."""

    def __len__(self) -> int:
        return len(self._intervals)

    @property
    def intervals(self) -> list[Reservation]:
        """Reservations in order of start. Do not modify."""
        return self._intervals

    @property
    def tail_ns(self) -> int:
        """Time from which nothing is reserved, in ns; 0 if there are no reservations."""
        return self._ends[-1] if self._ends else 0

    def earliest_fit(self, from_ns: int, duration_ns: int) -> int:
        """Return the first time, from `from_ns` on, with `duration_ns` free."""
        ends, starts = self._ends, self._starts
        index = bisect_right(ends, from_ns)
        start_ns = from_ns
        for later in range(index, len(ends)):
            if starts[later] >= start_ns + duration_ns:
                break
            start_ns = max(start_ns, ends[later])
        return start_ns

    def add(self, interval: Reservation) -> None:
        """Add a reservation; at the end, the usual case, in constant time."""
        starts = self._starts
        if not starts or interval.start_ns >= starts[-1]:
            self._intervals.append(interval)
            starts.append(interval.start_ns)
            self._ends.append(max(interval.end_ns, self.tail_ns))
            return
        position = bisect_right(starts, interval.start_ns)
        self._intervals.insert(position, interval)
        starts.insert(position, interval.start_ns)
        self._ends.insert(position, interval.end_ns)
        self.ends_changed(position)

    def remove(self, interval: Reservation) -> None:
        """Remove a reservation; without effect if it is not here."""
        position = self.position(interval)
        if position is not None:
            del self._intervals[position], self._starts[position], self._ends[position]
            self.ends_changed(position)

    def position(self, interval: Reservation) -> int | None:
        """Return the position of a reservation; None if it is not here."""
        position = bisect_left(self._starts, interval.start_ns)
        while position < len(self._starts) and self._starts[position] == interval.start_ns:
            if self._intervals[position] is interval:
                return position
            position += 1
        return None

    def ends_changed(self, position: int = 0) -> None:
        """Update the timetable after the ends from `position` on changed."""
        latest_ns = self._ends[position - 1] if position else 0
        for index in range(position, len(self._intervals)):
            latest_ns = max(latest_ns, self._intervals[index].end_ns)
            self._ends[index] = latest_ns

    def forget(self, before_ns: int) -> None:
        """Remove reservations that ended before `before_ns`."""
        over = bisect_right(self._ends, before_ns)
        if over:
            del self._intervals[:over], self._starts[:over], self._ends[:over]


def earliest_joint_fit(one: Timetable, other: Timetable, from_ns: int, duration_ns: int) -> int:
    """Return the first time in ns, from `from_ns` on, with `duration_ns` free on both, e.g. an uplink and a
    downlink.
    """
    while True:
        start_ns = one.earliest_fit(from_ns, duration_ns)
        from_ns = other.earliest_fit(start_ns, duration_ns)
        if from_ns == start_ns:
            return start_ns
