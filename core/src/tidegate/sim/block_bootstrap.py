"""Confidence interval of a gain over blocks of requests, as requests that arrive together share their luck."""

from collections.abc import Sequence
from random import Random
from typing import Final

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
