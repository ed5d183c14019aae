"""Tables of reserved times of workers, uplinks and downlinks (PPipe, Algorithm 2), and the pools of workers."""

from bisect import bisect_left, bisect_right, insort
from collections import Counter

from tidegate.api import Worker


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


OVERRUN_PART = 16
"""Fraction of its duration for which an overdue stage is expected to last longer."""


class NodeLinks:
    """Network links of one machine."""

    __slots__ = ("downlink", "uplink")

    def __init__(self) -> None:
        self.uplink = Timetable()
        self.downlink = Timetable()


class PooledWorker:
    """A worker of a pool, with its reservations."""

    __slots__ = ("hosts", "id", "listed_ns", "node", "pool", "timetable", "work_ns")

    def __init__(self, worker: Worker, node: NodeLinks, pool: "WorkerPool") -> None:
        self.id = worker.id
        self.hosts = worker.hosts
        self.node = node
        self.pool = pool
        self.timetable = Timetable()
        self.work_ns = 0
        """How long all that is reserved takes together."""
        self.listed_ns = -1
        """When its reservations end, as its pool has it listed; negative: idle."""

    def free_ns(self, now_ns: int) -> int:
        """Return the time in ns at which the running stage ends; an overdue one is expected to last a little longer."""
        first = self.timetable.intervals[0]
        if first.start_ns > now_ns:
            return now_ns
        if first.end_ns > now_ns:
            return first.end_ns
        return now_ns + 1 + (first.end_ns - first.start_ns) // OVERRUN_PART

    def done_ns(self, now_ns: int) -> int:
        """Return the earliest time in ns at which all reservations end, however late the worker is."""
        first = self.timetable.intervals[0]
        return now_ns + self.work_ns - max(0, min(now_ns, first.end_ns) - first.start_ns)


class WorkerPool:
    """Workers that host the same partitions and are equally fast."""

    __slots__ = ("busy", "device_class", "idle", "nodes", "places")

    def __init__(self, device_class: str) -> None:
        self.device_class = device_class
        self.places: dict[int, PooledWorker] = {}
        self.nodes: Counter[NodeLinks] = Counter()
        """How many are in each."""
        self.idle: list[int] = []
        """The ids of the workers without a reservation, rising."""
        self.busy: list[tuple[int, int]] = []
        """(when the last reservation ends, id)."""

    def join(self, place: PooledWorker) -> PooledWorker:
        """Add an idle worker, and return it."""
        self.places[place.id] = place
        self.nodes[place.node] += 1
        insort(self.idle, place.id)
        return place

    def leave(self, place: PooledWorker) -> None:
        """Remove a worker from the pool."""
        del self.places[place.id]
        self.nodes -= Counter([place.node])
        self._strike(place)

    def reinsert(self, place: PooledWorker) -> None:
        """Update the order of a worker whose reservations changed."""
        until_ns = place.timetable.tail_ns if place.timetable else -1
        if until_ns == place.listed_ns or self.places.get(place.id) is not place:
            return
        self._strike(place)
        place.listed_ns = until_ns
        if until_ns < 0:
            insort(self.idle, place.id)
        else:
            insort(self.busy, (until_ns, place.id))

    def _strike(self, place: PooledWorker) -> None:
        if place.listed_ns < 0:
            del self.idle[bisect_left(self.idle, place.id)]
        else:
            del self.busy[bisect_left(self.busy, (place.listed_ns, place.id))]
