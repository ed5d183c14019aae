"""Rank thread of Symphony (Appendix D, RankThread): candidates that wait for a worker, most urgent first."""

from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heappush
from math import log

from tidegate.api import NEVER_NS, QueueKey

MAX_SUPERSEDED_ENTRIES = 64
"""Maximum number of superseded entries in a ranking, besides as many as there are candidates."""
DROP_WEIGHT = 1 / 256
"""Weight of the latest request in the moving fraction of dropped requests."""
DURATION_WEIGHT = 1 / 16
"""Weight of the latest batch in the moving mean of batch durations."""
BATCHES_OF_LEAD = 5.0
"""Lead of a batch over one that takes e times as long for each request, in mean durations, if all requests are dropped.

Without the fraction of dropped requests the goodput of ten models that gain from batches is a tenth lower.
"""
Ranking = list[tuple[int, QueueKey]]
"""Heap of (rank in ns, key). Superseded entries stay until they surface."""


class Precedence:
    """Ranks of candidates in ns, smallest first: their latest start, and in overload the worker time per request.

    The earliest deadline first is best while all requests can be on time. If not, it serves requests that are nearly
    late, whatever they cost. Then batches that serve many requests in little time go first, but not before batches that
    have become much more urgent. This is the rule of apparent tardiness cost (Vepsalainen and Morton 1987), whose
    weight grows here with the fraction of dropped requests.
    """

    def __init__(self) -> None:
        self._dropped_fraction = 0.0
        self._mean_ns = 0.0

    @property
    def drops(self) -> bool:
        """Whether requests were dropped, so that ranks depend on the worker time per request."""
        return self._dropped_fraction > 0

    def dropped(self, requests: int) -> None:
        """Count dropped requests."""
        self._dropped_fraction = 1 - (1 - self._dropped_fraction) * (1 - DROP_WEIGHT) ** requests

    def dispatched(self, requests: int, duration_ns: int) -> None:
        """Count a dispatched batch; `duration_ns`: its expected duration in ns."""
        self._dropped_fraction *= (1 - DROP_WEIGHT) ** requests
        self._mean_ns += DURATION_WEIGHT * (duration_ns - self._mean_ns)

    def rank_ns(self, latest_ns: int, worth: float, duration_ns: int) -> int:
        """Return the rank of a candidate in ns.

        Args:
            latest_ns: its latest start in ns; without a deadline NEVER_NS, which remains.
            worth: number of its requests, or how many are expected on time, times the weight of one; more than 0.
            duration_ns: its expected duration in ns.
        """
        scale_ns = BATCHES_OF_LEAD * self._dropped_fraction * self._mean_ns
        if not scale_ns or latest_ns == NEVER_NS:
            return latest_ns
        return latest_ns + round(scale_ns * log(duration_ns / (worth * self._mean_ns)))


class ReadyCandidates:
    """Candidates in the order of their ranks (`Precedence`): O(log candidates) per change.

    Workers that host the same models share a ranking, so no worker has to skip candidates that it cannot run.
    """

    def __init__(self) -> None:
        self._ready: dict[QueueKey, int] = {}
        self._rankings: dict[frozenset[str], Ranking] = {}
        """The rankings, by what workers host; each from the first time on that one of them asks."""

    def put(self, key: QueueKey, rank_ns: int) -> bool:
        """Add or update a queue's candidate with its rank in ns; return False if its rank is unchanged."""
        if self._ready.get(key) == rank_ns:
            return False
        self._ready[key] = rank_ns
        for hosts, ranking in self._rankings.items():
            if key[0] in hosts:
                heappush(ranking, (rank_ns, key))
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
        """Return the queue of the smallest rank whose model the worker hosts; None if there is none.

        `hosts`: partitions of the worker; `tried`: queues to leave out.
        """
        ranking = self._rankings.get(hosts)
        if ranking is None:
            ranking = self._rankings[hosts] = self._ranked(hosts)
        skipped = []
        found = None
        while ranking and found is None:
            rank_ns, key = ranking[0]
            if self._ready.get(key) != rank_ns:
                heappop(ranking)
            elif key in tried:
                skipped.append(heappop(ranking))
            else:
                found = key
        for entry in skipped:
            heappush(ranking, entry)
        return found

    def _ranked(self, hosts: frozenset[str]) -> Ranking:
        ranking = [(rank_ns, key) for key, rank_ns in self._ready.items() if key[0] in hosts]
        heapify(ranking)
        return ranking
