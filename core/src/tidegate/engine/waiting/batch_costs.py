"""Latency of a model's batches on its workers, and which requests still have time for them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import is_

from tidegate.api import NEVER_NS, Model, Profile, Request
from tidegate.engine.estimates.expectations import Expectations


@dataclass(frozen=True, slots=True)
class WidestRoute:
    """Route of a model: the pipeline with the largest batches that workers host."""

    workers: frozenset[int]
    """Ids of the workers that run the first stage."""
    stages: tuple[tuple[tuple[str, str], ...], ...]
    """For each stage (partition, device class) for every device class that hosts the partition."""
    max_rows: int


@dataclass(slots=True)
class _Cost:
    """Latency of batches of a model and shape along its route."""

    version: int
    """The version of the expectations that this follows from."""
    profiles: Sequence[Profile]
    """The profiles that this follows from."""
    along: Profile
    """Profile along the fastest workers, stage by stage."""
    grace_ns: int
    """Time in ns for all workers of the route to start a batch while the largest batch runs."""
    budget_ns: int = -1
    """The time that the latest request had in all that was asked about: most have the same. -1: none was."""
    full_ns: int = 0
    """Latency of the largest batch that such a request has time for (`BatchCosts._full_ns`)."""


class BatchCosts:
    """Latency of batches of models that share workers, by the current profiles."""

    def __init__(
        self,
        models: Mapping[str, Model],
        places: Mapping[str, WidestRoute],
        expectations: Expectations,
        is_best_effort: Callable[[str], bool],
    ) -> None:
        """Create the costs of some models.

        `places`: widest route by model. `is_best_effort(model)`: whether the policy also runs late requests of a model.
        """
        self._models = models
        self._places = places
        self._expectations = expectations
        self._is_best_effort = is_best_effort
        self._costs: dict[tuple[str, str], _Cost] = {}
        """Costs of batches by model and shape."""

    def counts_time_of(self, request: Request) -> bool:
        """Whether a request is given up when it will miss its deadline."""
        return request.deadline_ns != NEVER_NS and not self._is_best_effort(request.model)

    def hopeless_ns(self, request: Request) -> int:
        """Return the time in ns from which a request is late even alone (`Profile.lower_bound_ns`)."""
        along = self._cost_of(request.model, request.shape).along
        return request.deadline_ns - along.lower_bound_ns(min(request.rows, along.max_rows)) + 1

    def stale_ns(self, request: Request) -> int:
        """Return the time in ns from which a request fits into no batch of the size that the load needs."""
        return request.deadline_ns - self._full_ns(request)

    def is_late(self, now_ns: int, request: Request) -> bool:
        """Whether a request has no time to wait for the next worker and for a batch of the size that the load needs."""
        if not self.counts_time_of(request):
            return False
        full_ns = self._full_ns(request)
        return now_ns + full_ns + full_ns // len(self._places[request.model].workers) > request.deadline_ns

    def largest_ns(self, models: Collection[str]) -> int:
        """Return the latency in ns of the largest batch of these models, of any shape that was asked about; 0: none."""
        return max(
            (
                cost.grace_ns // len(self._places[key[0]].workers)
                for key, cost in self._costs.items()
                if key[0] in models
            ),
            default=0,
        )

    def full_batch_ns(self, model: str, shape: str) -> int:
        """Return the latency in ns of the largest batch of a model and shape."""
        return self._cost_of(model, shape).grace_ns // len(self._places[model].workers)

    def grace_ns(self, model: str, shape: str) -> int:
        """Return the time in ns between starts if all workers of a model run its largest batch of this shape in
        rotation.
        """
        return self._cost_of(model, shape).grace_ns

    def _full_ns(self, request: Request) -> int:
        """Return the latency of the largest batch whose oldest request has time to wait for the next worker; 0 if none.

        As `staggered_target` computes for a model under overload, for the time that this request has.
        """
        cost = self._cost_of(request.model, request.shape)
        budget_ns = request.deadline_ns - request.arrival_ns
        if cost.budget_ns != budget_ns:
            workers = len(self._places[request.model].workers)
            rows = cost.along.largest_rows_within(budget_ns * workers // (workers + 1))
            cost.budget_ns, cost.full_ns = budget_ns, cost.along.upper_ns(rows) if rows else 0
        return cost.full_ns

    def _cost_of(self, model: str, shape: str) -> _Cost:
        known, expectations = self._costs.get((model, shape)), self._expectations
        if known and known.version == expectations.version:
            return known
        place, profiles = self._places[model], expectations.profiles
        stages = [
            [profiles[partition, device_class, shape] for partition, device_class in stage] for stage in place.stages
        ]
        present = [profile for stage in stages for profile in stage]
        if known and all(map(is_, known.profiles, present)):  # those of other models and shapes have changed
            along = known.along
        else:
            along = Profile.in_sequence(map(Profile.quickest, stages), place.max_rows)
        largest_ns = along.upper_ns(min(self._models[model].max_rows, along.max_rows))
        cost = _Cost(expectations.version, present, along, len(place.workers) * largest_ns)
        self._costs[model, shape] = cost
        return cost
