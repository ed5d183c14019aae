"""Workers by pool and by machine, with their reservations and those of the machines' links."""

from bisect import bisect_left, insort
from collections import Counter

from tidegate.api import Worker
from tidegate_ppipe.reservations import Timetable

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
