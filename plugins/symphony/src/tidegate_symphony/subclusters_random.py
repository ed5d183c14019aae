"""The planner `subclusters-random`: the baseline of Symphony's Appendix A.2."""

import random
from collections import Counter

from tidegate.api import PlanningError, Progress
from tidegate_symphony.subclusters_plan import SubclusterPlan, limit_broken, loads_of, objective
from tidegate_symphony.subclusters_problem import SubclusterProblem


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
