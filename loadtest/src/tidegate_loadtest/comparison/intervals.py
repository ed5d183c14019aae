"""Mean of a figure over a few rounds, with the 95 % confidence interval of Student's t, cut to possible values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from tidegate.sim.interval import student_t_975

CONFIDENCE_LEVEL = 0.95
MIN_VALUES_FOR_INTERVAL = 3
"""Two values have an interval of 13 times their spread, which says nothing."""


@dataclass(frozen=True)
class ConfidenceInterval:
    """Mean and its 95 % confidence interval, in the figure's own unit."""

    mean: float
    low: float | None
    """Lower bound; None, as `high`, for fewer than MIN_VALUES_FOR_INTERVAL values."""
    high: float | None
    count: int
    """Number of values."""

    def within(self, least: float, most: float) -> "ConfidenceInterval":
        """Return the interval cut to [`least`, `most`]; the confidence stays, as the true value lies within them."""
        if self.low is None or self.high is None:
            return self
        low, high = max(self.low, min(least, self.mean)), min(self.high, max(most, self.mean))
        return ConfidenceInterval(self.mean, low, high, self.count)

    def excludes(self, value: float) -> bool:
        """Return whether the rounds show that the mean is not `value`; False without an interval."""
        return self.low is not None and self.high is not None and not self.low <= value <= self.high


def mean_of(values: Sequence[float]) -> ConfidenceInterval | None:
    """Return the mean of one value per round with its interval, or None without values.

    The interval is mean +- t * s / sqrt(n), t the quantile of Student's distribution with n - 1 degrees of freedom.
    """
    if not values:
        return None
    mean = fmean(values)
    if len(values) < MIN_VALUES_FOR_INTERVAL:
        return ConfidenceInterval(mean, None, None, len(values))
    half = student_t_975(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return ConfidenceInterval(mean, mean - half, mean + half, len(values))


def difference_of(pairs: Sequence[tuple[float, float]]) -> ConfidenceInterval | None:
    """Return the mean of value - base, of pairs (value, base)."""
    return mean_of([value - base for value, base in pairs])


def ratio_of(pairs: Sequence[tuple[float, float]]) -> ConfidenceInterval | None:
    """Return the geometric mean of value / base, of pairs (value, base).

    The interval is that of the logarithms. Returns None if a value is zero, because the ratio is undefined.
    """
    if any(value <= 0 or base <= 0 for value, base in pairs):
        return None
    logs = mean_of([math.log(value / base) for value, base in pairs])
    if logs is None:
        return None
    low, high = (None if end is None else math.exp(end) for end in (logs.low, logs.high))
    return ConfidenceInterval(math.exp(logs.mean), low, high, logs.count)
