"""Problem of the planner `subclusters`: the constants of Symphony's Appendix A.1."""

from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tidegate.api import VersionedDocument

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PlannedModel(BaseModel):
    """A model that is assigned to one sub-cluster."""

    model_config = ConfigDict(extra="forbid", frozen=True)
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
        names = [model.name for model in self.models]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"models: {', '.join(sorted(twice))} is there twice; give each model a name of its own")
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
