"""Workers and links as the data plane sees them: what of them is reserved, and which path is done first."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Sequence

from tidegate.api import NEVER, Network, Profile, Worker
from tidegate_ppipe.reservations import Interval, Timetable, earliest_joint_fit

OVERRUN_PART = 16
"""What should be over and is not is expected to last a 16th of its time longer."""


class Node:
    """A machine's links."""

    __slots__ = ("downlink", "uplink")

    def __init__(self) -> None:
        self.uplink = Timetable()
        self.downlink = Timetable()


class Place:
    """A worker, with its reservations."""

    __slots__ = ("hosts", "id", "listed_ns", "node", "pool", "timetable")

    def __init__(self, worker: Worker, node: Node, pool: "Pool") -> None:
        self.id = worker.id
        self.hosts = worker.hosts
        self.node = node
        self.pool = pool
        self.timetable = Timetable()
        self.listed_ns = -1
        """When its reservations end, as its pool has it listed; negative: idle."""

    def free_ns(self, now_ns: int) -> int:
        """When what runs is over. What is late already is expected to last a little longer."""
        first = self.timetable.intervals[0]
        if first.start_ns > now_ns:
            return now_ns
        if first.end_ns > now_ns:
            return first.end_ns
        return now_ns + 1 + (first.end_ns - first.start_ns) // OVERRUN_PART


class Pool:
    """Workers that host the same and are equally fast."""

    __slots__ = ("busy", "idle", "kind", "nodes", "places")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.places: dict[int, Place] = {}
        self.nodes: Counter[Node] = Counter()
        """How many are in each."""
        self.idle: list[int] = []
        """Those without a reservation, by id."""
        self.busy: list[tuple[int, int]] = []
        """(when the last reservation ends, id)."""

    def join(self, place: Place) -> Place:
        """An idle one; returns it."""
        self.places[place.id] = place
        self.nodes[place.node] += 1
        insort(self.idle, place.id)
        return place

    def leave(self, place: Place) -> None:
        """It is gone."""
        del self.places[place.id]
        self.nodes -= Counter([place.node])
        self._strike(place)

    def list_anew(self, place: Place) -> None:
        """Its reservations changed."""
        until_ns = place.timetable.tail_ns if place.timetable else -1
        if until_ns == place.listed_ns or self.places.get(place.id) is not place:
            return
        self._strike(place)
        place.listed_ns = until_ns
        if until_ns < 0:
            insort(self.idle, place.id)
        else:
            insort(self.busy, (until_ns, place.id))

    def _strike(self, place: Place) -> None:
        if place.listed_ns < 0:
            del self.idle[bisect_left(self.idle, place.id)]
        else:
            del self.busy[bisect_left(self.busy, (place.listed_ns, place.id))]


class Stop:
    """A partition on a worker, and the transfer that brings its input; with its reservations, once they are made."""

    __slots__ = (
        "booked_ns",
        "duration_ns",
        "partition",
        "place",
        "reserved",
        "sent_ns",
        "start_ns",
        "transfer_ns",
        "transfers",
    )

    def __init__(
        self, partition: str, place: Place, sent_ns: int, transfer_ns: int, start_ns: int, duration_ns: int
    ) -> None:
        self.partition = partition
        self.place = place
        self.sent_ns = sent_ns
        """When the transfer begins, if there is one."""
        self.transfer_ns = transfer_ns
        """How long it occupies the links; 0: none of them."""
        self.start_ns = start_ns
        self.booked_ns = start_ns
        """The start that the engine knows; what is late has its place in the order from it."""
        self.duration_ns = duration_ns
        self.reserved: Interval | None = None
        """Of the worker."""
        self.transfers: list[tuple[Timetable, Interval]] = []
        """Of the links."""

    @property
    def end_ns(self) -> int:
        """When the worker is done."""
        return self.start_ns + self.duration_ns


class Path:
    """One worker of each pool of a pipeline, in order."""

    __slots__ = ("end_ns", "start_ns", "stops", "waiting_ns")

    def __init__(self, stops: list[Stop], waiting_ns: int) -> None:
        self.stops = stops
        self.waiting_ns = waiting_ns
        """For links and workers, along the whole path."""
        self.start_ns = stops[0].start_ns
        self.end_ns = stops[-1].end_ns


class Resources:
    """All of them, and what of them is reserved. `probe` and `reserve` are those of Algorithm 2."""

    def __init__(
        self, workers: Iterable[Worker], profiles: Iterable[Profile], network: Network | None, *, fill_gaps: bool
    ) -> None:
        """`fill_gaps`: work may go between two reservations of a worker, too, and not only behind all of them."""
        self.probes = 0
        """How often a path was looked for."""
        self._tables_ns: dict[tuple[str, str], tuple[int, ...]] = {}
        self._network = network
        self._fill_gaps = fill_gaps
        self._nodes: dict[str, Node] = {}
        self._places: dict[int, Place] = {}
        self._pools: dict[tuple[tuple[str, ...], str], Pool] = {}
        self._pools_of: dict[str, list[Pool]] = {}
        for profile in profiles:
            self.expect(profile)
        for worker in workers:
            self.join(worker)

    # What there is -----------------------------------------------------------------------------------------------

    def expect(self, profile: Profile) -> None:
        """From now on these are the latencies."""
        self._tables_ns[profile.partition, profile.kind] = profile.table_ns

    def join(self, worker: Worker) -> None:
        """An idle worker."""
        pool = self._pools.get((worker.hosts, worker.kind))
        if pool is None:
            pool = self._pools[worker.hosts, worker.kind] = Pool(worker.kind)
            for partition in worker.hosts:
                self._pools_of.setdefault(partition, []).append(pool)
        node = self._nodes.setdefault(worker.node, Node())
        self._places[worker.id] = pool.join(Place(worker, node, pool))

    def leave(self, worker_id: int) -> Place | None:
        """A worker is gone; returns what it was, if it was here."""
        place = self._places.pop(worker_id, None)
        if place:
            place.pool.leave(place)
        return place

    def place(self, worker_id: int) -> Place | None:
        """A worker that is here."""
        return self._places.get(worker_id)

    def hosts(self, partition: str) -> bool:
        """Whether any worker does."""
        return any(pool.places for pool in self._pools_of.get(partition, ()))

    def work_ns(self, partitions: Sequence[str], most_rows: int) -> list[int]:
        """By rows - 1: how long a path takes where nothing has to wait, on the fastest kinds of workers.

        Each partition must be hosted.
        """
        work_ns = [0] * most_rows
        for position, partition in enumerate(partitions):
            tables = {
                pool.kind: self._tables_ns[partition, pool.kind] for pool in self._pools_of[partition] if pool.places
            }
            for rows in range(1, most_rows + 1):
                work_ns[rows - 1] += min(table[rows - 1] for table in tables.values())
                if position + 1 < len(partitions) and self._network:
                    work_ns[rows - 1] += self._network.transfer_ns(partition, rows) + self._network.latency_ns
        return work_ns

    # Paths -------------------------------------------------------------------------------------------------------

    def probe(self, partitions: Sequence[str], rows: int, ready_ns: int, sender: Stop | None = None) -> Path | None:
        """From pool to pool the worker that is done first. None where a partition is hosted nowhere.

        `sender`: where the rows are at `ready_ns`; None: with their clients.
        """
        self.probes += 1
        stops: list[Stop] = []
        waiting_ns = 0
        for partition in partitions:
            stop = self._first_done(partition, rows, ready_ns, sender)
            if stop is None:
                return None
            waiting_ns += stop.start_ns - ready_ns - stop.transfer_ns
            stops.append(stop)
            sender, ready_ns = stop, stop.start_ns + stop.duration_ns
        return Path(stops, waiting_ns)

    def follow(self, stops: Iterable[Stop], ready_ns: int, sender: Stop) -> Path:
        """The same workers and the same order on each, with what is late: what is behind it has to wait."""
        late = []
        for stop in stops:
            sent_ns, transfer_ns, there_ns = self._carried(stop.place, ready_ns, sender, stop.transfer_ns)
            start_ns = max(there_ns, stop.start_ns)
            late.append(Stop(stop.partition, stop.place, sent_ns, transfer_ns, start_ns, stop.duration_ns))
            late[-1].booked_ns = stop.booked_ns
            sender, ready_ns = stop, late[-1].end_ns
        return Path(late, 0)

    def reserve(self, stops: Iterable[Stop], sender: Stop | None = None) -> None:
        """Take what a path needs."""
        for stop in stops:
            stop.reserved = Interval(stop.booked_ns, stop.end_ns)
            stop.place.timetable.add(stop.reserved)
            stop.place.pool.list_anew(stop.place)
            if stop.transfer_ns and sender is not None:
                interval = Interval(stop.sent_ns, stop.sent_ns + stop.transfer_ns)
                stop.transfers = [(sender.place.node.uplink, interval), (stop.place.node.downlink, interval)]
                for table, interval in stop.transfers:
                    table.add(interval)
            sender = stop

    def release(self, stops: Iterable[Stop]) -> None:
        """Give back what was reserved, or is over."""
        for stop in stops:
            if stop.reserved is not None:
                stop.place.timetable.remove(stop.reserved)
                stop.place.pool.list_anew(stop.place)
                stop.reserved = None
            for table, interval in stop.transfers:
                table.remove(interval)
            stop.transfers = []

    def _first_done(self, partition: str, rows: int, ready_ns: int, sender: Stop | None) -> Stop | None:
        transfer_ns, sent_ns = 0, ready_ns
        if sender is not None and self._network is not None:
            transfer_ns = self._network.transfer_ns(sender.partition, rows)
            sent_ns = sender.place.node.uplink.earliest_fit(ready_ns, transfer_ns) if transfer_ns else ready_ns
        best: Stop | None = None
        best_end_ns = NEVER
        for pool in self._pools_of.get(partition, ()):
            duration_ns = self._tables_ns[partition, pool.kind][rows - 1]
            near = sender is None or sender.place.node in pool.nodes
            soonest_ns = ready_ns if near else sent_ns + transfer_ns
            places = pool.places
            for worker_id in pool.idle:
                if soonest_ns + duration_ns >= best_end_ns:
                    break
                place = places[worker_id]
                begin_ns, carried_ns, there_ns = self._carried(place, ready_ns, sender, transfer_ns)
                if there_ns + duration_ns < best_end_ns:
                    best = Stop(partition, place, begin_ns, carried_ns, there_ns, duration_ns)
                    best_end_ns = best.end_ns
            for tail_ns, worker_id in pool.busy:
                if max(tail_ns, soonest_ns) + duration_ns >= best_end_ns:
                    if not self._fill_gaps:
                        break
                    if soonest_ns + duration_ns >= best_end_ns:
                        break
                place = places[worker_id]
                begin_ns, carried_ns, there_ns = self._carried(place, ready_ns, sender, transfer_ns)
                start_ns = max(there_ns, place.free_ns(ready_ns))
                start_ns = (
                    place.timetable.earliest_fit(start_ns, duration_ns) if self._fill_gaps else max(start_ns, tail_ns)
                )
                if start_ns + duration_ns < best_end_ns:
                    best = Stop(partition, place, begin_ns, carried_ns, start_ns, duration_ns)
                    best_end_ns = best.end_ns
        return best

    def _carried(self, place: Place, ready_ns: int, sender: Stop | None, transfer_ns: int) -> tuple[int, int, int]:
        """What comes from a sender to a place: when the links take it, for how long, and when it is there."""
        if sender is None or self._network is None or sender.place.node is place.node:
            return ready_ns, 0, ready_ns
        if transfer_ns:
            sent_ns = earliest_joint_fit(sender.place.node.uplink, place.node.downlink, ready_ns, transfer_ns)
        else:
            sent_ns = ready_ns
        return sent_ns, transfer_ns, sent_ns + transfer_ns + self._network.latency_ns
