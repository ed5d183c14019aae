"""Planners of MPS shares: the local search, and the algorithms that it is compared with."""

from collections.abc import Sequence

from tidegate.api import PlanningError, Progress
from tidegate.api.late_import import imported_late
from tidegate_inss.build_plan import build_plan
from tidegate_inss.gpulet import plan_gpulets
from tidegate_inss.gslice import plan_gslice
from tidegate_inss.igniter import plan_igniter
from tidegate_inss.plan import SharePlan
from tidegate_inss.prediction import AssignedShare, Predictor
from tidegate_inss.problem import ShareProblem
from tidegate_inss.search import PlacementSearch, placement_of


def plan_shares(problem: ShareProblem, /, *, time_limit_s: float, progress: Progress) -> SharePlan:
    """Plan by local search for at most `time_limit_s` seconds. Raises PlanningError if no model has a share.

    The search also starts from the plan of InSS's networks, where they can make one; the plan is never below theirs.
    """
    predictor = Predictor(problem)
    search = PlacementSearch(predictor)
    proposed = _networks_shares(problem, predictor)
    placement = placement_of(predictor, proposed)[0] if proposed else None
    shares, missing = search.run(time_limit_s=time_limit_s, progress=progress, proposed=placement)
    bound = search.bound if problem.objective == "load" else None
    plan = build_plan(predictor, shares, missing, bound)
    if proposed:
        theirs = build_plan(predictor, proposed, {}, bound)
        return max((plan, theirs), key=lambda each: (min(1.0, each.bears), each.objective))
    return plan


def _networks_shares(problem: ShareProblem, predictor: Predictor) -> Sequence[AssignedShare] | None:
    """The shares of InSS's networks for all models; None without onnxruntime, or where they do not suit the problem."""
    try:
        shares: Sequence[AssignedShare] = imported_late(
            "tidegate_inss.learned.planner:propose", "tidegate-inss[planner]"
        )(problem, predictor)
    except PlanningError:
        return None
    return shares


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
