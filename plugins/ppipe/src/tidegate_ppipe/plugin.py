"""Registers PPipe."""

from tidegate.api import PlannerSpec, PolicySpec, hookimpl
from tidegate_ppipe.plan import PpipePlan
from tidegate_ppipe.planners import plan_dart, plan_np, plan_ppipe
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
        ("ppipe", "Splits models into pools over unlike GPUs: pooled pipelines", plan_ppipe),
        ("np", "Whole models on the GPUs that serve them in time: the baseline", plan_np),
        ("dart-r", "Chains of two unlike GPUs, one of each: the other baseline", plan_dart),
    ]
    return [PlannerSpec(name, words, PpipeProblem, PpipePlan, run) for name, words, run in offered]
