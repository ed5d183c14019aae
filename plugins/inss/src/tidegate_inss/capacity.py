"""How much load a share bears before too many requests are late: in closed form, for all batch sizes at once.

Whatever waits when a worker frees runs together, up to the batch size, as Tidegate's policies do it. A request that
comes while a batch runs is in the next one, and in time if both fit into its SLO: 2 t(b) <= SLO. While a batch of b
runs, the next b come on average if the rate is b / t(b); with Poisson arrivals more come half the time, so that the
rate has to leave `MARGIN_DEVIATIONS` standard deviations.

Where the SLO has no room for two, who comes in the first 2 t - SLO of a batch is late: the rate may be as small as that
seldom happens.
"""

import numpy as np
from numpy.typing import NDArray

from tidegate_inss.tables import Floats

MARGIN_DEVIATIONS = 1.0
"""Standard deviations of what comes while a batch runs. Found by simulation (docs/results/inss.md)."""
MIN_BATCHES_PER_SLO = 2.0
"""Batches of which so many fit into the SLO keep nobody waiting for too long."""
MAX_LATE_FRACTION = 0.01
"""The share of the requests that may be late where fewer fit."""
_LEAST_MS = 1e-9


def borne_rps(batches: NDArray[np.int64], batch_ms: Floats, slo_ms: Floats | float) -> Floats:
    """Return the rates per second at which batches of these sizes and latencies are on time; 0 if none is.

    Arrays of one shape, or of shapes that broadcast.
    """
    mean = np.square((np.sqrt(MARGIN_DEVIATIONS**2 + 4 * batches) - MARGIN_DEVIATIONS) / 2)
    too_early_ms = np.maximum(MIN_BATCHES_PER_SLO * batch_ms - slo_ms, _LEAST_MS)
    return np.where(
        slo_ms >= batch_ms, np.minimum(1000 * mean / batch_ms, 1000 * MAX_LATE_FRACTION / too_early_ms), 0.0
    )
