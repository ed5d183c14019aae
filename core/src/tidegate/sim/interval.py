"""Means of values that vary from run to run, and gains over blocks of requests, with 95 % confidence intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, stdev
from typing import Final

STUDENT_T_QUANTILES = (
    12.7062047,
    4.3026527,
    3.1824463,
    2.7764451,
    2.5705818,
    2.4469119,
    2.3646243,
    2.3060041,
    2.2621572,
)
"""0.975 quantiles of Student's t for 1 to 9 degrees of freedom."""
NORMAL_QUANTILE = 1.959964
"""0.975 quantile of the normal distribution."""


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float


def student_t_975(freedom: int) -> float:
    """Return the 0.975 quantile of Student's t, for 95 % intervals; `freedom`: degrees of freedom, from 1 on.

    From ten on it is Fisher's expansion (Abramowitz and Stegun, 26.7.5), which is right to three decimals.
    """
    if freedom <= len(STUDENT_T_QUANTILES):
        return STUDENT_T_QUANTILES[freedom - 1]
    z = NORMAL_QUANTILE
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def interval_of(values: Sequence[float], least: float = 0.0, most: float = 1.0) -> Interval:
    """Return Student's t interval of two or more random values, clipped to [least, most]."""
    mean = fmean(values)
    half = student_t_975(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Interval(mean, max(least, mean - half), min(most, mean + half))


BOOTSTRAP_DRAWS: Final = 1000
CONFIDENCE_LEVEL: Final = 0.95
MAX_CALIBRATION_ERROR: Final = 0.03
"""Maximum difference between simulated and measured attainment up to which a simulated gain is reported."""


def gain_interval(blocks: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Return the bounds within which the gain lies, as a fraction of the requests.

    `blocks`: for each, its requests, and how many more of them are on time. Blocks are drawn repeatedly with
    replacement, always in the same way.
    """
    rng = Random(0)
    gains = []
    for _ in range(BOOTSTRAP_DRAWS):
        drawn = rng.choices(blocks, k=len(blocks))
        gains.append(sum(gained for _, gained in drawn) / sum(requests for requests, _ in drawn))
    gains.sort()
    outside = (1 - CONFIDENCE_LEVEL) / 2
    return gains[round(outside * (BOOTSTRAP_DRAWS - 1))], gains[round((1 - outside) * (BOOTSTRAP_DRAWS - 1))]
