"""Comparison of a row's outputs alone and in a batch: how far they may differ, and whether they are evidence.

There are two questions, with two tolerances. Does a row's output depend on which rows share its batch? Beside copies of
itself it is run by the same kernels, so almost nothing may differ. Does it depend on how many rows share its batch?
Kernels differ with the size of a batch, and ill-conditioned models amplify that.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_SLACK: Final = {2: 2e-2, 4: 1e-4, 8: 1e-6}
"""How far an element may move with the company, relative to the largest of its row, by the size of a float."""
_RELATIVE: Final = 1e-3
"""How far an element may move with the company, relative to itself."""
_ROUGH: Final = 0.1
"""How far an element may move with the size of the batch, relative to the largest of its row."""
_LEAST_EQUAL: Final = 0.98
"""The share of integers, labels and strings that must be equal whatever the company."""
_LEAST_EQUAL_ALONE: Final = 0.9
"""The share of them that must be equal alone and in company."""


@dataclass
class OutputComparison:
    """Comparison results of one output of the model."""

    reacts: bool = False
    """Whether different rows gave outputs that differ beyond all tolerance."""
    compared: int = 0
    equal: int = 0
    """Number of non-float values that were the same in every batch."""
    equal_alone: int = 0
    """Number of non-float values that were the same alone."""

    def take_alone(self, rows: list[NDArray[Any]]) -> None:
        """Record the outputs of different rows, each run alone."""
        first = rows[0]
        for row in rows[1:]:
            if is_float(first):
                self.reacts |= excess(first, row) > 2
            else:
                self.reacts |= not np.array_equal(first, row)

    def differs(self, alone: NDArray[Any], together: NDArray[Any], copies: Callable[[], NDArray[Any]]) -> bool:
        """Return whether a row's output in a batch differs from its output alone.

        `copies`: returns its output at the same position beside copies of itself, which takes another run.
        """
        if is_float(alone):
            if excess(alone, together) <= 1:
                return False
            beside_itself = copies()
            return excess(beside_itself, together) > 1 or is_far(alone, beside_itself)
        self.compared += max(alone.size, 1)
        if np.array_equal(alone, together):
            self.equal += max(alone.size, 1)
            self.equal_alone += max(alone.size, 1)
        else:
            self.equal += int(np.count_nonzero(copies() == together))
            self.equal_alone += int(np.count_nonzero(alone == together))
        return False

    @property
    def is_unequal(self) -> bool:
        """Whether too few non-float values were equal."""
        return self.equal < _LEAST_EQUAL * self.compared or self.equal_alone < _LEAST_EQUAL_ALONE * self.compared


def is_float(array: NDArray[Any]) -> bool:
    """Return whether an output is compared with a tolerance."""
    return array.dtype.kind in "fc"


def excess(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    """Return the largest difference of floats as a multiple of the tolerance; infinite where one is not finite."""
    if expected.shape != actual.shape:
        return float("inf")
    before, after = _wide(expected), _wide(actual)
    finite = np.isfinite(before)
    if not np.array_equal(finite, np.isfinite(after)):
        return float("inf")
    before, after = before[finite], after[finite]
    if not before.size:
        return 0.0
    moved = np.abs(before - after)
    allowed = _RELATIVE * np.abs(before) + _SLACK[_item_bytes(expected)] * np.abs(before).max()
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.where(moved > 0, moved / allowed, 0.0).max())


def is_far(expected: NDArray[Any], actual: NDArray[Any]) -> bool:
    """Return whether floats differ by more than the batch size explains."""
    if expected.shape != actual.shape:
        return True
    before, after = _wide(expected), _wide(actual)
    finite = np.isfinite(before) & np.isfinite(after)
    rounding = 100 * float(np.finfo(expected.dtype).eps) if _item_bytes(expected) > 2 else 0.0
    largest = np.abs(before[finite]).max(initial=0)
    return bool((np.abs(before[finite] - after[finite]) > rounding + _ROUGH * largest).any())


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _item_bytes(array: NDArray[Any]) -> int:
    return min(8, array.dtype.itemsize // (2 if array.dtype.kind == "c" else 1))
