"""The global half of Symphony (Appendix D, RankThread): the candidates that wait for a worker, most urgent first."""

from collections.abc import Callable
from heapq import heappop, heappush

from tidegate.api import QueueKey


class ReadyCandidates:
    """Schedulable candidates ranked by how soon they cease to be valid: O(log candidates) per change."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, QueueKey]] = []
        self._ready: dict[QueueKey, int] = {}

    def put(self, key: QueueKey, latest_ns: int) -> bool:
        """A queue's candidate became schedulable, or changed; False: it is ranked so already."""
        if self._ready.get(key) == latest_ns:
            return False
        self._ready[key] = latest_ns
        heappush(self._heap, (latest_ns, key))
        return True

    def discard(self, key: QueueKey) -> None:
        """A queue's candidate is not schedulable any more."""
        self._ready.pop(key, None)

    def holds(self, key: QueueKey) -> bool:
        """Whether a queue's candidate waits for a worker."""
        return key in self._ready

    def most_urgent(self, suits: Callable[[QueueKey], bool]) -> QueueKey | None:
        """The queue with the closest `latest` among those that suit the worker that is free."""
        skipped = []
        found = None
        while self._heap and found is None:
            latest_ns, key = self._heap[0]
            if self._ready.get(key) != latest_ns:
                heappop(self._heap)  # superseded or discarded since
            elif suits(key):
                found = key
            else:
                skipped.append(heappop(self._heap))
        for entry in skipped:
            heappush(self._heap, entry)
        return found
