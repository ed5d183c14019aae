"""Registration of Symphony: policy, controller and planners."""

from typing import Any

from tidegate.api import PlannerSpec, PolicySpec, hookimpl
from tidegate.control import ControllerSpec
from tidegate_symphony.advised_workers import AdvisedWorkers
from tidegate_symphony.policy import Auto, Symphony
from tidegate_symphony.subclusters import plan_randomly, plan_subclusters
from tidegate_symphony.subclusters_plan import SubclusterPlan, SubclusterProblem


@hookimpl
def tidegate_policies() -> list[PolicySpec]:
    """Return the policies `symphony` and `auto`."""
    tries: tuple[dict[str, Any], ...] = (
        {},
        {"deferral": "frontrun"},
        {"batch_formation": "keep_head"},
        {"pack_workers": True},
    )
    words = "Deferred batching: waits as long as one more request could join on time"
    return [
        PolicySpec("symphony", words, Symphony, tries),
        PolicySpec(
            "auto", "Symphony, replaced by another policy when simulations of recent traffic favor it", Auto, ()
        ),
    ]


@hookimpl
def tidegate_controllers() -> list[ControllerSpec]:
    """Return the controller that follows a policy's worker recommendations."""
    return [ControllerSpec("advised-workers", "Adds and releases workers as the policy recommends", AdvisedWorkers)]


@hookimpl
def tidegate_planners() -> list[PlannerSpec]:
    """Return the planner of sub-clusters, and its random baseline."""
    return [
        PlannerSpec(
            "subclusters",
            "Assigns models to sub-clusters, balanced by rate and memory (integer program)",
            SubclusterProblem,
            SubclusterPlan,
            plan_subclusters,
        ),
        PlannerSpec(
            "subclusters-random",
            "The best of random assignments: a baseline for subclusters",
            SubclusterProblem,
            SubclusterPlan,
            plan_randomly,
        ),
    ]
