"""Locally weighted regression of what a model takes over batch and share, from a few runs (InSS, section 4.1).

Around each place a quadratic in (ln rows, ln percent) is fitted to ln ms, near runs counting for more. Tried on other
axes, straight lines, or whole milliseconds it was off several times as far.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tidegate.schemas import ShareTable
from tidegate_loadtest.interference.runs import SoloRun

KERNEL_BANDWIDTH = 0.3
"""How fast the weight of a run falls: the standard deviation of a Gaussian, the runs being one wide along each axis."""
SLOPE_RIDGE = 1e-6
"""How much slopes and curvatures are held back, so that where runs do not tell of one it is none."""
TABLE_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
PERCENT_STEP = 5

Floats = NDArray[np.float64]


class LocallyWeighted:
    """A surface through measured runs."""

    def __init__(self, rows: Sequence[float], percents: Sequence[float], taken_ms: Sequence[float]) -> None:
        """One entry of each for every run."""
        places: Floats = np.log(np.column_stack([rows, percents]))
        widths = np.ptp(places, axis=0)
        self._widths = np.where(widths > 0, widths, 1.0)
        self._places = places / self._widths
        self._heights: Floats = np.log(np.asarray(taken_ms, dtype=np.float64))

    def at(self, rows: float, percent: float) -> float:
        """Milliseconds there."""
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
    """A model's surface as a table within the batches and shares that were run, never falling with rows nor share.

    `gpu_ms`: what each of the runs computed.
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
