"""The planners of MPS shares by their names."""

from types import MappingProxyType
from typing import NamedTuple, Protocol, cast

from tidegate.api import Progress
from tidegate_inss.late_import import imported_late
from tidegate_inss.plan import SharePlan
from tidegate_inss.problem import ShareProblem


class Offered(NamedTuple):
    """What a planner is, in a line, and where it is."""

    summary: str
    module: str
    function: str


OFFERED = MappingProxyType(
    {
        "shares": Offered(
            "Divides GPUs into MPS shares, by what models bear beside each other", "planners", "plan_shares"
        ),
        "inss": Offered(
            "MPS shares in milliseconds, by networks that learned to divide GPUs", "learned.planner", "plan_inss"
        ),
        "inss-ni": Offered(
            "The same by networks that know of no neighbours: a baseline for inss", "learned.planner", "plan_inss_ni"
        ),
        "gpulet": Offered(
            "At most two MPS shares of a GPU, models taking turns: a baseline for shares", "planners", "plan_by_gpulet"
        ),
        "gslice": Offered(
            "MPS shares that follow latency and throughput: a baseline for shares", "planners", "plan_by_gslice"
        ),
        "igniter": Offered(
            "The least MPS shares on the fewest GPUs: a baseline for shares", "planners", "plan_by_igniter"
        ),
    }
)


class SharePlanner(Protocol):
    """A `Planner` of this problem."""

    def __call__(self, problem: ShareProblem, /, *, time_limit_s: float, progress: Progress) -> SharePlan:
        """Plan. Raises PlanningError, also where its libraries are missing."""


def share_planner(name: str) -> SharePlanner:
    """The planner of this name, imported when it runs. Raises KeyError for others than those of `OFFERED`."""
    offered = OFFERED[name]

    def run(problem: ShareProblem, /, *, time_limit_s: float, progress: Progress) -> SharePlan:
        function = imported_late(offered.module, offered.function)
        return cast("SharePlan", function(problem, time_limit_s=time_limit_s, progress=progress))

    return run
