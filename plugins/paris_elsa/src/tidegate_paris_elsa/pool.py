"""Equal workers, and which of them has the least to do: found in logarithmic time."""

from heapq import heappop, heappush

from tidegate.api import NEVER, Worker
from tidegate_paris_elsa.line import Line
from tidegate_paris_elsa.tournament import Tournament


class Pool:
    """Workers of one kind that host the same.

    How long a request would wait at a worker (T_wait, equation 1) falls with time while the worker runs as expected,
    and stays where it idles or runs longer: the former are kept by the instant at which they are done with all that
    they have, the latter by how long what waits takes.
    """

    def __init__(self, like: Worker) -> None:
        self.like = like
        """One of them."""
        self.hosts = frozenset(like.hosts)
        self.count = 0
        self._lines: list[Line | None] = []
        self._free: list[int] = []
        """Places that nobody has."""
        self._ends_ns: list[int] = []
        """The end of what each place's worker runs that `_running` knows."""
        self._running: list[tuple[int, int]] = []
        """(instant, place): when what a worker runs is expected to be over, or was, before it changed."""
        self._done = Tournament()
        """The instants at which workers are done that run as expected."""
        self._queued = Tournament()
        """How long what waits for the others takes."""

    def join(self, worker: Worker) -> Line:
        """A worker appeared; it is idle. Returns its line."""
        place = heappop(self._free) if self._free else len(self._lines)
        line = Line(worker, place)
        if place == len(self._lines):
            self._lines.append(line)
            self._ends_ns.append(0)
        else:
            self._lines[place] = line
        self.count += 1
        self._queued[place] = 0
        return line

    def leave(self, line: Line) -> None:
        """A worker is gone."""
        self._lines[line.place] = None
        self._done[line.place] = self._queued[line.place] = NEVER
        heappush(self._free, line.place)
        self.count -= 1

    def changed(self, now_ns: int, line: Line) -> None:
        """What a worker runs, or what waits for it, is something else."""
        place = line.place
        if line.ends_ns > now_ns:
            self._queued[place] = NEVER
            self._done[place] = line.ends_ns + line.queued_ns
            if self._ends_ns[place] != line.ends_ns:
                self._ends_ns[place] = line.ends_ns
                heappush(self._running, (line.ends_ns, place))
        else:
            self._done[place] = NEVER
            self._queued[place] = line.queued_ns

    def least_wait(self, now_ns: int) -> tuple[int, Line] | None:
        """The least T_wait, and the first worker that has it; None where there is no worker."""
        running = self._running
        while running and running[0][0] <= now_ns:  # is over by now, or runs longer than was expected
            _, place = heappop(running)
            if line := self._lines[place]:
                self.changed(now_ns, line)
        if not self.count:
            return None
        wait_ns = min(self._queued.least, self._done.least - now_ns)
        places = self._queued.first_within(wait_ns), self._done.first_within(now_ns + wait_ns)
        line = self._lines[min(place for place in places if place is not None)]
        assert line is not None, "nobody's place has a number"
        return wait_ns, line
