"""Registers PPipe."""

from importlib import import_module
from typing import cast

from tidegate.api import Planner, PlannerSpec, PlanningError, PolicySpec, Progress, hookimpl
from tidegate_ppipe.layout import layout_of
from tidegate_ppipe.plan import PpipePlan
from tidegate_ppipe.policy import Ppipe
from tidegate_ppipe.problem import PpipeProblem
from tidegate_ppipe.reactive import Reactive


@hookimpl
def tidegate_policies() -> list[PolicySpec]:
    """Offer the data plane, and the one that it is judged by."""
    return [
        PolicySpec("ppipe", "Batches through pooled pipelines, with workers and links reserved along the path", Ppipe),
        PolicySpec("reactive", "The baseline for ppipe: pooled pipelines, each pool for itself", Reactive),
    ]


@hookimpl
def tidegate_planners() -> list[PlannerSpec]:
    """Offer the planner, and the two that it is judged by."""
    offered = [
        ("ppipe", "Splits models into pools over unlike GPUs: pooled pipelines", "plan_ppipe"),
        ("np", "Whole models on the GPUs that serve them in time: the baseline", "plan_np"),
        ("dart-r", "Chains of two unlike GPUs, one of each: the other baseline", "plan_dart"),
    ]
    return [PlannerSpec(name, words, PpipeProblem, PpipePlan, _later(run), layout_of) for name, words, run in offered]


def _later(function: str) -> Planner:
    """Import a planner when it runs: the policies need neither numpy nor scipy."""

    def run(problem: PpipeProblem, /, *, time_limit_s: float, progress: Progress) -> PpipePlan:
        try:
            planners = import_module("tidegate_ppipe.planners")
        except ModuleNotFoundError as error:
            raise PlanningError(f'the planner needs {error.name}: pip install "tidegate-ppipe[planner]"') from error
        return cast("PpipePlan", getattr(planners, function)(problem, time_limit_s=time_limit_s, progress=progress))

    return run
