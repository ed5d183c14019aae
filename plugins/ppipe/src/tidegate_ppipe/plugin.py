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
        PolicySpec(
            "ppipe", "Sends batches through pooled pipelines, with workers and links reserved along the path", Ppipe
        ),
        PolicySpec(
            "reactive", "Pooled pipelines without reservation, each pool by itself: the baseline for ppipe", Reactive
        ),
    ]


@hookimpl
def tidegate_planners() -> list[PlannerSpec]:
    """Return the planner `ppipe` and its two baselines."""
    offered = [
        ("ppipe", "Splits models into pipelines over pools of different GPUs", "plan_ppipe"),
        ("np", "Unsplit models on the GPUs that meet their SLO: a baseline for ppipe", "plan_np"),
        ("dart-r", "Pipelines of two different GPUs, one of each: a baseline for ppipe", "plan_dart"),
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
    return [ControllerSpec("ppipe-replanning", "Plans pooled pipelines again when request rates change", Replanning)]
