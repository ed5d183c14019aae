"""Locally weighted regression of a model's latency over batch size and share, from a few runs (InSS, section 4.1).

Around each point a quadratic in (ln rows, ln percent) is fitted to ln ms, with higher weights for near runs. On other
axes, with straight lines, or in plain milliseconds the errors were several times as large.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tidegate.schemas import ShareTable
from tidegate_loadtest.interference.runs import SoloRun

KERNEL_BANDWIDTH = 0.3
"""Standard deviation of the Gaussian weights, where the runs span 1 along each axis."""
SLOPE_RIDGE = 1e-6
"""Ridge penalty on slopes and curvatures, so that undetermined ones are zero."""
TABLE_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
PERCENT_STEP = 5

Floats = NDArray[np.float64]


class LocallyWeighted:
    """Latency surface through measured runs."""

    def __init__(self, rows: Sequence[float], percents: Sequence[float], taken_ms: Sequence[float]) -> None:
        """Fit the surface; each argument has one entry per run.

        `percents`: of the compute units.
        """
        places: Floats = np.log(np.column_stack([rows, percents]))
        widths = np.ptp(places, axis=0)
        self._widths = np.where(widths > 0, widths, 1.0)
        self._places = places / self._widths
        self._heights: Floats = np.log(np.asarray(taken_ms, dtype=np.float64))

    def at(self, rows: float, percent: float) -> float:
        """Return the milliseconds at a batch size and a share in percent."""
        away = self._places - np.log([rows, percent]) / self._widths
        squared = (away**2).sum(axis=1)
        # The nearest run has the weight 1, however far it is.
        root = np.exp((squared.min() - squared) / (4 * KERNEL_BANDWIDTH**2))
        across, along = away.T
        terms = np.column_stack([np.ones_like(across), across, along, across**2, across * along, along**2])
        held = np.sqrt(SLOPE_RIDGE) * np.eye(6)[1:]
        matrix = np.vstack([terms * root[:, None], held])
        heights = np.concatenate([self._heights * root, np.zeros(5)])
        solution, *_ = np.linalg.lstsq(matrix, heights, rcond=None)
        return float(np.exp(solution[0]))


def table_of(runs: Sequence[SoloRun], gpu_ms: Sequence[float]) -> ShareTable:
    """Return a model's surface as a table over the measured batch sizes and shares, monotonic in both.

    `gpu_ms`: compute time of each run in ms.
    """
    rows, percents = [run.rows for run in runs], [run.percent for run in runs]
    surface = LocallyWeighted(rows, percents, gpu_ms)
    many = sorted({*rows, *(count for count in TABLE_ROWS if min(rows) < count < max(rows))})
    steps = (PERCENT_STEP * step for step in range(1, 100 // PERCENT_STEP))
    shares = sorted({*percents, *(float(step) for step in steps if min(percents) < step < max(percents))})
    taken = np.array([[surface.at(each, share) for share in shares] for each in many])
    taken = np.maximum.accumulate(taken, axis=0)
    taken = np.maximum.accumulate(taken[:, ::-1], axis=1)[:, ::-1]
    return ShareTable(
        rows=tuple(many),
        percents=tuple(shares),
        taken_ms=tuple(tuple(round(float(each), 6) for each in line) for line in taken),
    )
