"""What a handful of rounds says about a figure: its mean, and the 95 % confidence interval of Student's t, cut to what
the figure can be."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

CONFIDENCE_LEVEL = 0.95


@dataclass(frozen=True)
class ConfidenceInterval:
    """A mean and where it lies, in the figure's own unit."""

    mean: float
    low: float | None
    """None, as `high`: one value has no spread."""
    high: float | None
    count: int
    """Values that it was made of."""

    def within(self, least: float, most: float) -> "ConfidenceInterval":
        """The same without what cannot be, which takes nothing from its confidence: the truth does not lie there."""
        if self.low is None or self.high is None:
            return self
        low, high = max(self.low, min(least, self.mean)), min(self.high, max(most, self.mean))
        return ConfidenceInterval(self.mean, low, high, self.count)

    def excludes(self, value: float) -> bool:
        """Whether the rounds show that the mean is not `value`. One round shows nothing."""
        return self.low is not None and self.high is not None and not self.low <= value <= self.high


def mean_of(values: Sequence[float]) -> ConfidenceInterval | None:
    """The mean of values that vary by chance, one for each round. None where there are none.

    The interval is mean +- t * s / sqrt(n), t the quantile of Student's distribution with n - 1 degrees of freedom.
    """
    if not values:
        return None
    mean = fmean(values)
    if len(values) == 1:
        return ConfidenceInterval(mean, None, None, 1)
    from scipy.special import stdtrit  # noqa: PLC0415 - slow to import

    t = float(stdtrit(len(values) - 1, (1 + CONFIDENCE_LEVEL) / 2))
    half = t * stdev(values) / math.sqrt(len(values))
    return ConfidenceInterval(mean, mean - half, mean + half, len(values))


def difference_of(pairs: Sequence[tuple[float, float]]) -> ConfidenceInterval | None:
    """The mean of value - base, of pairs (value, base)."""
    return mean_of([value - base for value, base in pairs])


def ratio_of(pairs: Sequence[tuple[float, float]]) -> ConfidenceInterval | None:
    """The geometric mean of value / base, of pairs (value, base).

    The interval is that of the logarithms. None where a value is zero: the ratio means nothing then.
    """
    if any(value <= 0 or base <= 0 for value, base in pairs):
        return None
    logs = mean_of([math.log(value / base) for value, base in pairs])
    if logs is None:
        return None
    low, high = (None if end is None else math.exp(end) for end in (logs.low, logs.high))
    return ConfidenceInterval(math.exp(logs.mean), low, high, logs.count)
