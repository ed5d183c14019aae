"""A controller that plans anew when the rates have drifted from those that the plan was made for (section 5.4).

The new partitions are loaded beside the old ones while those serve; then what runs is finished, and everything else
switches at once: the flush of the paper without its pause.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, cast

from pydantic import Field

from tidegate.api.late_import import imported_late
from tidegate.control import Controller, ControllerOptions, Observation
from tidegate.control.rates import check_models, have_drifted
from tidegate.schemas import Layout, PathField
from tidegate_ppipe.layout import layout_of
from tidegate_ppipe.problem import PpipeProblem

if TYPE_CHECKING:
    from tidegate_ppipe.plan import PpipePlan

MIN_SHARE = 0.01
"""The share of the load that a plan expects of a model at least, though nobody asks for it at present."""


class ReplanningOptions(ControllerOptions):
    """Options of the controller that plans again."""

    problem: Annotated[PpipeProblem, PathField()] = Field(
        description="The problem that the first plan was made from, or its path: GPUs, models, profiles, objective"
    )
    drift: float = Field(
        default=0.2, gt=0, description="Plan anew when a model's rate, or its part of the load, is off by this share"
    )
    spare: float = Field(
        default=0.2, ge=0, description="For the objectives cost and power: plan for so much more than what comes"
    )
    time_limit_s: float = Field(default=10.0, gt=0, description="For the planner")


class Replanning(Controller):
    """Controller that plans again when the rates drift from the plan's."""

    Options = ReplanningOptions

    def __init__(self, layout: Layout, options: ReplanningOptions, *, seed: int = 0) -> None:
        super().__init__(layout, options, seed=seed)
        self._problem = options.problem
        check_models((model.name for model in self._problem.models), layout)
        self._drift, self._spare, self._time_limit_s = options.drift, options.spare, options.time_limit_s
        self._is_of_parts = self._problem.objective == "throughput"
        self._planned_for: Mapping[str, float] = {
            model.name: model.weight if self._is_of_parts else (model.rate_rps or 0.0) / (1 + self._spare)
            for model in self._problem.models
        }
        """The rates, or the parts of the load, of the plan that serves, by model."""
        self._proposed: tuple[Layout, Mapping[str, float]] | None = None
        """The layout that was given last, and the rates that it was made for: it may have been refused, or undone."""

    def step(self, observation: Observation) -> Layout | None:
        """Return a new layout if the rates have drifted. Raises PlanningError if there is none."""
        rates_rps = {name: load.rate_rps for name, load in observation.models.items()}
        total_rps = sum(rates_rps.values())
        if self._proposed is not None and _bears(self._proposed[0]) == _bears(observation.layout):
            self._planned_for = self._proposed[1]
        if not total_rps or not self._has_drifted(rates_rps, observation.period_ns / 1e9):
            return None
        least_rps = MIN_SHARE * total_rps
        rates_rps = {name: max(rate, least_rps) for name, rate in rates_rps.items()}
        changes = {
            name: {"weight": rate} if self._is_of_parts else {"rate_rps": rate * (1 + self._spare)}
            for name, rate in rates_rps.items()
        }
        models = tuple(model.model_copy(update=changes[model.name]) for model in self._problem.models)
        problem = self._problem.model_copy(update={"models": models})
        plan_ppipe = imported_late("tidegate_ppipe.planners:plan_ppipe", "tidegate-ppipe[planner]")
        plan = plan_ppipe(problem, time_limit_s=self._time_limit_s, progress=_no_clock)
        layout = layout_of(problem, cast("PpipePlan", plan))
        self._proposed = layout, rates_rps
        return layout

    def _has_drifted(self, rates_rps: Mapping[str, float], period_s: float) -> bool:
        """Whether some model's rate is off, by more than chance explains."""
        total_rps, planned_for = sum(rates_rps.values()), sum(self._planned_for.values())
        scale = total_rps / planned_for if self._is_of_parts else 1.0
        expected_rps = {name: planned * scale for name, planned in self._planned_for.items()}
        return have_drifted(rates_rps, expected_rps, period_s, drift=self._drift)


def _no_clock(*, objective: float | None = None, bound: float | None = None) -> float:
    """A controller has no clock: of the time limit only the solver keeps its part."""
    del objective, bound
    return 0.0


def _bears(layout: Layout) -> dict[str, object]:
    """Return the key that distinguishes plans: served rates and pipelines."""
    return {model.name: (model.rate_rps, model.pipelines) for model in layout.models}
