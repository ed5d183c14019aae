"""Index of running batches that are small enough to preempt, for Shepherd, without a scan at every arrival."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tidegate.api import QueueKey, Request

ByRows = dict[int, set[int]]
"""Worker ids by the rows of the batch that they run."""


@dataclass(frozen=True, slots=True)
class RunningBatch:
    """A running batch and its worker."""

    batch_id: int
    key: QueueKey
    requests: Sequence[Request]
    rows: int
    due_ns: int
    """Earliest deadline among its requests, in ns."""
    may_make_way: bool = True
    """Whether the batch may be preempted; False: one of its requests was preempted before."""


class SmallBatches:
    """Preemptible batches by rows. Batches of the arriving request's own queue are separate: they are worth less."""

    def __init__(self) -> None:
        self._all: ByRows = {}
        self._own: dict[QueueKey, ByRows] = {}
        self._on_time: dict[QueueKey, ByRows] = {}
        """Batches of `_own` that are not known to be too late to begin again."""

    def add(self, worker_id: int, running: RunningBatch) -> None:
        """Add a running batch."""
        for by_rows in self._where(running.key):
            by_rows.setdefault(running.rows, set()).add(worker_id)

    def remove(self, worker_id: int, running: RunningBatch) -> None:
        """Forget a batch that ended, or makes way already."""
        for by_rows in self._where(running.key):
            workers = by_rows.get(running.rows, set())
            workers.discard(worker_id)
            if not workers:
                by_rows.pop(running.rows, None)
        if not self._own[running.key]:
            del self._own[running.key], self._on_time[running.key]

    def of_others(self, key: QueueKey, most_rows: float) -> list[int]:
        """Return workers that run at most `most_rows` rows of other queues: O(batch sizes) if there are none.

        `key`: the queue.
        """
        own = self._own.get(key, {})
        found: list[int] = []
        for rows, workers in self._all.items():
            if rows <= most_rows and len(workers) > len(own.get(rows, ())):
                found.extend(workers - own.get(rows, set()))
        return found

    def of_own(self, key: QueueKey, most_rows: float, late: Callable[[int], bool]) -> list[int]:
        """Return workers that run at most `most_rows` rows of the queue `key`.

        `late(worker_id)`: whether its batch is too late to restart; such batches are not examined again.
        """
        found: list[int] = []
        by_rows = self._on_time.get(key, {})
        for rows in [rows for rows in by_rows if rows <= most_rows]:
            by_rows[rows] = {worker_id for worker_id in by_rows[rows] if not late(worker_id)}
            found.extend(by_rows[rows])
            if not by_rows[rows]:
                del by_rows[rows]
        return found

    def reconsider(self, running: Iterable[tuple[int, RunningBatch]]) -> None:
        """Check these batches again after a change of profiles."""
        for worker_id, batch in running:
            self.add(worker_id, batch)

    def _where(self, key: QueueKey) -> tuple[ByRows, ByRows, ByRows]:
        return self._all, self._own.setdefault(key, {}), self._on_time.setdefault(key, {})
