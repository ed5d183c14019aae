"""Registration of Symphony: policy, controller and planners."""

from typing import Any

from tidegate.api import PlannerSpec, PolicySpec, hookimpl
from tidegate.control import ControllerSpec
from tidegate_symphony.advised_workers import AdvisedWorkers
from tidegate_symphony.auto import Auto
from tidegate_symphony.policy import Symphony
from tidegate_symphony.subclusters import plan_subclusters
from tidegate_symphony.subclusters_plan import SubclusterPlan
from tidegate_symphony.subclusters_problem import SubclusterProblem
from tidegate_symphony.subclusters_random import plan_randomly


@hookimpl
def tidegate_policies() -> list[PolicySpec]:
    """Return the policies `symphony` and `auto`."""
    tries: tuple[dict[str, Any], ...] = (
        {},
        {"deferral": "frontrun"},
        {"batch_formation": "keep_head"},
        {"pack_workers": True},
    )
    words = "Deferred batching: wait until one more request could not join in time"
    return [
        PolicySpec("symphony", words, Symphony, tries),
        PolicySpec("auto", "Symphony, or what simulations of the latest traffic prefer", Auto, ()),
    ]


@hookimpl
def tidegate_controllers() -> list[ControllerSpec]:
    """Return the controller that follows a policy's worker recommendations."""
    return [ControllerSpec("advised-workers", "Workers join and are released as the policy advises", AdvisedWorkers)]


@hookimpl
def tidegate_planners() -> list[PlannerSpec]:
    """Return the planner of sub-clusters, and its random baseline."""
    return [
        PlannerSpec(
            "subclusters",
            "Parts models among sub-clusters, evenly by rate and memory: an integer program",
            SubclusterProblem,
            SubclusterPlan,
            plan_subclusters,
        ),
        PlannerSpec(
            "subclusters-random",
            "The best of random assignments: the baseline for subclusters",
            SubclusterProblem,
            SubclusterPlan,
            plan_randomly,
        ),
    ]
