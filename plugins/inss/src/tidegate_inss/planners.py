"""Planners of MPS shares: the local search, and the algorithms that it is compared with (gpulet, GSLICE, iGniter)."""

from collections.abc import Callable, Sequence

from tidegate.api import PlanningError, Progress
from tidegate.api.late_import import imported_late
from tidegate_inss.gpulet import plan_gpulets
from tidegate_inss.gslice import plan_gslice
from tidegate_inss.igniter import plan_igniter
from tidegate_inss.plan import SharePlan, build_plan
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


def _baseline(
    algorithm: Callable[[Predictor], tuple[list[AssignedShare], dict[int, str]]],
) -> Callable[..., SharePlan]:
    """Return the planner of an algorithm that ignores the time limit."""

    def plan(problem: ShareProblem, /, *, time_limit_s: float, progress: Progress) -> SharePlan:
        predictor = Predictor(problem)
        return build_plan(predictor, *algorithm(predictor), None)

    return plan


plan_by_gpulet, plan_by_gslice, plan_by_igniter = map(_baseline, (plan_gpulets, plan_gslice, plan_igniter))
"""Planners with these algorithms. They raise PlanningError if no model has a share."""
