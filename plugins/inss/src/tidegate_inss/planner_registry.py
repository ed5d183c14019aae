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
            "Divides GPUs into MPS shares, by what models bear beside each other",
            "tidegate_inss.planners:plan_shares",
        ),
        "inss": PlannerEntry(
            "MPS shares in milliseconds, by networks that learned to divide GPUs",
            "tidegate_inss.learned.planner:plan_inss",
        ),
        "inss-ni": PlannerEntry(
            "The same by networks that know of no neighbors: a baseline for inss",
            "tidegate_inss.learned.planner:plan_inss_ni",
        ),
        "gpulet": PlannerEntry(
            "At most two MPS shares of a GPU, models taking turns: a baseline for shares",
            "tidegate_inss.planners:plan_by_gpulet",
        ),
        "gslice": PlannerEntry(
            "MPS shares that follow latency and throughput: a baseline for shares",
            "tidegate_inss.planners:plan_by_gslice",
        ),
        "igniter": PlannerEntry(
            "The least MPS shares on the fewest GPUs: a baseline for shares", "tidegate_inss.planners:plan_by_igniter"
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
