"""The planner `subclusters` and its baseline: assign models to sub-clusters, evenly (Symphony, Appendix A)."""

import random
from collections import Counter

from tidegate.api import PlanningError, Progress
from tidegate_symphony.subclusters_milp import Limit, solve
from tidegate_symphony.subclusters_plan import SubclusterPlan, SubclusterProblem, limit_broken, loads_of, objective
from tidegate_symphony.subclusters_start import start_from

START_SHARE = 0.3
"""Fraction of the time for finding a start."""


def plan_subclusters(problem: SubclusterProblem, /, *, time_limit_s: float, progress: Progress) -> SubclusterPlan:
    """Return the most even assignment that a solver finds in `time_limit_s` seconds from a heuristic start.

    Raises PlanningError, with the limit and a sufficient value, if no assignment keeps every limit; also if none was
    found in time, or the solver is not installed.
    """
    start = start_from(problem, time_limit_s=time_limit_s * START_SHARE, progress=progress)
    if start is not None:
        progress(objective=objective(problem, loads_of(problem, start)))
    solution = solve(problem, start, time_limit_s=time_limit_s, progress=progress)
    kept = [
        assignment
        for assignment in (start, solution.assignment)
        if assignment and limit_broken(problem, assignment, loads_of(problem, assignment)) is None
    ]
    if not kept:
        raise _no_plan(problem, solution.infeasible, time_limit_s, progress)
    best = min(kept, key=lambda assignment: objective(problem, loads_of(problem, assignment)))
    return SubclusterPlan.of(problem, best, solution.bound)


def _no_plan(problem: SubclusterProblem, infeasible: bool, time_limit_s: float, progress: Progress) -> PlanningError:
    if not infeasible:
        return PlanningError(
            f"found no plan in {time_limit_s:g} s, and no proof that there is none: give more time, or the other solver"
        )
    limits: list[Limit] = ["max_rate_rps", "max_memory_mib"]
    if problem.max_move_cost is not None:
        limits.append("max_move_cost")
    remedies = [remedy for limit in limits if (remedy := _remedy(problem, limit, time_limit_s, progress))]
    if not remedies:
        return PlanningError(f"no assignment keeps every limit, nor with any one of them wider: {', '.join(limits)}")
    return PlanningError(f"no assignment keeps every limit: {'; or '.join(remedies)}")


def _remedy(problem: SubclusterProblem, limit: Limit, time_limit_s: float, progress: Progress) -> str | None:
    """Return the value that a limit would need, if it alone changes."""
    wider = solve(problem, None, freed=limit, time_limit_s=time_limit_s, progress=progress).assignment
    if wider is None:
        return None
    plan = SubclusterPlan.of(problem, wider, bound=None)
    needed = {
        "max_rate_rps": max(load.rate_rps for load in plan.subclusters),
        "max_memory_mib": max(load.memory_mib for load in plan.subclusters),
        "max_move_cost": plan.move_cost,
    }
    return f"{limit} {getattr(problem, limit):g} is too little, {needed[limit]:g} would do"


def plan_randomly(problem: SubclusterProblem, /, *, time_limit_s: float, progress: Progress) -> SubclusterPlan:
    """Return the best of random assignments that keep every limit, drawn for `time_limit_s` seconds.

    Raises PlanningError if none keeps every limit.
    """
    draw = random.Random(problem.seed)
    places = range(problem.subclusters)
    best: list[int] | None = None
    best_objective: float | None = None
    broken: Counter[str] = Counter()
    while progress(objective=best_objective) < time_limit_s:
        assignment = draw.choices(places, k=len(problem.models))
        loads = loads_of(problem, assignment)
        if limit := limit_broken(problem, assignment, loads):
            broken[limit] += 1
            continue
        value = objective(problem, loads)
        if best_objective is None or value < best_objective:
            best, best_objective = assignment, value
    if best is None:
        most = "".join(f"; most broke {limit}, {getattr(problem, limit):g}" for limit, _ in broken.most_common(1))
        raise PlanningError(
            f"none of {broken.total()} random assignments keeps every limit{most}: give more time, or a wider limit"
        )
    return SubclusterPlan.of(problem, best, bound=None)
