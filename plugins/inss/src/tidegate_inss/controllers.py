"""Controllers of MPS shares, which follow the load.

`share-replanning` divides GPUs again when current shares cannot sustain the rates; `gslice-loop` is GSLICE at run time.
"""

from collections.abc import Mapping
from typing import Annotated, NamedTuple, cast

from pydantic import Field

from tidegate.api import PlanningError
from tidegate.api.late_import import imported_late
from tidegate.control import Controller, ControllerOptions, Observation
from tidegate.control.rates import SteadyRates
from tidegate.schemas import Layout, PathField
from tidegate_inss.layout import check_first, problem_with
from tidegate_inss.planner_registry import PLANNER_EXTRA, SHARE_PLANNERS
from tidegate_inss.problem import ShareProblem

RATE_TOLERANCE = 0.03
"""Relative difference of rates up to which a plan is reused."""


class ShareControllerOptions(ControllerOptions):
    """Options that both controllers share."""

    problem: Annotated[ShareProblem, PathField()] = Field(description="Problem of the initial plan, or its path")
    spare: float = Field(default=0.15, ge=0, description="Spare capacity as a fraction of the arrival rate")


class ShareController(Controller):
    """Base class of both controllers: keeps the problem with current rates."""

    Options = ShareControllerOptions

    def __init__(self, layout: Layout, options: ShareControllerOptions, *, seed: int = 0) -> None:
        super().__init__(layout, options, seed=seed)
        self._problem = options.problem
        try:
            self._problem.check()  # who cannot plan at all says so before anything starts
        except PlanningError as error:
            raise ValueError(f"problem: {error}") from error
        check_first(self._problem, layout)
        self._spare = options.spare
        self._rates = SteadyRates()

    def _now(self, observation: Observation) -> ShareProblem:
        rows_per_s = {name: load.rows_per_s for name, load in observation.models.items()}
        steady = self._rates.observe(rows_per_s, observation.period_ns / 1e9)
        return problem_with(self._problem, {name: rate * (1 + self._spare) for name, rate in steady.items()})


class ShareReplanningOptions(ShareControllerOptions):
    """Options of the controller `share-replanning`."""

    planner: str = Field(
        default="shares",
        description=f"Planner: {', '.join(SHARE_PLANNERS)}; only `shares` starts from the current placement",
    )
    min_gain: float = Field(
        default=0.05, ge=0, lt=10, description="Minimum gain of a change in predicted load, as a fraction"
    )


class ShareReplanning(ShareController):
    """Controller that keeps shares in proportion to rates by planning again."""

    Options = ShareReplanningOptions

    def __init__(self, layout: Layout, options: ShareReplanningOptions, *, seed: int = 0) -> None:
        super().__init__(layout, options, seed=seed)
        if options.planner not in SHARE_PLANNERS:
            raise ValueError(f"planner: {options.planner!r} plans no shares: give one of {', '.join(SHARE_PLANNERS)}")
        self._planner, self._min_gain = options.planner, options.min_gain
        self._planned: _Planned | None = None

    def step(self, observation: Observation) -> Layout | None:
        """Return a new layout if the current shares cannot serve the rates. Raises PlanningError if there is none."""
        problem = self._now(observation)
        rates_rps = {model.name: model.rate_rps for model in problem.models}
        if self._planned is None or not self._planned.is_for(observation.layout, rates_rps):
            replanned = imported_late("tidegate_inss.replanning:replanned", PLANNER_EXTRA)
            layout = replanned(problem, observation.layout, self._planner, min_gain=self._min_gain)
            self._planned = _Planned(observation.layout, rates_rps, layout)
        return self._planned.layout


class _Planned(NamedTuple):
    """Last plan and its input: it is reused while the input stays the same."""

    present: Layout
    rates_rps: Mapping[str, float]
    layout: Layout | None

    def is_for(self, present: Layout, rates_rps: Mapping[str, float]) -> bool:
        """Whether the same serves still, and as much comes."""
        return present == self.present and all(
            abs(rate - before) <= RATE_TOLERANCE * before
            for rate, before in zip(rates_rps.values(), self.rates_rps.values(), strict=True)
        )


class GsliceLoop(ShareController):
    """Controller that adapts shares and batch sizes to latency and throughput; models stay on their GPUs."""

    def step(self, observation: Observation) -> Layout | None:
        """Return the shares after one more step; None if all are close to their bounds. Raises PlanningError."""
        adjusted = imported_late("tidegate_inss.gslice:adjusted", PLANNER_EXTRA)
        return cast("Layout | None", adjusted(self._now(observation), observation.layout))
