"""Finds the route that ends first, by reservations of workers and links (PPipe, Algorithm 2)."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import inf

from tidegate.api import NEVER_NS, Network, Profile, ProfileKey, Worker
from tidegate_ppipe.reservations import NodeLinks, PooledWorker, Reservation, WorkerPool, earliest_joint_fit
from tidegate_ppipe.routes import ON_TIME_DEVIATIONS, BatchRoute, InFlightBatch, RouteStop, margin_ns


class Resources:
    """Workers and links, with their reservations. `probe` and `reserve` are those of Algorithm 2."""

    def __init__(
        self, workers: Iterable[Worker], profiles: Iterable[Profile], network: Network | None, *, fill_gaps: bool
    ) -> None:
        """Create the tables without reservations.

        `profiles`: of all partitions on their device classes; `network`: None: transfers take no time. `fill_gaps`:
        whether work may also be placed between two reservations of a worker.
        """
        self.probes = 0
        """How often a path was looked for."""
        self._profiles: dict[ProfileKey, Profile] = {}
        self._shapes: dict[tuple[str, str], dict[str, Profile]] = {}
        """The profiles by (partition, kind), by shape."""
        self._slowest: dict[tuple[str, str], Profile] = {}
        """The profile of the slowest of the shapes that were met, by (partition, kind)."""
        self._network = network
        self._fill_gaps = fill_gaps
        self._nodes: dict[str, NodeLinks] = {}
        self._places: dict[int, PooledWorker] = {}
        self._pools: dict[tuple[tuple[str, ...], str], WorkerPool] = {}
        self._pools_of: dict[str, list[WorkerPool]] = {}
        for profile in profiles:
            self.expect(profile)
        for worker in workers:
            self.join(worker)

    # What there is -----------------------------------------------------------------------------------------------

    def expect(self, profile: Profile) -> None:
        """Set the profile of a partition."""
        self._profiles[profile.key] = profile
        self._shapes.setdefault(profile.key[:2], {})[profile.shape] = profile
        self._slowest.pop(profile.key[:2], None)

    def join(self, worker: Worker) -> None:
        """Add an idle worker."""
        pool = self._pools.get((worker.hosts, worker.device_class))
        if pool is None:
            pool = self._pools[worker.hosts, worker.device_class] = WorkerPool(worker.device_class)
            for partition in worker.hosts:
                self._pools_of.setdefault(partition, []).append(pool)
        node = self._nodes.setdefault(worker.node, NodeLinks())
        self._places[worker.id] = pool.join(PooledWorker(worker, node, pool))

    def leave(self, worker_id: int) -> PooledWorker | None:
        """Remove a worker, and return it; None if it was unknown."""
        place = self._places.pop(worker_id, None)
        if place:
            place.pool.leave(place)
        return place

    def place(self, worker_id: int) -> PooledWorker | None:
        """Return a worker by id; None if it is unknown."""
        return self._places.get(worker_id)

    def is_here(self, stop: RouteStop) -> bool:
        """Whether the worker of a stop was not lost."""
        return self._places.get(stop.place.id) is stop.place

    def hosts(self, partition: str) -> bool:
        """Whether any worker hosts a partition."""
        return any(pool.places for pool in self._pools_of.get(partition, ()))

    def work_ns(self, partitions: Sequence[str], most_rows: int, shape: str) -> list[int]:
        """Return the latency in ns of a pipeline without waiting, on the fastest device classes, by rows - 1.

        `partitions`: each must have a worker; `most_rows`: largest batch; `shape`: shape of the requests.
        """
        quickest = []
        for partition in partitions:
            kinds = {pool.device_class for pool in self._pools_of[partition] if pool.places}
            quickest.append(
                Profile.quickest(self._profiles[partition, device_class, shape] for device_class in sorted(kinds))
            )
        work_ns = []
        for rows in range(1, most_rows + 1):
            expected_ns = [profile.expected_ns(rows) for profile in quickest]
            margins_ns = [profile.upper_ns(rows) - profile.expected_ns(rows) for profile in quickest]
            work_ns.append(sum(expected_ns) + round(ON_TIME_DEVIATIONS * margin_ns(margins_ns)))
            if self._network:
                for partition in partitions[:-1]:
                    work_ns[-1] += self._network.transfer_ns(partition, rows) + self._network.latency_ns
        return list(accumulate(work_ns, max))

    def rows_per_ns(self, partition: str, rows: int) -> float:
        """Return the rows per ns of a partition's workers together, with batches of `rows` rows of the slowest
        shape.
        """
        return sum(
            len(pool.places) * rows / self._slowest_of(partition, pool.device_class).expected_ns(rows)
            for pool in self._pools_of[partition]
        )

    def _slowest_of(self, partition: str, device_class: str) -> Profile:
        """How long the slowest takes of the shapes that were met; the empty one where none was."""
        slowest = self._slowest.get((partition, device_class))
        if slowest is None:
            of_kind = self._shapes[partition, device_class]
            met = [profile for shape, profile in of_kind.items() if shape]
            slowest = self._slowest[partition, device_class] = Profile.slowest(met or of_kind.values())
        return slowest

    def link_rows_per_ns(self, sender: str, receiver: str) -> float:
        """Return the rows per ns of the links between two partitions' workers; infinite without a transfer."""
        many = 1_000_000  # of one, the nanoseconds would be rounded
        transfer_ns = self._network.transfer_ns(sender, many) if self._network else 0
        if not transfer_ns:
            return inf
        nodes = min(
            len({node for pool in self._pools_of[partition] for node in pool.nodes}) for partition in (sender, receiver)
        )
        return nodes * many / transfer_ns

    # Paths -------------------------------------------------------------------------------------------------------

    def probe(
        self,
        partitions: Sequence[str],
        rows: int,
        shape: str,
        now_ns: int,
        sender: RouteStop | None = None,
        ready_ns: int | None = None,
    ) -> BatchRoute | None:
        """Return the route that ends first, with a worker of each pool; None if a partition has no worker.

        `rows`, `shape`: of the batch. `sender`: stop at which its rows are at `ready_ns`; None: the proxy, now.
        """
        self.probes += 1
        ready_ns = now_ns if ready_ns is None else ready_ns
        stops: list[RouteStop] = []
        waiting_ns = 0
        for partition in partitions:
            stop = self._first_done(partition, rows, shape, now_ns, ready_ns, sender)
            if stop is None:
                return None
            waiting_ns += stop.start_ns - ready_ns - stop.transfer_ns
            stops.append(stop)
            sender, ready_ns = stop, stop.start_ns + stop.duration_ns
        return BatchRoute(stops, waiting_ns)

    def follow(self, stops: Iterable[RouteStop], ready_ns: int, sender: RouteStop) -> BatchRoute:
        """Return the route with the same workers in the same order, delayed by late stages.

        `ready_ns`: time in ns at which the rows are at `sender`.
        """
        late = []
        for stop in stops:
            carried = self._carried(stop.place, ready_ns, sender, stop.transfer_ns)
            start_ns = max(carried[2], stop.start_ns)
            late.append(RouteStop(stop.partition, stop.place, *carried, start_ns, stop.duration_ns, stop.margin_ns))
            late[-1].booked_ns = stop.booked_ns
            sender, ready_ns = stop, late[-1].end_ns
        return BatchRoute(late, 0)

    def reserve(self, flight: InFlightBatch, stops: Iterable[RouteStop], sender: RouteStop | None = None) -> None:
        """Reserve a route for a batch; `sender`: stop before it, None: the proxy."""
        for stop in stops:
            stop.flight = flight
            self._reserve_place(stop)
            if stop.transfer_ns and sender is not None:
                interval = Reservation(stop.sent_ns, stop.sent_ns + stop.transfer_ns)
                stop.transfers = [(sender.place.node.uplink, interval), (stop.place.node.downlink, interval)]
                for table, interval in stop.transfers:
                    table.add(interval)
            sender = stop

    def release(self, stops: Iterable[RouteStop]) -> None:
        """Remove reservations that are released or over."""
        for stop in stops:
            self._release_place(stop)
            for table, interval in stop.transfers:
                table.remove(interval)
            stop.transfers = []

    def advance(self, stop: RouteStop, start_ns: int) -> None:
        """Move a stop to an earlier start in ns; everything else is unchanged."""
        self._release_place(stop)
        stop.start_ns = start_ns
        stop.booked_ns = min(stop.booked_ns, start_ns)
        self._reserve_place(stop)

    def _reserve_place(self, stop: RouteStop) -> None:
        stop.reserved = Reservation(stop.booked_ns, stop.end_ns, stop)
        stop.place.timetable.add(stop.reserved)
        stop.place.work_ns += stop.duration_ns
        stop.place.pool.reinsert(stop.place)

    def _release_place(self, stop: RouteStop) -> None:
        if stop.reserved is not None:
            stop.place.timetable.remove(stop.reserved)
            stop.place.work_ns -= stop.duration_ns
            stop.place.pool.reinsert(stop.place)
            stop.reserved = None

    def _first_done(
        self, partition: str, rows: int, shape: str, now_ns: int, ready_ns: int, sender: RouteStop | None
    ) -> RouteStop | None:
        transfer_ns, sent_ns = 0, ready_ns
        if sender is not None and self._network is not None:
            transfer_ns = self._network.transfer_ns(sender.partition, rows)
            sent_ns = sender.place.node.uplink.earliest_fit(ready_ns, transfer_ns) if transfer_ns else ready_ns
        best: RouteStop | None = None
        best_end_ns = NEVER_NS
        for pool in self._pools_of.get(partition, ()):
            profile = self._profiles[partition, pool.device_class, shape]
            duration_ns = profile.upper_ns(rows)
            margin_ns = duration_ns - profile.expected_ns(rows)
            near = sender is None or sender.place.node in pool.nodes
            soonest_ns = ready_ns if near else sent_ns + transfer_ns
            places = pool.places
            for worker_id in pool.idle:
                if soonest_ns + duration_ns >= best_end_ns:
                    break
                place = places[worker_id]
                begin_ns, carried_ns, there_ns = self._carried(place, ready_ns, sender, transfer_ns)
                if there_ns + duration_ns < best_end_ns:
                    best = RouteStop(partition, place, begin_ns, carried_ns, there_ns, there_ns, duration_ns, margin_ns)
                    best_end_ns = best.end_ns
            for tail_ns, worker_id in pool.busy:
                if max(tail_ns, soonest_ns) + duration_ns >= best_end_ns:
                    if not self._fill_gaps:
                        break
                    if soonest_ns + duration_ns >= best_end_ns:
                        break
                place = places[worker_id]
                begin_ns, carried_ns, there_ns = self._carried(place, ready_ns, sender, transfer_ns)
                start_ns = max(there_ns, place.free_ns(now_ns))
                start_ns = (
                    place.timetable.earliest_fit(start_ns, duration_ns)
                    if self._fill_gaps
                    else max(start_ns, tail_ns, place.done_ns(now_ns))
                )
                if start_ns + duration_ns < best_end_ns:
                    best = RouteStop(partition, place, begin_ns, carried_ns, there_ns, start_ns, duration_ns, margin_ns)
                    best_end_ns = best.end_ns
        return best

    def _carried(
        self, place: PooledWorker, ready_ns: int, sender: RouteStop | None, transfer_ns: int
    ) -> tuple[int, int, int]:
        """Return the transfer from a sender to a worker: when it takes the links, for how long, and its arrival."""
        if sender is None or self._network is None or sender.place.node is place.node:
            return ready_ns, 0, ready_ns
        if transfer_ns:
            sent_ns = earliest_joint_fit(sender.place.node.uplink, place.node.downlink, ready_ns, transfer_ns)
        else:
            sent_ns = ready_ns
        return sent_ns, transfer_ns, sent_ns + transfer_ns + self._network.latency_ns
