"""Registration of PPipe: policies, planners and the controller."""

from tidegate.api import PlannerSpec, PolicySpec, hookimpl
from tidegate.api.late_import import imported_late
from tidegate.control import ControllerSpec
from tidegate_ppipe.layout import layout_of
from tidegate_ppipe.plan import PpipePlan
from tidegate_ppipe.policy import Ppipe
from tidegate_ppipe.problem import PpipeProblem, problem_of
from tidegate_ppipe.reactive import Reactive
from tidegate_ppipe.replanning import Replanning


@hookimpl
def tidegate_policies() -> list[PolicySpec]:
    """Return the policy `ppipe` and its baseline `reactive`."""
    return [
        PolicySpec("ppipe", "Batches through pooled pipelines, with workers and links reserved along the path", Ppipe),
        PolicySpec("reactive", "The baseline for ppipe: pooled pipelines, each pool for itself", Reactive),
    ]


@hookimpl
def tidegate_planners() -> list[PlannerSpec]:
    """Return the planner `ppipe` and its two baselines."""
    offered = [
        ("ppipe", "Splits models into pools over unlike GPUs: pooled pipelines", "plan_ppipe"),
        ("np", "Whole models on the GPUs that serve them in time: the baseline", "plan_np"),
        ("dart-r", "Chains of two unlike GPUs, one of each: the other baseline", "plan_dart"),
    ]
    return [
        PlannerSpec(
            name,
            words,
            PpipeProblem,
            PpipePlan,
            imported_late(f"tidegate_ppipe.planners:{function}", "tidegate-ppipe[planner]"),
            layout_of,
            problem_of if name == "ppipe" else None,
        )
        for name, words, function in offered
    ]


@hookimpl
def tidegate_controllers() -> list[ControllerSpec]:
    """Return the controller that plans again at run time."""
    return [ControllerSpec("ppipe-replanning", "Plans pooled pipelines again when rates drift", Replanning)]
