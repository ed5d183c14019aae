"""Latency that workers guarantee for a queue, and the lower latency that is likely."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, sqrt
from statistics import NormalDist
from typing import Self

from tidegate.api import Profile

MIN_MARGIN_FRACTION = 0.1
"""Minimum margin relative to the expected latency that can be reduced; the expectation may be wrong by as much."""


@dataclass(frozen=True, slots=True)
class LatencyBounds:
    """Profile with its full margin and with reduced ones: a larger margin makes batches safer and smaller."""

    profile: Profile
    likely: Profile
    """Profile with half of the margin; the profile itself if the margin is small."""
    least: Profile
    """Profile with the lower bound of the latency, for requests that can only be tried."""
    deviations: float
    """Margin in standard deviations."""

    @classmethod
    def of(cls, profile: Profile, quantile: float) -> Self:
        """Create the bounds of a profile; `quantile`: the one that its upper latency covers."""
        rows = profile.max_rows
        scatters = profile.upper_ns(rows) > (1 + MIN_MARGIN_FRACTION) * profile.expected_ns(rows)
        likely = profile.with_margin_fraction(0.5) if scatters else profile
        return cls(profile, likely, profile.lower_bound(), NormalDist().inv_cdf(quantile))

    @property
    def scatters(self) -> bool:
        """Whether the margin exceeds the error that the expected latency may have."""
        return self.likely is not self.profile

    def on_time(self, rows: int, left_ns: Sequence[tuple[float, int]]) -> float:
        """Return the expected number of on-time requests of a batch of `rows` rows, with normally distributed latency.

        `left_ns`: weight of each request, and time in ns from the batch's start to its deadline.
        """
        expected_ns = self.profile.expected_ns(rows)
        spread_ns = sqrt(2) * (self.profile.upper_ns(rows) - expected_ns) / self.deviations
        if spread_ns <= 0:
            return sum(each for each, each_ns in left_ns if each_ns >= expected_ns)
        return sum(each * 0.5 * erfc((expected_ns - each_ns) / spread_ns) for each, each_ns in left_ns)


@dataclass(frozen=True, slots=True)
class QueueOutlook:
    """Predicted latency of one shape of a model on the workers that host it: the bounds of each device class."""

    promises: LatencyBounds
    """Bounds of the best profile of any of the workers."""
    workers: int
    fixed_cost_ns: float
    """Fixed latency of a batch in ns: beta."""
    most_rows: int
    """Rows of the largest batch worth forming; 1 if batching brings nothing."""
    slo_ns: int | None = None
    """SLO of the model in ns; None: none."""

    @property
    def profile(self) -> Profile:
        """Best profile of any of the workers; plans use its upper latency."""
        return self.promises.profile
