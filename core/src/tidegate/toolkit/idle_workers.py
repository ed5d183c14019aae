"""Idle workers, and those about to be idle: the candidates for a dispatch."""

from dataclasses import dataclass, field
from heapq import heappop, heappush

from tidegate.api import Worker, WorkerReady


@dataclass(slots=True)
class _Pool:
    """Workers that host the same and are equally fast."""

    device_class: str
    hosts: frozenset[str]
    members: set[int] = field(default_factory=set)
    idle: set[int] = field(default_factory=set)
    ready: dict[int, int] = field(default_factory=dict)
    """The workers that are about to be idle, with the instant from which on a stage counts there."""
    heap: list[int] = field(default_factory=list)
    """The idle ones, and such as ceased to be: those go once they are at the top."""
    listed: set[int] = field(default_factory=set)
    """Ids of the workers in the heap."""
    servers: dict[str, list[int]] = field(default_factory=dict)
    """Ids of the slots of each server; empty if these workers are no slots."""

    def release(self, worker_id: int) -> None:
        self.idle.add(worker_id)
        if worker_id not in self.listed:
            self.listed.add(worker_id)
            heappush(self.heap, worker_id)

    def occupy(self, worker_id: int) -> None:
        self.idle.discard(worker_id)
        self.ready.pop(worker_id, None)

    @property
    def first(self) -> tuple[int, int] | None:
        """Instant and id of the worker that can begin first: idle, by the smallest id, or idle soonest; or None."""
        if self.idle and self.servers:
            return 0, self._slot_of_least_busy()
        if self.idle:
            while self.heap[0] not in self.idle:
                self.listed.remove(heappop(self.heap))
            return 0, self.heap[0]
        if not self.ready:
            return None
        return min(((free_ns, worker_id) for worker_id, free_ns in self.ready.items()))

    def _slot_of_least_busy(self) -> int:
        """The idle slot of the smallest id on the server with the smallest fraction of busy slots: O(slots)."""
        idle_of = [(ids, [number for number in ids if number in self.idle]) for ids in self.servers.values()]
        return min((1 - len(idle) / len(ids), min(idle)) for ids, idle in idle_of if idle)[1]


class IdleWorkers:
    """Idle workers by partition, smallest id first: O(pools + log workers) for each operation.

    A worker whose stage is about to end counts as idle, after those that are. Of idle slots, one of the server with the
    smallest fraction of busy slots comes first.
    """

    def __init__(self, workers: tuple[Worker, ...]) -> None:
        self._workers: dict[int, Worker] = {}
        self._pools: dict[tuple[tuple[str, ...], str], _Pool] = {}
        self._pool_of: dict[int, _Pool] = {}
        self._pools_of: dict[str, list[_Pool]] = {}
        for worker in workers:
            self.join(worker)

    def join(self, worker: Worker) -> None:
        """Add a new worker, which is idle."""
        self._workers[worker.id] = worker
        pool = self._pools.get((worker.hosts, worker.device_class))
        if pool is None:
            pool = self._pools[worker.hosts, worker.device_class] = _Pool(worker.device_class, frozenset(worker.hosts))
            for partition in worker.hosts:
                self._pools_of.setdefault(partition, []).append(pool)
        pool.members.add(worker.id)
        self._pool_of[worker.id] = pool
        if worker.server and worker.id not in pool.servers.setdefault(worker.server, []):
            pool.servers[worker.server].append(worker.id)
        pool.release(worker.id)

    def leave(self, worker_id: int) -> None:
        """Remove a worker that is gone."""
        self.occupy(worker_id)
        if self._workers.pop(worker_id, None):
            pool = self._pool_of.pop(worker_id)
            pool.members.remove(worker_id)
            for server, ids in list(pool.servers.items()):
                if worker_id in ids:
                    ids.remove(worker_id)
                if not ids:
                    del pool.servers[server]

    def release(self, worker_id: int) -> None:
        """Mark a worker as idle; ignored for one that is gone."""
        if pool := self._pool_of.get(worker_id):
            pool.ready.pop(worker_id, None)
            pool.release(worker_id)

    def note(self, event: WorkerReady) -> Worker | None:
        """Mark the worker of a WorkerReady event as idle, or about to be; return it unless it is gone."""
        if event.free_ns <= event.now_ns:
            self.release(event.worker_id)
        elif pool := self._pool_of.get(event.worker_id):
            pool.ready[event.worker_id] = event.free_ns
        return self._workers.get(event.worker_id)

    def withdraw(self, worker_id: int) -> None:
        """Mark a worker that was about to be idle as busy again."""
        if pool := self._pool_of.get(worker_id):
            pool.ready.pop(worker_id, None)

    def occupy(self, worker_id: int) -> None:
        """Mark a worker as busy."""
        if pool := self._pool_of.get(worker_id):
            pool.occupy(worker_id)

    def start_ns(self, now_ns: int, worker_id: int) -> int:
        """Return the planned start, in ns, of a stage dispatched now; later than `now_ns` if the worker runs another
        one.
        """
        return max(now_ns, self._pool_of[worker_id].ready.get(worker_id, 0))

    def peek(self, partition: str) -> Worker | None:
        """Return the idle worker with the smallest id that hosts the partition; None if there is none."""
        found = [first for pool in self._pools_of.get(partition, ()) if (first := pool.first)]
        return self._workers[min(found)[1]] if found else None

    def peek_each_kind(self, partition: str) -> list[Worker]:
        """Return the idle worker with the smallest id of each device class that hosts the partition, by id."""
        found: dict[str, tuple[int, int]] = {}
        for pool in self._pools_of.get(partition, ()):
            if first := pool.first:
                found[pool.device_class] = min(first, found.get(pool.device_class, first))
        return [self._workers[worker_id] for _, worker_id in sorted(found.values())]

    def hosts(self, worker_id: int) -> frozenset[str]:
        """Return the partitions that a worker hosts: one set for all workers with the same ones."""
        return self._pool_of[worker_id].hosts

    def is_idle(self, worker_id: int) -> bool:
        """Whether this worker is here and idle."""
        pool = self._pool_of.get(worker_id)
        return pool is not None and (worker_id in pool.idle or worker_id in pool.ready)

    def kinds_hosting(self, partition: str) -> set[str]:
        """Return the device classes of all workers that host the partition."""
        return {pool.device_class for pool in self._pools_of.get(partition, ()) if pool.members}

    def count_hosting(self, partition: str) -> int:
        """Return the number of workers, busy or idle, that host the partition."""
        return sum(len(pool.members) for pool in self._pools_of.get(partition, ()))

    def sharing(self, partition: str) -> tuple[frozenset[str], int]:
        """Return the partitions that share workers with a partition, directly or indirectly, and the number of
        workers.
        """
        shared, pools = {partition}, [pool for pool in self._pools.values() if pool.members]
        while found := [pool for pool in pools if not pool.hosts <= shared and pool.hosts & shared]:
            for pool in found:
                shared |= pool.hosts
        return frozenset(shared), sum(len(pool.members) for pool in pools if pool.hosts & shared)

    def count(self) -> int:
        """Return the number of workers, busy or idle."""
        return len(self._workers)

    def count_idle(self, partition: str) -> int:
        """Return the number of idle workers that host the partition."""
        return sum(len(pool.idle) + len(pool.ready) for pool in self._pools_of.get(partition, ()))

    def get(self, worker_id: int) -> Worker | None:
        """Return the worker with this id, busy or idle; None if it is gone."""
        return self._workers.get(worker_id)
