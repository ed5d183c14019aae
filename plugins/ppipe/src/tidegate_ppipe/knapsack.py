"""Rate of one model by number of GPUs of each class: an unbounded knapsack as a table.

A pipeline with given numbers of workers is an item: it takes GPUs of each class and sustains a rate. The table contains
the best rate of all combinations of items.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np
from numpy.typing import NDArray

from tidegate_ppipe.columns import RELATIVE_TOLERANCE, Column, ColumnPartition

Floats = NDArray[np.float64]
Cell = tuple[int, ...]
"""Number of units of each class."""


@dataclass(frozen=True)
class KnapsackItem:
    """A pipeline with given numbers of workers, as a knapsack item."""

    cell: Cell
    """Number of units of each class that it uses."""
    rate_rps: float


class KnapsackTable:
    """Knapsack of one model.

    If a unit is a whole GPU, every pool of a pipeline has its own GPUs, so each cell is a feasible plan. If it is a
    part of one, workers take only their part, so no plan of whole GPUs sustains more than the table.
    """

    def __init__(
        self,
        columns: Mapping[int, Column],
        gpus: Sequence[int],
        units: Sequence[int],
        on_time: Callable[[], None],
    ) -> None:
        """Fill the table.

        `columns`: those of the model by index; `gpus`: number of GPUs of each class; `units`: parts of a GPU of each
        class. `on_time()` raises TimeoutError when the time is over.
        """
        self._columns = columns
        self._units = tuple(units)
        self._counts = tuple(count * unit for count, unit in zip(gpus, units, strict=True))
        self._items: list[KnapsackItem] = []
        one = self._of_one_column(on_time)
        self._rates_rps = np.zeros(one.shape)
        for cell in sorted(corners(one), key=sum):
            on_time()
            if one[cell] > self._rates_rps[cell] * (1 + RELATIVE_TOLERANCE):  # else smaller ones bear as much
                self._add(KnapsackItem(cell, float(one[cell])))

    @property
    def rates_rps(self) -> Floats:
        """Rates in requests per second by number of whole GPUs of each class."""
        rates: Floats = self._rates_rps[tuple(slice(None, None, unit) for unit in self._units)]
        return rates

    def workers(self, gpus: Sequence[int]) -> dict[int, list[int]]:
        """Return the workers of each pool, by column, that sustain the table's rate for these GPUs."""
        cell = tuple(count * unit for count, unit in zip(gpus, self._units, strict=True))
        found: dict[int, list[int]] = {}
        while self._rates_rps[cell] > 0:
            item, cell = next(
                (item, left)
                for item in self._items
                if min(left := _minus(cell, item.cell)) >= 0
                and self._rates_rps[left] + item.rate_rps >= self._rates_rps[cell] * (1 - RELATIVE_TOLERANCE)
            )
            index = next(each for each, column in self._columns.items() if self._bears(column, item))
            for place, part in enumerate(self._columns[index].parts):
                mine = found.setdefault(index, [0] * len(self._columns[index].parts))
                mine[place] += workers_for(item.rate_rps, part)
        return found

    def _of_one_column(self, on_time: Callable[[], None]) -> Floats:
        """The table of a model that has one pipeline only."""
        best = np.zeros([count + 1 for count in self._counts])
        flat = best.reshape(-1)
        for column in self._columns.values():
            on_time()
            rates, taken = self._worth_having(column)
            at = np.ravel_multi_index(tuple(taken), best.shape)
            flat[at] = np.maximum(flat[at], rates)  # of rates in one cell the last one stays, which is the largest
        for axis in range(best.ndim):
            np.maximum.accumulate(best, axis=axis, out=best)
        return best

    def _worth_having(self, column: Column) -> tuple[Floats, NDArray[np.int_]]:
        """Every rate, ascending, at which all workers of a pool are busy, and [class, rate] the units that it takes."""
        ones = [part.rate_rps / part.share for part in column.parts]
        most = [self._counts[part.gpu] * part.share // self._units[part.gpu] for part in column.parts]
        rates = np.unique(
            np.concatenate([one * np.arange(1, count + 1) for one, count in zip(ones, most, strict=True)])
        )
        taken = np.zeros((len(self._counts), len(rates)), dtype=int)
        for part, one in zip(column.parts, ones, strict=True):
            workers = np.ceil(rates / one * (1 - RELATIVE_TOLERANCE)).astype(int)
            taken[part.gpu] += -(-workers * self._units[part.gpu] // part.share)
        fits = (taken <= np.array(self._counts)[:, None]).all(axis=0)
        return rates[fits], taken[:, fits]

    def _bears(self, column: Column, item: KnapsackItem) -> bool:
        """Whether it sustains an item's rate with the units that the item takes."""
        left = list(item.cell)
        for part in column.parts:
            left[part.gpu] -= -(-workers_for(item.rate_rps, part) * self._units[part.gpu] // part.share)
        return min(left) >= 0

    def _add(self, item: KnapsackItem) -> None:
        """Allow an item any number of times: none or one more of it, of two of it, of four of it, ..."""
        self._items.append(item)
        times = 1
        while all(times * taken <= count for taken, count in zip(item.cell, self._counts, strict=True)):
            rest = tuple(
                slice(0, count + 1 - times * taken) for taken, count in zip(item.cell, self._counts, strict=True)
            )
            more = tuple(slice(times * taken, None) for taken in item.cell)
            np.maximum(self._rates_rps[more], self._rates_rps[rest] + times * item.rate_rps, out=self._rates_rps[more])
            times *= 2


def cells(gpus: Sequence[int], units: Sequence[int]) -> int:
    """Return the number of cells of a table."""
    return prod(count * unit + 1 for count, unit in zip(gpus, units, strict=True))


def workers_for(rate_rps: float, part: ColumnPartition) -> int:
    """Return the number of workers of a pool that sustain a rate in requests per second."""
    return ceil(rate_rps / (part.rate_rps / part.share) * (1 - RELATIVE_TOLERANCE))


def corners(table: Floats) -> list[Cell]:
    """Return the cells with a higher rate than each neighbor with one unit less, and the first if it has any."""
    is_corner = table > -np.inf
    for axis in range(table.ndim):
        later = tuple(slice(1 if each == axis else 0, None) for each in range(table.ndim))
        sooner = tuple(slice(0, -1 if each == axis else None) for each in range(table.ndim))
        is_corner[later] &= table[later] > table[sooner]
    return [tuple(cell) for cell in np.argwhere(is_corner).tolist()]


def _minus(cell: Cell, other: Cell) -> Cell:
    return tuple(mine - its for mine, its in zip(cell, other, strict=True))
