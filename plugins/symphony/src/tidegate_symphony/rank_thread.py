"""Rank thread of Symphony (Appendix D, RankThread): candidates that wait for a worker, most urgent first."""

from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heappush

from tidegate.api import QueueKey

MAX_SUPERSEDED_ENTRIES = 64
"""Maximum number of superseded entries in a ranking, besides as many as there are candidates."""
Ranking = list[tuple[int, QueueKey]]
"""Heap of (latest start in ns, key). Superseded entries stay until they surface."""


class ReadyCandidates:
    """Candidates ranked by their latest start: O(log candidates) per change.

    Workers that host the same models share a ranking, so no worker has to skip candidates that it cannot run.
    """

    def __init__(self) -> None:
        self._ready: dict[QueueKey, int] = {}
        self._rankings: dict[frozenset[str], Ranking] = {}
        """The rankings, by what workers host; each from the first time on that one of them asks."""

    def put(self, key: QueueKey, latest_ns: int) -> bool:
        """Add or update a queue's candidate with its latest start in ns; return False if its rank is unchanged."""
        if self._ready.get(key) == latest_ns:
            return False
        self._ready[key] = latest_ns
        for hosts, ranking in self._rankings.items():
            if key[0] in hosts:
                heappush(ranking, (latest_ns, key))
                if len(ranking) > 2 * len(self._ready) + MAX_SUPERSEDED_ENTRIES:
                    ranking[:] = self._ranked(hosts)
        return True

    def discard(self, key: QueueKey) -> None:
        """Remove a queue's candidate."""
        self._ready.pop(key, None)

    def holds(self, key: QueueKey) -> bool:
        """Whether a queue's candidate waits for a worker."""
        return key in self._ready

    def most_urgent(self, hosts: frozenset[str], tried: AbstractSet[QueueKey] = frozenset()) -> QueueKey | None:
        """Return the queue with the earliest latest start whose model the worker hosts; None if there is none.

        `hosts`: partitions of the worker; `tried`: queues to leave out.
        """
        ranking = self._rankings.get(hosts)
        if ranking is None:
            ranking = self._rankings[hosts] = self._ranked(hosts)
        skipped = []
        found = None
        while ranking and found is None:
            latest_ns, key = ranking[0]
            if self._ready.get(key) != latest_ns:
                heappop(ranking)
            elif key in tried:
                skipped.append(heappop(ranking))
            else:
                found = key
        for entry in skipped:
            heappush(ranking, entry)
        return found

    def _ranked(self, hosts: frozenset[str]) -> Ranking:
        ranking = [(latest_ns, key) for key, latest_ns in self._ready.items() if key[0] in hosts]
        heapify(ranking)
        return ranking
