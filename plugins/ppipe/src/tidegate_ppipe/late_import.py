"""The planners, imported when one runs: policies need neither numpy nor scipy."""

from importlib import import_module
from typing import cast

from tidegate.api import Planner, PlanningError, Progress
from tidegate_ppipe.plan import PpipePlan
from tidegate_ppipe.problem import PpipeProblem


def imported_late(function: str) -> Planner:
    """The planner of this name in `planners`. Raises PlanningError, when it runs, where its libraries are missing."""

    def run(problem: PpipeProblem, /, *, time_limit_s: float, progress: Progress) -> PpipePlan:
        try:
            planners = import_module("tidegate_ppipe.planners")
        except ModuleNotFoundError as error:
            raise PlanningError(f'the planner needs {error.name}: pip install "tidegate-ppipe[planner]"') from error
        return cast("PpipePlan", getattr(planners, function)(problem, time_limit_s=time_limit_s, progress=progress))

    return run
