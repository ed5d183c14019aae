"""Means of values that vary from run to run, with 95 % confidence intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

STUDENT_T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""0.975 quantiles of Student's t by degrees of freedom, for 95 % intervals."""


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float


def interval_of(values: Sequence[float], least: float = 0.0, most: float = 1.0) -> Interval:
    """Return Student's t interval of two to ten random values, clipped to [least, most]."""
    mean = fmean(values)
    half = STUDENT_T_975[len(values) - 1] * stdev(values) / math.sqrt(len(values))
    return Interval(mean, max(least, mean - half), min(most, mean + half))
