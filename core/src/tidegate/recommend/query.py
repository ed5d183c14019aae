"""Query of `tidegate recommend`: traffic, hardware, and the attainment to reach."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.api import Plan, PlannerSpec, VersionedDocument
from tidegate.recommend.hardware import GpuBundle
from tidegate.recommend.recording import RecordedTraffic
from tidegate.schemas import BlockProfile
from tidegate.workload import Scenario

GOAL_ATTAINMENT = 0.99
"""The attainment that every model shall have."""


class RecommendError(Exception):
    """Error: the query has no answer; the message names reason and remedy."""


@dataclass(frozen=True)
class RecommendQuery:
    """Query of `tidegate recommend`: all that its answer depends on."""

    scenario: Scenario
    """Models and their arrivals; its workers say what there is where `bundles` is empty."""
    recording: RecordedTraffic | None = None
    """Recorded traffic, used instead of the scenario's arrivals."""
    bundles: tuple[GpuBundle, ...] = ()
    """Hardware: one that there is, or several that could be bought. Empty: the scenario's workers as they are."""
    buy: bool = False
    """The bundles could be bought, as many as it takes: the cheapest is asked for."""
    goal: float = GOAL_ATTAINMENT
    blocks: Mapping[str, BlockProfile] = field(default_factory=dict)
    """How long the blocks of a model run, by its name."""
    run_planner: Callable[[PlannerSpec, VersionedDocument], Plan] | None = None
    """Runs a planner against the clock that the core does not have. None: planners are not asked."""
    only: tuple[str, ...] = ()
    """The policies to try, by name; empty: all that are installed."""
    requests: int = 3000
    """In each run of the search, about; twice as many in those that are reported."""

    def asked(self) -> dict[str, Any]:
        """Return the query for the JSON document."""
        return {
            "goal": self.goal,
            "hardware": [bundle.text for bundle in self.bundles] or "as in the scenario",
            "buy": self.buy,
            "recorded": self.recording is not None,
            "requests": self.requests,
        }
