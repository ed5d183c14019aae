"""The controllers: shares that follow the load.

`share-replanning` divides GPUs anew where what serves no longer bears what comes; `gslice-loop` is GSLICE at run time.
"""

from math import exp
from typing import Annotated, cast

from pydantic import Field

from tidegate.api import PlanningError
from tidegate.api.late_import import imported_late
from tidegate.control import Controller, ControllerOptions, Observation
from tidegate.documents import FromFile, Layout
from tidegate_inss.by_name import EXTRA, OFFERED
from tidegate_inss.present import check_first, problem_now
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
        check_first(self._problem, layout)
        self._spare = options.spare

    def _now(self, observation: Observation) -> ShareProblem:
        return problem_now(self._problem, observation, 1 + self._spare)


class ShareReplanningOptions(ShareControllerOptions):
    """Who plans, and what for besides what comes."""

    usual_s: float = Field(
        default=600.0,
        gt=0,
        description="Rates are usual that came over so many seconds, weighted by how recent; those of the problem are "
        "at first. Models that are asked for less at present keep room for them where there is some",
    )

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
        self._usual_s = options.usual_s
        self._usual_rps = [model.rate_rps for model in self._problem.models]

    def step(self, observation: Observation) -> Layout | None:
        """Other shares where those that serve bear too little. Raises PlanningError where there are none."""
        problem = self._now(observation)
        recent = 1 - exp(-observation.period_ns / 1e9 / self._usual_s)
        self._usual_rps = [
            usual + recent * (model.rate_rps - usual)
            for usual, model in zip(self._usual_rps, problem.models, strict=True)
        ]
        replanned = imported_late("tidegate_inss.replanning:replanned", EXTRA)
        return cast("Layout | None", replanned(problem, self._usual_rps, observation.layout, self._planner))


class GsliceLoop(ShareController):
    """Shares and batches follow latency and throughput; models stay where they are."""

    def step(self, observation: Observation) -> Layout | None:
        """The shares after one more step; None where all are close to their bounds. Raises PlanningError."""
        adjusted = imported_late("tidegate_inss.gslice:adjusted", EXTRA)
        return cast("Layout | None", adjusted(self._now(observation), observation.layout))
