"""Problem and plan of the planner `subclusters`: the constants of Symphony's Appendix A.1; assignment and load."""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tidegate.api import Plan, VersionedDocument
from tidegate.api.planner import DocumentSection
from tidegate.schemas.validation_errors import check_each_once

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PlannedModel(DocumentSection):
    """A model that is assigned to one sub-cluster."""

    name: str = Field(min_length=1)
    rate_rps: Amount
    """`r_i`: expected requests per second."""
    static_mib: Amount
    """`s_i`: memory in MiB on each worker of its sub-cluster while it is loaded."""
    dynamic_mib: Amount = 0.0
    """`d_i`: additional memory in MiB while it runs; only one model runs at a time."""
    move_cost: Amount | tuple[Amount, ...] = 1.0
    """`c_ij`: cost of loading or unloading it at a sub-cluster, in any unit; or one for each sub-cluster."""

    def cost_at(self, subcluster: int) -> float:
        """Return the cost `c_ij` of loading the model at a sub-cluster."""
        return self.move_cost[subcluster] if isinstance(self.move_cost, tuple) else self.move_cost


class SubclusterProblem(VersionedDocument):
    """Problem of the planner: models to assign to sub-clusters."""

    kind: Literal["subclusters"] = "subclusters"
    subclusters: int = Field(ge=1)
    """`l`: number of sub-clusters."""
    models: tuple[PlannedModel, ...] = Field(min_length=1)
    max_rate_rps: Amount
    """`R_max`: requests per second that the scheduler of one sub-cluster sustains (equation 4)."""
    max_memory_mib: Amount
    """`S_max`: memory of a worker, in MiB (equation 5)."""
    weight: Amount | None = None
    """`w`: requests per second that 1 MiB of imbalance counts as (equation 3). None: R/S, which balances both."""
    previous: dict[str, Annotated[int, Field(ge=0)]] | None = None
    """`x'_ij`: current assignment {name: sub-cluster}, i.e. `assignment` of the previous plan."""
    max_move_cost: Amount | None = None
    """`C_max`: maximum cost of all loading and unloading (equation 10); None: no limit."""
    solver: Literal["highs", "cbc"] = "highs"
    """Name of the solver that `subclusters` uses."""
    seed: int = 0
    """Seed of `subclusters-random`."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_each_once("models", (model.name for model in self.models), "give each a name of its own")
        for model in self.models:
            if isinstance(model.move_cost, tuple) and len(model.move_cost) != self.subclusters:
                raise ValueError(
                    f"models: move_cost of {model.name} has {len(model.move_cost)} entries; "
                    f"give one number, or one for each of the {self.subclusters} sub-clusters"
                )
        if self.max_move_cost is not None and self.previous is None:
            raise ValueError("max_move_cost: it bounds the change from `previous`, which is missing; give both")
        return self

    @cached_property
    def mean_rate_rps(self) -> float:
        """Mean rate R of a sub-cluster, in requests per second."""
        return sum(model.rate_rps for model in self.models) / self.subclusters

    @cached_property
    def mean_static_mib(self) -> float:
        """Mean static memory S of a sub-cluster, in MiB."""
        return sum(model.static_mib for model in self.models) / self.subclusters

    @cached_property
    def weight_or_even(self) -> float:
        """Weight `w`, as given or such that a fraction of R counts as much as the same fraction of S."""
        if self.weight is not None:
            return self.weight
        return self.mean_rate_rps / self.mean_static_mib if self.mean_static_mib else 0.0

    def home(self, model: PlannedModel) -> int | None:
        """Return the current sub-cluster of a model; None for a new model or a removed sub-cluster."""
        home = (self.previous or {}).get(model.name)
        return home if home is not None and home < self.subclusters else None


RELATIVE_TOLERANCE = 1e-6
"""Relative tolerance of limits, for floating-point rounding of solvers."""


class SubclusterLoad(DocumentSection):
    """Load of one sub-cluster: rate and memory."""

    models: int
    rate_rps: float
    """Requests per second of its models together."""
    static_mib: float
    """Static memory of its models together, in MiB."""
    memory_mib: float
    """Memory that a worker needs, in MiB: static memory plus the largest dynamic memory of a model (equation 5)."""


class SubclusterPlan(Plan):
    """Plan of models in sub-clusters. `objective` is `dR + w*dS` (equation 3) in requests/s: less is better."""

    kind: Literal["subclusters"] = "subclusters"
    assignment: dict[str, int]
    """{model: its sub-cluster}; `previous` of the next problem."""
    rate_imbalance: float
    """Imbalance factor (max - min) / mean over the sub-clusters' rates (Appendix A.2)."""
    memory_imbalance: float
    """Imbalance factor of their static memory."""
    move_cost: float | None
    """Cost of loading and unloading, relative to a previous plan (left side of equation 10)."""
    subclusters: tuple[SubclusterLoad, ...]

    @classmethod
    def of(cls, problem: SubclusterProblem, assignment: Sequence[int], bound: float | None) -> Self:
        """Create the plan that assigns each of the problem's models, in order, to a sub-cluster.

        `assignment`: number of each model's sub-cluster. `bound`: lower bound of the objective; None: unknown.
        """
        loads = loads_of(problem, assignment)
        value = objective(problem, loads)
        whole = problem.mean_rate_rps + problem.weight_or_even * problem.mean_static_mib
        if bound is not None and bound > value - RELATIVE_TOLERANCE * whole:
            bound = value  # they differ by the solver's rounding only
        return cls(
            objective=value,
            bound=bound,
            assignment={model.name: place for model, place in zip(problem.models, assignment, strict=True)},
            rate_imbalance=_imbalance([load.rate_rps for load in loads]),
            memory_imbalance=_imbalance([load.static_mib for load in loads]),
            move_cost=None if problem.previous is None else move_cost(problem, assignment),
            subclusters=tuple(loads),
        )

    @property
    def summary(self) -> str:
        """Imbalance factors and cost of the move."""
        moved = "" if self.move_cost is None else f", cost of the change {self.move_cost:g}"
        return f"imbalance of rate {self.rate_imbalance:.2%}, of memory {self.memory_imbalance:.2%}{moved}"

    @property
    def table(self) -> list[dict[str, str]]:
        """One row for each sub-cluster."""
        return [
            {
                "sub-cluster": str(number),
                "models": str(load.models),
                "rate /s": f"{load.rate_rps:,.1f}",
                "static MiB": f"{load.static_mib:,.1f}",
                "with dynamic MiB": f"{load.memory_mib:,.1f}",
            }
            for number, load in enumerate(self.subclusters)
        ]


def loads_of(problem: SubclusterProblem, assignment: Sequence[int]) -> list[SubclusterLoad]:
    """Return the load of each sub-cluster."""
    count, rate, static, dynamic = ([0.0] * problem.subclusters for _ in range(4))
    for model, place in zip(problem.models, assignment, strict=True):
        count[place] += 1
        rate[place] += model.rate_rps
        static[place] += model.static_mib
        dynamic[place] = max(dynamic[place], model.dynamic_mib)
    return [
        SubclusterLoad.model_construct(models=int(n), rate_rps=r, static_mib=s, memory_mib=s + d)
        for n, r, s, d in zip(count, rate, static, dynamic, strict=True)
    ]


def objective(problem: SubclusterProblem, loads: Sequence[SubclusterLoad]) -> float:
    """Return `dR + w*dS` (equations 3, 6 and 7), in requests per second."""
    rate = max(abs(load.rate_rps - problem.mean_rate_rps) for load in loads)
    static = max(abs(load.static_mib - problem.mean_static_mib) for load in loads)
    return rate + problem.weight_or_even * static


def move_cost(problem: SubclusterProblem, assignment: Sequence[int]) -> float:
    """Return the cost of loading and unloading (left side of equation 10).

    Loading new models counts; unloading removed models, or from removed sub-clusters, does not.
    """
    total = 0.0
    for model, place in zip(problem.models, assignment, strict=True):
        home = problem.home(model)
        if place != home:
            total += model.cost_at(place) + (0.0 if home is None else model.cost_at(home))
    return total


def limit_broken(problem: SubclusterProblem, assignment: Sequence[int], loads: Sequence[SubclusterLoad]) -> str | None:
    """Return the problem's field with the first limit that an assignment violates; None if it violates none."""
    used = {
        "max_rate_rps": max(load.rate_rps for load in loads),
        "max_memory_mib": max(load.memory_mib for load in loads),
        "max_move_cost": 0.0 if problem.max_move_cost is None else move_cost(problem, assignment),
    }
    for field, amount in used.items():
        limit = getattr(problem, field)
        if limit is not None and amount > limit * (1 + RELATIVE_TOLERANCE) + 1e-9:
            return field
    return None


def _imbalance(amounts: Sequence[float]) -> float:
    mean = sum(amounts) / len(amounts)
    return (max(amounts) - min(amounts)) / mean if mean else 0.0
