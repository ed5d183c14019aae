"""The plan of the planner `subclusters`: assignment, imbalance and load."""

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

from tidegate.api import Plan
from tidegate_symphony.subclusters_problem import SubclusterProblem

RELATIVE_TOLERANCE = 1e-6
"""Relative tolerance of limits, for floating-point rounding of solvers."""


class SubclusterLoad(BaseModel):
    """Load of one sub-cluster: rate and memory."""

    model_config = ConfigDict(extra="forbid", frozen=True)
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
