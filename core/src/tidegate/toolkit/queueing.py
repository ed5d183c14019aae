"""Base class of policies with one first-in-first-out queue for each queue key, as most have; workers that are idle."""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from typing import Generic, Self, cast

from typing_extensions import TypeVar

from tidegate.api import (
    Batch,
    Commands,
    Dispatch,
    Model,
    Policy,
    PolicyOptions,
    Profile,
    ProfileUpdated,
    QueueKey,
    Request,
    RequestArrived,
    RequestCancelled,
    Setup,
    Stage,
    TimerFired,
    Worker,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
    queue_key,
)


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
        self._batching = 0
        """Number of workers that are no slots."""
        self._pools: dict[tuple[tuple[str, ...], str], _Pool] = {}
        self._pool_of: dict[int, _Pool] = {}
        self._pools_of: dict[str, list[_Pool]] = {}
        for worker in workers:
            self.join(worker)

    def join(self, worker: Worker) -> None:
        """Add a new worker, which is idle."""
        self._batching += (worker.id not in self._workers) * (not worker.server)
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
        if worker := self._workers.pop(worker_id, None):
            self._batching -= not worker.server
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

    def count_batching(self) -> int:
        """Return the number of workers, busy or idle, that run batches: all but slots."""
        return self._batching

    def count_idle(self, partition: str) -> int:
        """Return the number of idle workers that host the partition."""
        return sum(len(pool.idle) + len(pool.ready) for pool in self._pools_of.get(partition, ()))

    def get(self, worker_id: int) -> Worker | None:
        """Return the worker with this id, busy or idle; None if it is gone."""
        return self._workers.get(worker_id)


MAX_PASSED = 256
"""Maximum number of waiting requests that a retried request passes, so that inserting stays cheap."""


class RequestQueue:
    """Waiting requests of one queue key, oldest first."""

    __slots__ = ("_last_ns", "_requests", "key", "model", "paths", "rows", "shape")

    def __init__(self, key: QueueKey, model: Model) -> None:
        self.key = key
        self.model = model
        self.shape = key[1]
        """The shape of all its requests."""
        self.paths = model.paths
        """The pipelines along which they can run."""
        self.rows = 0
        """The sum of the rows of what waits."""
        self._requests: OrderedDict[int, Request] = OrderedDict()
        """The requests by id: any of them may leave at any time, and thousands at once."""
        self._last_ns = 0
        """The largest rank of those that it has had."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    @property
    def head(self) -> Request:
        """The oldest request. Raises IndexError if the queue is empty."""
        for request in self._requests.values():
            return request
        raise IndexError("the queue is empty")

    def push(self, request: Request) -> None:
        """Add a request at the end, or by its rank if it is retried."""
        self.rows += request.rows
        requests, rank_ns = self._requests, self.rank_ns(request)
        if rank_ns >= self._last_ns:
            self._last_ns = rank_ns
            requests[request.id] = request
            return
        behind: list[int] = []
        for last in reversed(requests.values()):
            if self.rank_ns(last) <= rank_ns or len(behind) == MAX_PASSED:
                break
            behind.append(last.id)
        requests[request.id] = request
        for later_id in reversed(behind):
            requests.move_to_end(later_id)

    def rank_ns(self, request: Request) -> int:
        """Return the sort key of a request, smallest first: its arrival in ns, unless a subclass overrides it."""
        return request.arrival_ns

    def pop(self, count: int, start: int = 0) -> list[Request]:
        """Remove and return `count` requests, in order, starting at position `start`."""
        requests, rows = self._requests, 0
        taken = list(islice(requests.values(), start, start + count))
        for request in taken:
            del requests[request.id]
            rows += request.rows
        self.rows -= rows
        return taken

    def remove(self, request_id: int) -> None:
        """Remove one request at any position: O(1)."""
        if request := self._requests.pop(request_id, None):
            self.rows -= request.rows

    def prefix_within(self, max_rows: int) -> tuple[int, int]:
        """Return the longest prefix of at most `max_rows` rows, as (requests, rows); it always contains the head."""
        count = rows = 0
        for request in self._requests.values():
            if rows + request.rows > max_rows and count:
                break
            count += 1
            rows += request.rows
        return count, rows


Queue = TypeVar("Queue", bound=RequestQueue, default=RequestQueue)


class QueueingPolicy(Policy, Generic[Queue]):
    """Base class that keeps queues, idle workers and profiles; subclasses decide.

    Subclasses implement `queue_changed`, which is also called when a timer named after a queue fires, and
    `worker_freed`. A policy with more data in its queues derives them from RequestQueue, names the class
    (`QueueingPolicy[MyQueue]`) and creates them in `new_queue`.

    Form a batch that must be on time for `start_ns(now_ns, worker)`: an idle worker begins now, one that is about to be
    idle a little later.
    """

    supports_pipelined_dispatch = True

    def __init__(self, setup: Setup, options: PolicyOptions) -> None:
        super().__init__(setup, options)
        self.models = {model.name: model for model in setup.models}
        self.profiles = {profile.key: profile for profile in setup.profiles}
        self.idle = IdleWorkers(setup.workers)
        self.queues: dict[QueueKey, Queue] = {}
        self._queue_of: dict[int, QueueKey] = {}
        self._fastest: dict[tuple[str, str], Profile] = {}

    def migrate(self, setup: Setup) -> Self:
        """Return the next policy, which knows the readmitted requests; subclasses also pass on what they learned."""
        follower = super().migrate(setup)
        follower.readmitted_ids = self.readmitted_ids | self._queue_of.keys()
        return follower

    def new_queue(self, key: QueueKey, model: Model) -> Queue:
        """Return a new queue for requests that can share a batch; it is discarded when empty."""
        return cast("Queue", RequestQueue(key, model))

    @abstractmethod
    def queue_changed(self, now_ns: int, queue: Queue) -> Commands:
        """Decide about a queue after a request joined or was cancelled, its timer fired, or its workers or profiles
        changed.
        """

    @abstractmethod
    def worker_freed(self, now_ns: int, worker: Worker) -> Commands:
        """Decide about a worker that became idle or is about to.

        On a worker about to be idle, run what you would run if it were idle, or nothing: if the most urgent queue might
        be late behind the running stage, another queue must not take the worker.
        """

    def on_timer_fired(self, event: TimerFired) -> Commands:
        """Decide about the queue that the timer is named after (`SetTimer(queue.key, ...)`), unless it is empty."""
        queue = self.queues.get(cast("QueueKey", event.key))
        return self.queue_changed(event.now_ns, queue) if queue else ()

    def start_ns(self, now_ns: int, worker: Worker) -> int:
        """Return the planned start, in ns, of a batch dispatched to an idle worker now."""
        return self.idle.start_ns(now_ns, worker.id)

    def profile(self, partition: str, worker: Worker, shape: str) -> Profile:
        """Return the profile of a partition on a worker for requests of a shape."""
        return self.profiles[partition, worker.device_class, shape]

    def fastest_profile(self, partition: str, shape: str) -> Profile | None:
        """Return the pointwise fastest profile of any worker for a shape; None if no worker hosts the partition."""
        found = self._fastest.get((partition, shape))
        if found is None and (kinds := self.idle.kinds_hosting(partition)):
            found = Profile.quickest(self.profiles[partition, device_class, shape] for device_class in sorted(kinds))
            self._fastest[partition, shape] = found
        return found

    def forget_plans(self, partitions: Collection[str], shape: str | None = None) -> None:
        """Handle a change of workers that host these partitions, or of a profile of one shape; None: of any shape.

        Subclasses extend it to discard derived data.
        """
        for kind in [kind for kind in self._fastest if kind[0] in partitions and shape in (None, kind[1])]:
            del self._fastest[kind]

    def enqueue(self, request: Request) -> Queue:
        """Add a request to its queue, and return the queue."""
        model = self.models[request.model]
        key = queue_key(request, model)
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = self.new_queue(key, model)
        queue.push(request)
        self._queue_of[request.id] = key
        if self.readmitted_ids:
            self.readmitted_ids.discard(request.id)  # a policy that counts nothing does not ask
        return queue

    def take(self, queue: Queue, count: int, start: int = 0) -> list[Request]:
        """Remove and return `count` requests from position `start` on; an emptied queue is discarded."""
        taken = queue.pop(count, start)
        for request in taken:
            del self._queue_of[request.id]
        self._forget_if_empty(queue)
        return taken

    def dispatch(self, now_ns: int, queue: Queue, count: int, worker: Worker, *, start: int = 0) -> Dispatch:
        """Dispatch `count` requests of a queue, from position `start` on, to a worker as one stage.

        The stage starts at `start_ns(now_ns, worker)`.
        """
        requests = self.take(queue, count, start)
        rows = sum([request.rows for request in requests])
        model = queue.model.name
        stage = Stage(
            worker.id, model, self.start_ns(now_ns, worker), self.profile(model, worker, queue.shape).upper_ns(rows)
        )
        self.idle.occupy(worker.id)
        return Dispatch(Batch(self.new_batch_id(), model, tuple([request.id for request in requests]), (stage,)))

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        """Add the request to its queue, and decide about the queue."""
        return self.queue_changed(event.now_ns, self.enqueue(event.request))

    def on_request_cancelled(self, event: RequestCancelled) -> Commands:
        """Remove the request from its queue, and decide about the queue."""
        queue = self.queues[self._queue_of.pop(event.request_id)]
        queue.remove(event.request_id)
        self._forget_if_empty(queue)
        return self.queue_changed(event.now_ns, queue)

    def on_worker_ready(self, event: WorkerReady) -> Commands:
        """Mark the worker as idle or about to be, and decide about it.

        A worker about to be idle is offered once. Later requests wait until it is idle; otherwise they would overtake
        more urgent ones.
        """
        worker = self.idle.note(event)
        if worker is None:
            return ()
        commands = self.worker_freed(event.now_ns, worker)
        if event.free_ns > event.now_ns:
            self.idle.withdraw(worker.id)
        return commands

    def on_worker_joined(self, event: WorkerJoined) -> Commands:
        """Add the worker, and decide about its queues: it may be faster, or the first that hosts a model."""
        first_of = tuple(part for part in event.worker.hosts if not self.idle.count_hosting(part))
        self.forget_plans(event.worker.hosts)
        self.idle.join(event.worker)
        return [*self.worker_freed(event.now_ns, event.worker), *self._look_again(event.now_ns, first_of)]

    def on_worker_lost(self, event: WorkerLost) -> Commands:
        """Remove the worker, and decide about its queues again, since it may have been the fastest."""
        worker = self.idle.get(event.worker_id)
        self.idle.leave(event.worker_id)
        return self._plan_anew(event.now_ns, worker.hosts if worker else ())

    def on_profile_updated(self, event: ProfileUpdated) -> Commands:
        """Use the new profile, and decide about its queues again."""
        self.profiles[event.profile.key] = event.profile
        return self._plan_anew(event.now_ns, (event.profile.partition,), event.profile.shape)

    def _plan_anew(self, now_ns: int, partitions: tuple[str, ...], shape: str | None = None) -> Commands:
        self.forget_plans(partitions, shape)
        return self._look_again(now_ns, partitions, shape)

    def _look_again(self, now_ns: int, partitions: tuple[str, ...], shape: str | None = None) -> Commands:
        """Reconsider the queues of these partitions; only those of one shape if `shape` is given."""
        affected = [
            queue
            for queue in self.queues.values()
            if queue.model.name in partitions and (shape is None or queue.shape == shape)
        ]
        return [command for queue in affected for command in self.queue_changed(now_ns, queue)]

    def _forget_if_empty(self, queue: Queue) -> None:
        # Merge keys come from clients (shapes): queues that are no longer used must not pile up.
        if not queue:
            self.queues.pop(queue.key, None)
