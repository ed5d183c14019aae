"""Planners of MPS shares: the local search, and the algorithms that it is compared with."""

from tidegate.api import Progress
from tidegate_inss.build_plan import build_plan
from tidegate_inss.gpulet import plan_gpulets
from tidegate_inss.gslice import plan_gslice
from tidegate_inss.igniter import plan_igniter
from tidegate_inss.plan import SharePlan
from tidegate_inss.prediction import Predictor
from tidegate_inss.problem import ShareProblem
from tidegate_inss.search import PlacementSearch


def plan_shares(problem: ShareProblem, /, *, time_limit_s: float, progress: Progress) -> SharePlan:
    """Plan by local search for at most `time_limit_s` seconds. Raises PlanningError if no model has a share."""
    predictor = Predictor(problem)
    search = PlacementSearch(predictor)
    shares, missing = search.run(time_limit_s=time_limit_s, progress=progress)
    return build_plan(predictor, shares, missing, search.bound if problem.objective == "load" else None)


def plan_by_gpulet(problem: ShareProblem, /, *, time_limit_s: float, progress: Progress) -> SharePlan:
    """Plan with gpulet's algorithm, which ignores the time limit. Raises PlanningError if no model has a share."""
    del time_limit_s, progress
    predictor = Predictor(problem)
    return build_plan(predictor, *plan_gpulets(predictor), None)


def plan_by_gslice(problem: ShareProblem, /, *, time_limit_s: float, progress: Progress) -> SharePlan:
    """Plan with GSLICE's loop, which ignores the time limit. Raises PlanningError if no model has a share."""
    del time_limit_s, progress
    predictor = Predictor(problem)
    return build_plan(predictor, *plan_gslice(predictor), None)


def plan_by_igniter(problem: ShareProblem, /, *, time_limit_s: float, progress: Progress) -> SharePlan:
    """Plan with iGniter's algorithm, which ignores the time limit. Raises PlanningError if no model has a share."""
    del time_limit_s, progress
    predictor = Predictor(problem)
    return build_plan(predictor, *plan_igniter(predictor), None)
