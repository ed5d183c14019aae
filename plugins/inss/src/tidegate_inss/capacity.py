"""Capacity of a share: the rate that it sustains before too many requests are late, in closed form.

All requests that wait when a worker becomes free run together, up to the batch size, as Tidegate's policies do. A
request that arrives while a batch runs is in the next one, and on time if both fit into its SLO: 2 t(b) <= SLO. While a
batch of b rows runs, b more arrive on average at the rate b / t(b). With Poisson arrivals more arrive half of the time,
so the rate must leave `MARGIN_DEVIATIONS` standard deviations.

If two batches do not fit into the SLO, requests that arrive in the first 2 t - SLO of a batch are late; the rate must
be so small that this is rare.
"""

import numpy as np
from numpy.typing import NDArray

from tidegate_inss.tables import Floats

MARGIN_DEVIATIONS = 1.0
"""Margin in standard deviations of the arrivals during a batch, found by simulation (docs/results/inss.md)."""
MIN_BATCHES_PER_SLO = 2.0
"""Number of batches in the SLO from which no request waits too long."""
MAX_LATE_FRACTION = 0.01
"""Maximum fraction of late requests if fewer batches fit."""
_LEAST_MS = 1e-9


def borne_rps(batches: NDArray[np.int64], batch_ms: Floats, slo_ms: Floats | float) -> Floats:
    """Return the rates in requests per second at which batches of these sizes and latencies are on time; 0 if none is.

    `batches`: rows; `batch_ms`: their latency; `slo_ms`: SLO. Arrays of one shape, or shapes that broadcast.
    """
    mean = np.square((np.sqrt(MARGIN_DEVIATIONS**2 + 4 * batches) - MARGIN_DEVIATIONS) / 2)
    too_early_ms = np.maximum(MIN_BATCHES_PER_SLO * batch_ms - slo_ms, _LEAST_MS)
    return np.where(
        slo_ms >= batch_ms, np.minimum(1000 * mean / batch_ms, 1000 * MAX_LATE_FRACTION / too_early_ms), 0.0
    )
