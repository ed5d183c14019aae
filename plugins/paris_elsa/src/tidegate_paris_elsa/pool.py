"""Pools of equal workers, with a search for the one with the least work in logarithmic time."""

from heapq import heappop, heappush

from tidegate.api import NEVER_NS, Worker
from tidegate_paris_elsa.worker_queue import Tournament, WorkerQueue


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
