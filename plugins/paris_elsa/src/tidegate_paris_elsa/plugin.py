"""Registers PARIS and ELSA."""

from importlib import import_module
from typing import cast

from tidegate.api import Planner, PlannerSpec, PlanningError, PolicySpec, Progress, hookimpl
from tidegate_paris_elsa.layout import layout_of
from tidegate_paris_elsa.plan import MigPlan
from tidegate_paris_elsa.problem import MigProblem


@hookimpl
def tidegate_policies() -> list[PolicySpec]:
    """Offer ELSA by name."""
    return []


@hookimpl
def tidegate_planners() -> list[PlannerSpec]:
    """Offer PARIS, and those that it is judged by."""
    offered = [
        ("paris", "Cuts GPUs into MIG slices of unlike sizes, by the sizes of requests", "plan_paris"),
        ("homogeneous", "MIG slices of one size: the baseline for paris", "plan_homogeneous"),
        ("homogeneous-max", "The best MIG slices of one size: the other baseline", "plan_max"),
        ("heterogeneous-random", "MIG slices of random sizes", "plan_random"),
    ]
    return [PlannerSpec(name, words, MigProblem, MigPlan, _later(run), layout_of) for name, words, run in offered]


def _later(function: str) -> Planner:
    """Import a planner when it runs: policies need neither numpy nor scipy."""

    def run(problem: MigProblem, /, *, time_limit_s: float, progress: Progress) -> MigPlan:
        try:
            planners = import_module("tidegate_paris_elsa.planners")
        except ModuleNotFoundError as error:
            raise PlanningError(
                f'the planner needs {error.name}: pip install "tidegate-paris-elsa[planner]"'
            ) from error
        return cast("MigPlan", getattr(planners, function)(problem, time_limit_s=time_limit_s, progress=progress))

    return run
