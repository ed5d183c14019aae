"""Latency that workers guarantee for a queue, and the lower latency that is likely."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, sqrt
from statistics import NormalDist
from typing import Self

from tidegate.api import Profile

LESS_SURE = (0.5, 0.0)
"""Shares of a profile's margin that batches are gathered with where its whole margin keeps them too small."""
MIN_MARGIN_FRACTION = 0.1
"""A margin of such a share of what is expected is none to spare: what is expected may itself be wrong by as much."""


@dataclass(frozen=True, slots=True)
class LatencyBounds:
    """A profile, and the same with less margin: with more margin a batch is safer and must be smaller."""

    profile: Profile
    less_sure: Sequence[Profile]
    """The same with the shares `LESS_SURE` of its margin; none where that is hardly any."""
    least: Profile
    """The same promising what nobody can exclude: for what can only be tried."""
    deviations: float
    """How many standard deviations a margin is."""

    @classmethod
    def of(cls, profile: Profile, quantile: float) -> Self:
        """Create the bounds of a profile; `quantile`: of the latency, that the profile's upper latency covers."""
        rows = profile.max_rows
        scatters = profile.upper_ns(rows) > (1 + MIN_MARGIN_FRACTION) * profile.expected_ns(rows)
        less_sure = [profile.with_margin_fraction(share) for share in LESS_SURE] if scatters else ()
        return cls(profile, less_sure, profile.lower_bound(), NormalDist().inv_cdf(quantile))

    def on_time(self, rows: int, left_ns: Sequence[tuple[float, int]]) -> float:
        """Return the expected number of on-time requests of a batch of `rows`, with normally distributed latency.

        `left_ns`: weight of each request, and time in ns from the batch's start to its deadline.
        """
        expected_ns = self.profile.expected_ns(rows)
        spread_ns = sqrt(2) * (self.profile.upper_ns(rows) - expected_ns) / self.deviations
        if spread_ns <= 0:
            return sum(each for each, each_ns in left_ns if each_ns >= expected_ns)
        return sum(each * 0.5 * erfc((expected_ns - each_ns) / spread_ns) for each, each_ns in left_ns)


@dataclass(frozen=True, slots=True)
class QueueOutlook:
    """Latency outlook of one shape of a model on the workers that host it."""

    promises: LatencyBounds
    """Latency bounds of the best profile that any of the workers could have."""
    workers: int
    fixed_cost_ns: float
    """Fixed latency of a batch in ns: beta."""
    most_rows: int
    """The largest batch worth forming: where rows do not run faster together, they had better run apart."""
    slo_ns: int | None = None
    """The SLO of the model; None: it has none."""

    @property
    def profile(self) -> Profile:
        """The best profile that any of the workers could have; plans use its upper latency."""
        return self.promises.profile
