"""What batches of a model take where it runs, and which requests that leaves time for."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_

from tidegate.api import NEVER, Model, Profile, Request
from tidegate.engine.expectations import Expectations


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model runs: along the widest of its pipelines that workers host."""

    workers: frozenset[int]
    """The workers that run its first leg."""
    legs: tuple[tuple[tuple[str, str], ...], ...]
    """For each of its legs (partition, kind of worker), one for every kind that hosts it."""
    max_rows: int


@dataclass(slots=True)
class _Table:
    """What batches of a model take along its place."""

    version: int
    """The version of the expectations that this follows from."""
    profiles: Sequence[Profile]
    """The profiles that this follows from."""
    table_ns: Sequence[int]
    """What a batch takes, by rows less one, on the workers that are quickest at it, leg by leg."""
    grace_ns: int
    """What all workers of the place do while the largest batch runs."""
    budget_ns: int = -1
    """The time that the latest request had in all that was asked about: most have the same. -1: none was."""
    full_ns: int = 0
    """What the largest batch takes that such a request has time for, as `BatchCosts._full_ns` found."""


class BatchCosts:
    """What batches take of the models that share workers, as is expected at the moment."""

    def __init__(
        self,
        models: Mapping[str, Model],
        places: Mapping[str, Place],
        expectations: Expectations,
        is_best_effort: Callable[[], bool],
    ) -> None:
        """`places`: by model; `is_best_effort`: whether the policy runs what is late."""
        self._models = models
        self._places = places
        self._expectations = expectations
        self._is_best_effort = is_best_effort
        self._tables: dict[str, _Table] = {}
        """By model."""

    def counts_time_of(self, request: Request) -> bool:
        """Whether a request is given up when it cannot be in time."""
        return request.deadline_ns != NEVER and not self._is_best_effort()

    def hopeless_ns(self, request: Request) -> int:
        """From when on a request would be late even alone, as `Gathering.is_hopeless` says."""
        return request.deadline_ns - self._latency_ns(request.model, request.rows) + 1

    def stale_ns(self, request: Request) -> int:
        """From when on a request is in no batch of the size that the load needs."""
        return request.deadline_ns - self._full_ns(request)

    def is_late(self, now_ns: int, request: Request) -> bool:
        """Whether it leaves no time to wait for the next worker and then for a batch as large as the load needs."""
        if not self.counts_time_of(request):
            return False
        full_ns = self._full_ns(request)
        return now_ns + full_ns + full_ns // len(self._places[request.model].workers) > request.deadline_ns

    def grace_ns(self, model: str) -> int:
        """What all workers of a model do while its largest batch runs."""
        return self._table_of(model).grace_ns

    def _full_ns(self, request: Request) -> int:
        """What the largest batch takes whose oldest request has time to wait for the next worker; 0 if none has.

        What `staggered_target` says of a model under overload, here of the time that this request was given.
        """
        table = self._table_of(request.model)
        budget_ns = request.deadline_ns - request.arrival_ns
        if table.budget_ns != budget_ns:
            workers = len(self._places[request.model].workers)
            rows = bisect_right(table.table_ns, budget_ns * workers // (workers + 1))
            table.budget_ns, table.full_ns = budget_ns, table.table_ns[rows - 1] if rows else 0
        return table.full_ns

    def _latency_ns(self, model: str, rows: int) -> int:
        """What a batch takes on the workers that are quickest at it, leg by leg."""
        table_ns = self._table_of(model).table_ns
        return table_ns[min(rows, len(table_ns)) - 1]

    def _table_of(self, model: str) -> _Table:
        known, expectations = self._tables.get(model), self._expectations
        if known and known.version == expectations.version:
            return known
        place, profiles = self._places[model], expectations.profiles
        present = [profiles[key] for leg in place.legs for key in leg]
        if known and all(map(is_, known.profiles, present)):  # those of other models have changed
            table_ns: Sequence[int] = known.table_ns
        else:
            legs = [[profiles[key].table_ns for key in leg] for leg in place.legs]
            table_ns = [sum(min(table[at] for table in leg) for leg in legs) for at in range(place.max_rows)]
        largest_ns = table_ns[min(self._models[model].max_rows, len(table_ns)) - 1]
        table = _Table(expectations.version, present, table_ns, len(place.workers) * largest_ns)
        self._tables[model] = table
        return table
