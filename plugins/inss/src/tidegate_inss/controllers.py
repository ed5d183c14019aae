"""The controllers: shares that follow the load.

`share-replanning` divides GPUs anew where what serves no longer bears what comes; `gslice-loop` is GSLICE at run time.
"""

from typing import Annotated, cast

from pydantic import Field

from tidegate.api import PlanningError
from tidegate.control import Controller, ControllerOptions, Observation
from tidegate.documents import FromFile, Layout
from tidegate_inss.by_name import OFFERED
from tidegate_inss.late_import import imported_late
from tidegate_inss.present import fitting, problem_now
from tidegate_inss.problem import ShareProblem


class ShareControllerOptions(ControllerOptions):
    """Options of both."""

    problem: Annotated[ShareProblem, FromFile()] = Field(
        description="The problem that the first plan was made from, or its path"
    )
    spare: float = Field(default=0.15, ge=0, description="Shares are to bear so much more than what comes")


class ShareController(Controller):
    """What both have in common: the problem, with the rates that come."""

    Options = ShareControllerOptions

    def __init__(self, layout: Layout, options: ShareControllerOptions, *, seed: int = 0) -> None:
        super().__init__(layout, options, seed=seed)
        self._problem = options.problem
        try:
            self._problem.check()  # who cannot plan at all says so before anything starts
        except PlanningError as error:
            raise ValueError(f"problem: {error}") from error
        if wrong := fitting(self._problem, layout):
            raise ValueError(wrong)
        self._spare = options.spare

    def _now(self, observation: Observation) -> ShareProblem:
        return problem_now(self._problem, observation, 1 + self._spare)


class ShareReplanningOptions(ShareControllerOptions):
    """Who plans."""

    planner: str = Field(
        default="shares",
        description=f"One of {', '.join(OFFERED)}; all but `shares`, which moves few models, begin from nothing",
    )


class ShareReplanning(ShareController):
    """Keeps shares as rates are."""

    Options = ShareReplanningOptions

    def __init__(self, layout: Layout, options: ShareReplanningOptions, *, seed: int = 0) -> None:
        super().__init__(layout, options, seed=seed)
        if options.planner not in OFFERED:
            raise ValueError(f"planner: {options.planner!r} plans no shares: give one of {', '.join(OFFERED)}")
        self._planner = options.planner

    def step(self, observation: Observation) -> Layout | None:
        """Other shares where those that serve bear too little. Raises PlanningError where there are none."""
        replanned = imported_late("replanning", "replanned")
        return cast("Layout | None", replanned(self._now(observation), observation.layout, self._planner))


class GsliceLoop(ShareController):
    """Shares and batches follow latency and throughput; models stay where they are."""

    def step(self, observation: Observation) -> Layout | None:
        """The shares after one more step; None where all are close to their bounds. Raises PlanningError."""
        adjusted = imported_late("gslice", "adjusted")
        return cast("Layout | None", adjusted(self._now(observation), observation.layout))
