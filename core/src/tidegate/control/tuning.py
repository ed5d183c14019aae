"""Options of a policy that a tuner may replace while serving, because another one suits the traffic better."""

from pydantic import Field

from tidegate.api import PolicyOptions


class TuningOptions(PolicyOptions):
    """Options of the tuner: a policy whose options derive from this class is tuned by simulation.

    Its other options are those of the policy that decides first.
    """

    dry_run: bool = Field(default=False, description="Report what would be better, and change nothing")
    interval_s: float = Field(default=5.0, gt=0, lt=1e6, description="Shortest window of traffic to simulate")
    cpu_fraction: float = Field(
        default=0.4, gt=0, le=1, description="Fraction of one CPU core that simulations may take, on average"
    )
    min_improvement: float = Field(
        default=0.01, ge=0, lt=1, description="Smallest gain of attainment for which the policy is replaced"
    )
