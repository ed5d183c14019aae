"""A base for policies that keep one first-in-first-out queue per kind of batch: most of them."""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Iterator
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
from tidegate.toolkit.idle_workers import IdleWorkers

MAX_PASSED = 256
"""So many that wait already a request passes at most: nobody makes the others' queueing slow by being in a hurry."""


class RequestQueue:
    """The waiting requests of one queue key, oldest first."""

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
        """The oldest request. Raises IndexError when the queue is empty."""
        for request in self._requests.values():
            return request
        raise IndexError("the queue is empty")

    def push(self, request: Request) -> None:
        """Queue a request: behind the others, or where its rank puts it, as when it is tried again."""
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
        """Where a request stands in the queue, the smallest first: by its arrival, unless a subclass knows better."""
        return request.arrival_ns

    def pop(self, count: int, start: int = 0) -> list[Request]:
        """Take `count` requests, the oldest first, after the oldest `start`."""
        requests, rows = self._requests, 0
        taken = list(islice(requests.values(), start, start + count))
        for request in taken:
            del requests[request.id]
            rows += request.rows
        self.rows -= rows
        return taken

    def remove(self, request_id: int) -> None:
        """Take one request out, wherever it stands: O(1)."""
        if request := self._requests.pop(request_id, None):
            self.rows -= request.rows

    def prefix_within(self, max_rows: int) -> tuple[int, int]:
        """The longest prefix of at most `max_rows` rows, as (requests, rows). The head is in it, however large."""
        count = rows = 0
        for request in self._requests.values():
            if rows + request.rows > max_rows and count:
                break
            count += 1
            rows += request.rows
        return count, rows


Queue = TypeVar("Queue", bound=RequestQueue, default=RequestQueue)


class QueueingPolicy(Policy, Generic[Queue]):
    """Keeps the queues, the idle workers and the profiles; subclasses decide.

    They fill in `queue_changed`, which is asked too when a timer fires that is named after a queue, and `worker_freed`.
    One that keeps more than requests in its queues derives them from RequestQueue, names the class
    (`QueueingPolicy[MyQueue]`) and makes them in `new_queue`.

    Where a batch has to be on time, gather it for `start_ns(now_ns, worker)`: an idle worker begins now, one that is
    about to be idle a little later.
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
        """The next one knows which requests arrive for the second time; subclasses hand over what they learned."""
        follower = super().migrate(setup)
        follower.readmitted_ids = self.readmitted_ids | self._queue_of.keys()
        return follower

    def new_queue(self, key: QueueKey, model: Model) -> Queue:
        """A queue for requests that can share a batch; it is forgotten when it is empty."""
        return cast("Queue", RequestQueue(key, model))

    @abstractmethod
    def queue_changed(self, now_ns: int, queue: Queue) -> Commands:
        """A request joined this queue or was cancelled, or the workers that host it or their profiles changed."""

    @abstractmethod
    def worker_freed(self, now_ns: int, worker: Worker) -> Commands:
        """A worker became idle, or is about to.

        What is about to be idle runs what it would run if it were idle now, or nothing yet: if others took it from the
        most urgent, because that is not sure to be on time behind the stage that runs, they would come first.
        """

    def on_timer_fired(self, event: TimerFired) -> Commands:
        """Look at the queue anew that the timer is named after (`SetTimer(queue.key, ...)`), unless it is empty."""
        queue = self.queues.get(cast("QueueKey", event.key))
        return self.queue_changed(event.now_ns, queue) if queue else ()

    def start_ns(self, now_ns: int, worker: Worker) -> int:
        """The instant from which on a batch counts that is dispatched to an idle worker now."""
        return self.idle.start_ns(now_ns, worker.id)

    def profile(self, partition: str, worker: Worker, shape: str) -> Profile:
        """How long requests of a shape run through a partition on a worker."""
        return self.profiles[partition, worker.device_class, shape]

    def fastest_profile(self, partition: str, shape: str) -> Profile | None:
        """The best that any worker here could do for requests of a shape; None where no worker hosts the partition."""
        found = self._fastest.get((partition, shape))
        if found is None and (kinds := self.idle.kinds_hosting(partition)):
            found = Profile.quickest(self.profiles[partition, kind, shape] for kind in sorted(kinds))
            self._fastest[partition, shape] = found
        return found

    def forget_plans(self, partitions: Collection[str], shape: str | None = None) -> None:
        """Workers that host these partitions changed, or the profile of one shape of them; None: of any.

        Extend it to drop what was derived from them.
        """
        for kind in [kind for kind in self._fastest if kind[0] in partitions and shape in (None, kind[1])]:
            del self._fastest[kind]

    def enqueue(self, request: Request) -> Queue:
        """Put a request into its queue; returns the queue."""
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
        """Take `count` requests, from the position `start` on, out of a queue; an emptied queue is forgotten."""
        taken = queue.pop(count, start)
        for request in taken:
            del self._queue_of[request.id]
        self._forget_if_empty(queue)
        return taken

    def dispatch(self, now_ns: int, queue: Queue, count: int, worker: Worker, *, start: int = 0) -> Dispatch:
        """Run `count` requests of a queue, from the position `start` on, on an idle worker, at once, in one stage."""
        requests = self.take(queue, count, start)
        rows = sum([request.rows for request in requests])
        model = queue.model.name
        stage = Stage(
            worker.id, model, self.start_ns(now_ns, worker), self.profile(model, worker, queue.shape).upper_ns(rows)
        )
        self.idle.occupy(worker.id)
        return Dispatch(Batch(self.new_batch_id(), model, tuple([request.id for request in requests]), (stage,)))

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        """Queue it."""
        return self.queue_changed(event.now_ns, self.enqueue(event.request))

    def on_request_cancelled(self, event: RequestCancelled) -> Commands:
        """Take it out of its queue."""
        queue = self.queues[self._queue_of.pop(event.request_id)]
        queue.remove(event.request_id)
        self._forget_if_empty(queue)
        return self.queue_changed(event.now_ns, queue)

    def on_worker_ready(self, event: WorkerReady) -> Commands:
        """The worker is idle, or about to be.

        One that is about to be is offered once. What comes after that waits until it is idle: it would else pass what
        is more urgent, and is better off with the idle worker.
        """
        worker = self.idle.note(event)
        if worker is None:
            return ()
        commands = self.worker_freed(event.now_ns, worker)
        if event.free_ns > event.now_ns:
            self.idle.withdraw(worker.id)
        return commands

    def on_worker_joined(self, event: WorkerJoined) -> Commands:
        """The worker is idle; it may be faster than the others, or the first that hosts a model: its queues wait."""
        first_of = tuple(part for part in event.worker.hosts if not self.idle.count_hosting(part))
        self.forget_plans(event.worker.hosts)
        self.idle.join(event.worker)
        return [*self.worker_freed(event.now_ns, event.worker), *self._look_again(event.now_ns, first_of)]

    def on_worker_lost(self, event: WorkerLost) -> Commands:
        """Dispatch to it no more. It may have been faster than the others: its queues are looked at again."""
        worker = self.idle.get(event.worker_id)
        self.idle.leave(event.worker_id)
        return self._plan_anew(event.now_ns, worker.hosts if worker else ())

    def on_profile_updated(self, event: ProfileUpdated) -> Commands:
        """Plan with it from now on: its queues are looked at again."""
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
