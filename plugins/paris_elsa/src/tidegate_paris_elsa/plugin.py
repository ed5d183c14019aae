"""Registration of PARIS and ELSA."""

from collections.abc import Callable
from typing import Any, cast

from tidegate.api import PlannerSpec, PolicySpec, hookimpl
from tidegate.api.late_import import imported_late
from tidegate.control import ControllerSpec
from tidegate.schemas import Layout
from tidegate_paris_elsa.change_plan import Reconfiguration, ReconfigurationProblem
from tidegate_paris_elsa.layout import layout_of
from tidegate_paris_elsa.plan import MigPlan
from tidegate_paris_elsa.policy import Elsa
from tidegate_paris_elsa.problem import MigProblem, problem_of
from tidegate_paris_elsa.replanning import Replanning


@hookimpl
def tidegate_policies() -> list[PolicySpec]:
    """Return the policy `elsa`."""
    return [PolicySpec("elsa", "Runs each request on the smallest MIG slice that meets its deadline", Elsa)]


@hookimpl
def tidegate_planners() -> list[PlannerSpec]:
    """Return the planner `paris`, its baselines, and `reconfigure`."""
    offered = [
        ("paris", "Divides GPUs into MIG slices of different sizes, by the batch sizes of requests", "plan_paris"),
        ("homogeneous", "MIG slices of one size: a baseline for paris", "plan_homogeneous"),
        ("homogeneous-max", "The best single MIG slice size: a baseline for paris", "plan_max"),
        ("heterogeneous-random", "MIG slices of random sizes: a baseline for paris", "plan_random"),
    ]
    planners = [
        PlannerSpec(
            name,
            words,
            MigProblem,
            MigPlan,
            _later("planners", function),
            layout_of,
            problem_of if name == "paris" else None,
        )
        for name, words, function in offered
    ]
    reconfigure = PlannerSpec(
        "reconfigure",
        "Changes the current MIG slices into planned ones at the lowest cost, with capacity kept",
        ReconfigurationProblem,
        Reconfiguration,
        _later("reconfigure", "plan_reconfiguration"),
        _new_layout,
    )
    return [*planners, reconfigure]


@hookimpl
def tidegate_controllers() -> list[ControllerSpec]:
    """Return the controller that changes MIG slices at run time."""
    return [ControllerSpec("paris-replanning", "Plans MIG slices again when the sizes of requests change", Replanning)]


def _new_layout(problem: ReconfigurationProblem, plan: Reconfiguration) -> Layout:
    return cast("Layout", _later("reconfigure", "new_layout")(problem, plan))


def _later(module: str, function: str) -> Callable[..., Any]:
    """A function that needs numpy and scipy, which policies do without."""
    return imported_late(f"tidegate_paris_elsa.{module}:{function}", "tidegate-paris-elsa[planner]")
