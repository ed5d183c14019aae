"""Controller that plans again when the rates have drifted from those of the plan (section 5.4).

New partitions are loaded beside the serving ones; then running batches finish, and everything switches at once: the
paper's flush without its pause.
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
"""Minimum fraction of the load that a plan assumes for a model."""


class ReplanningOptions(ControllerOptions):
    """Options of the controller `ppipe-replanning`."""

    problem: Annotated[PpipeProblem, PathField()] = Field(
        description="Problem of the initial plan, or its path: GPUs, models, profiles, objective"
    )
    drift: float = Field(
        default=0.2,
        gt=0,
        description="Relative change of a model's rate, or of its fraction of the load, from which to plan again",
    )
    spare: float = Field(
        default=0.2, ge=0, description="Objectives cost and power: spare capacity as a fraction of the arrival rate"
    )
    time_limit_s: float = Field(default=10.0, gt=0, description="Seconds that the planner may search")


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
