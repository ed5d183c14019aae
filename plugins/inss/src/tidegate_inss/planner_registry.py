"""Planners of MPS shares by name."""

from types import MappingProxyType
from typing import NamedTuple, Protocol

from tidegate.api import Progress
from tidegate.api.late_import import imported_late
from tidegate_inss.plan import SharePlan
from tidegate_inss.problem import ShareProblem

PLANNER_EXTRA = "tidegate-inss[planner]"
"""Package with extra to install for planning."""


class PlannerEntry(NamedTuple):
    """Summary of a planner, and where its function is."""

    summary: str
    place: str


PLANNER_ENTRIES = MappingProxyType(
    {
        "shares": PlannerEntry(
            "Divides GPUs into MPS shares by the measured interference of models",
            "tidegate_inss.planners:plan_shares",
        ),
        "inss": PlannerEntry(
            "Divides GPUs into MPS shares in milliseconds, by trained networks",
            "tidegate_inss.learned.planner:plan_inss",
        ),
        "inss-ni": PlannerEntry(
            "inss without interference between co-located models: a baseline for inss",
            "tidegate_inss.learned.planner:plan_inss_ni",
        ),
        "gpulet": PlannerEntry(
            "At most two MPS shares per GPU, time-shared by models: a baseline for shares",
            "tidegate_inss.planners:plan_by_gpulet",
        ),
        "gslice": PlannerEntry(
            "MPS shares adjusted to latency and throughput: a baseline for shares",
            "tidegate_inss.planners:plan_by_gslice",
        ),
        "igniter": PlannerEntry(
            "The smallest MPS shares on the fewest GPUs: a baseline for shares",
            "tidegate_inss.planners:plan_by_igniter",
        ),
    }
)


class SharePlanner(Protocol):
    """A `Planner` for share problems."""

    def __call__(self, problem: ShareProblem, /, *, time_limit_s: float, progress: Progress) -> SharePlan:
        """Plan. Raises PlanningError, also where its libraries are missing."""


def share_planner(name: str) -> SharePlanner:
    """Return the planner with this name; it is imported when it runs. Raises KeyError for an unknown name."""
    return imported_late(PLANNER_ENTRIES[name].place, PLANNER_EXTRA)
