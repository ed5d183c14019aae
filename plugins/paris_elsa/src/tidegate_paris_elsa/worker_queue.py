"""Queue of one worker: the running batch, the waiting ones, their total duration; and pools of equal workers."""

from collections.abc import Iterator
from heapq import heappop, heappush

from tidegate.api import NEVER_NS, Profile, QueueKey, Request, Worker


class QueuedBatch:
    """Requests of one queue that run together: one, unless small ones are merged."""

    __slots__ = ("key", "requests", "rows")

    def __init__(self, key: QueueKey, request: Request) -> None:
        self.key = key
        self.requests = {request.id: request}
        self.rows = request.rows

    @property
    def due_ns(self) -> int:
        """Earliest deadline of its requests, in ns."""
        return min(request.deadline_ns for request in self.requests.values())


class WorkerQueue:
    """Queue of one worker, first in, first out.

    Durations are those of the profile at the last change of a batch of the same model and shape, so that a profile
    update, which may follow every stage, need not visit all queues.
    """

    __slots__ = ("_profiles", "_rows", "_tasks", "ends_ns", "place", "queued_ns", "ready", "worker")

    def __init__(self, worker: Worker, place: int) -> None:
        self.worker = worker
        self.place = place
        """Where it stands among equal workers."""
        self.ready = True
        """Whether it may be given a task now; then nothing waits."""
        self.ends_ns = 0
        """When what it runs is expected to be over; in the past where it idles, or runs longer than was expected."""
        self.queued_ns = 0
        """How long all that waits is expected to run."""
        self._tasks: dict[QueuedBatch, None] = {}
        self._rows: dict[tuple[str, str], dict[int, int]] = {}
        """Number of waiting tasks by model, shape and rows."""
        self._profiles: dict[tuple[str, str], Profile] = {}
        """Profiles that value queued batches."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._tasks

    def __iter__(self) -> Iterator[QueuedBatch]:
        return iter(self._tasks)

    @property
    def first(self) -> QueuedBatch:
        """Return the first batch. Raises StopIteration if the queue is empty."""
        return next(iter(self._tasks))

    @property
    def last(self) -> QueuedBatch:
        """Return the last batch. Raises StopIteration if the queue is empty."""
        return next(reversed(self._tasks))

    def push(self, task: QueuedBatch, profile: Profile) -> None:
        """Append a batch; `profile`: its latency on the worker."""
        self._tasks[task] = None
        self._count(task, 1, profile)

    def remove(self, task: QueuedBatch, profile: Profile) -> None:
        """Remove a batch that runs or is dropped; `profile`: its latency on the worker."""
        del self._tasks[task]
        self._count(task, -1, profile)

    def join(self, task: QueuedBatch, request: Request, profile: Profile) -> None:
        """Add a request to a waiting batch."""
        self._count(task, -1, profile)
        task.requests[request.id] = request
        task.rows += request.rows
        self._count(task, 1, profile)

    def leave(self, task: QueuedBatch, request_id: int, profile: Profile) -> None:
        """Remove a request from a waiting batch; an empty batch is removed. `profile`: latency on the worker."""
        self._count(task, -1, profile)
        task.rows -= task.requests.pop(request_id).rows
        if task.requests:
            self._count(task, 1, profile)
        else:
            del self._tasks[task]

    def _count(self, task: QueuedBatch, change: int, profile: Profile) -> None:
        """Count this many more waiting tasks like this one."""
        model_and_shape = task.key[:2]
        counts = self._rows.setdefault(model_and_shape, {})
        before = self._profiles.get(model_and_shape, profile)
        if before is not profile:
            self.queued_ns += sum(
                count * (profile.expected_ns(rows) - before.expected_ns(rows)) for rows, count in counts.items()
            )
        self._profiles[model_and_shape] = profile
        self.queued_ns += change * profile.expected_ns(task.rows)
        count = counts.get(task.rows, 0) + change
        if count:
            counts[task.rows] = count
            return
        del counts[task.rows]
        if not counts:  # shapes come from clients: those that are no longer used must not pile up
            del self._rows[model_and_shape], self._profiles[model_and_shape]


class Tournament:
    """Tournament tree over places 0, 1, 2, ... with a number each; NEVER_NS by default.

    Operations take O(log places).
    """

    __slots__ = ("_least", "_size")

    def __init__(self) -> None:
        self._size = 1
        self._least = [NEVER_NS, NEVER_NS]
        """A binary tree in an array: the root at 1, below node n the nodes 2n and 2n + 1, the places at the bottom."""

    @property
    def least(self) -> int:
        """Smallest number; NEVER_NS if none is set."""
        return self._least[1]

    def __setitem__(self, place: int, number: int) -> None:
        """Set the number of a place; NEVER_NS: it has none."""
        while place >= self._size:
            self._grow()
        least, node = self._least, self._size + place
        if least[node] == number:
            return
        least[node] = number
        while node > 1:
            number = min(number, least[node ^ 1])
            node >>= 1
            if least[node] == number:
                return
            least[node] = number

    def first_within(self, limit: int) -> int | None:
        """Return the first place whose number is at most `limit`, which is below NEVER_NS; None if there is none."""
        least, node = self._least, 1
        if least[1] > limit:
            return None
        while node < self._size:
            node *= 2
            if least[node] > limit:
                node += 1
        return node - self._size

    def _grow(self) -> None:
        bottom = self._least[self._size :]
        self._size *= 2
        self._least = [NEVER_NS] * self._size + bottom + [NEVER_NS] * len(bottom)
        for node in range(self._size - 1, 0, -1):
            self._least[node] = min(self._least[2 * node], self._least[2 * node + 1])


class WorkerPool:
    """Workers of one device class that host the same partitions.

    The wait at a worker (T_wait, equation 1) decreases with time while the worker runs as expected; it is 0 if the
    worker is idle. An overdue stage is expected to last for another time equal to its delay. (In the paper it is
    expected to end at once, so a hanging worker would attract all requests.)
    """

    def __init__(self, like: Worker) -> None:
        self.like = like
        """One of them."""
        self.hosts = frozenset(like.hosts)
        self.count = 0
        self._lines: list[WorkerQueue | None] = []
        self._free: list[int] = []
        """Free places."""
        self._ends_ns: list[int] = []
        """The end of what each place's worker runs that `_running` knows."""
        self._running: list[tuple[int, int]] = []
        """(instant, place): when what a worker runs is expected to be over, or was, before it changed."""
        self._done = Tournament()
        """The instants at which workers are done that run as expected."""
        self._idle = Tournament()
        """Nothing, for workers that idle."""
        self._late = Tournament()
        """How long what waits for workers that run longer takes, less the instant at which they were to be done."""
        self.stuck: dict[WorkerQueue, None] = {}
        """The lines of those where something waits."""

    def join(self, worker: Worker) -> WorkerQueue:
        """Add an idle worker, and return its queue."""
        place = heappop(self._free) if self._free else len(self._lines)
        line = WorkerQueue(worker, place)
        if place == len(self._lines):
            self._lines.append(line)
            self._ends_ns.append(0)
        else:
            self._lines[place] = line
        self.count += 1
        self._idle[place] = 0
        return line

    def leave(self, line: WorkerQueue) -> None:
        """Remove a worker that is gone."""
        place = line.place
        self._lines[place] = None
        self._done[place] = self._idle[place] = self._late[place] = NEVER_NS
        self.stuck.pop(line, None)
        heappush(self._free, place)
        self.count -= 1

    def changed(self, now_ns: int, line: WorkerQueue) -> None:
        """Update the pool after a change of a worker's batch or queue at `now_ns`."""
        place = line.place
        runs, idles = line.ends_ns > now_ns, line.ready
        self._done[place] = line.ends_ns + line.queued_ns if runs else NEVER_NS
        self._idle[place] = 0 if idles and not runs else NEVER_NS
        self._late[place] = NEVER_NS if idles or runs else line.queued_ns - line.ends_ns
        if runs and self._ends_ns[place] != line.ends_ns:
            self._ends_ns[place] = line.ends_ns
            heappush(self._running, (line.ends_ns, place))
        if idles or runs or line.is_empty:
            self.stuck.pop(line, None)
        else:
            self.stuck[line] = None

    def least_wait(self, now_ns: int) -> tuple[int, WorkerQueue] | None:
        """Return the least T_wait in ns, and the first worker with it; None if there is no worker."""
        self.look_again(now_ns)
        if not self.count:
            return None
        wait_ns = max(0, min(self._idle.least, self._done.least - now_ns, self._late.least + now_ns))
        places = (
            self._idle.first_within(wait_ns),
            self._done.first_within(now_ns + wait_ns),
            self._late.first_within(wait_ns - now_ns),
        )
        line = self._lines[min(place for place in places if place is not None)]
        assert line is not None, "a place without a worker has a number"
        return wait_ns, line

    def look_again(self, now_ns: int) -> None:
        """Update workers whose batch should have ended: it did, or it is overdue."""
        running = self._running
        while running and running[0][0] <= now_ns:
            _, place = heappop(running)
            if line := self._lines[place]:
                self.changed(now_ns, line)
