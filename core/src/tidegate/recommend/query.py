"""Query of `tidegate recommend`: traffic, hardware, and the attainment to reach."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.api import Plan, PlannerSpec, VersionedDocument
from tidegate.recommend.hardware import GpuBundle
from tidegate.recommend.recording import RecordedTraffic
from tidegate.recommend.triton_tuning import TRITON_POLICY
from tidegate.schemas import BlockProfile
from tidegate.workload import PolicyChoice, Scenario

GOAL_ATTAINMENT = 0.99
"""Default attainment that every model must reach."""


class RecommendError(Exception):
    """Error: the query has no answer; the message names reason and remedy."""


@dataclass(frozen=True)
class RecommendQuery:
    """Query of `tidegate recommend`: everything that the recommendation depends on."""

    scenario: Scenario
    """Models and their arrivals; its workers are the hardware if `bundles` is empty."""
    recording: RecordedTraffic | None = None
    """Recorded traffic, used instead of the scenario's arrivals."""
    bundles: tuple[GpuBundle, ...] = ()
    """Hardware: the available GPUs, or several purchase options. Empty: the scenario's workers."""
    buy: bool = False
    """Whether the bundles can be bought in any number; then the cheapest is recommended."""
    goal: float = GOAL_ATTAINMENT
    blocks: Mapping[str, BlockProfile] = field(default_factory=dict)
    """Block profiles by model name."""
    run_planner: Callable[[PlannerSpec, VersionedDocument], Plan] | None = None
    """Function that runs a planner with a clock, which the core lacks; None: planners are not used."""
    current: PolicyChoice | None = None
    """Policy that served the recorded traffic; None: Triton serves without Tidegate."""
    only: tuple[str, ...] = ()
    """Names of the policies to try; empty: all installed ones."""
    requests: int = 3000
    """Approximate number of requests in each run of the search; reported runs have twice as many."""

    @property
    def unmodified_triton(self) -> PolicyChoice:
        """Triton's own batcher unmodified: with the settings that the scenario lists for it, else with its defaults."""
        listed = (policy for policy in self.scenario.policies if policy.name == TRITON_POLICY)
        return next(listed, PolicyChoice(name=TRITON_POLICY))

    def asked(self) -> dict[str, Any]:
        """Return the query for the JSON document."""
        return {
            "goal": self.goal,
            "hardware": [bundle.text for bundle in self.bundles] or "as in the scenario",
            "buy": self.buy,
            "recorded": self.recording is not None,
            "requests": self.requests,
        }
