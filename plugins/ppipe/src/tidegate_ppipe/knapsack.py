"""What one model bears with so many GPUs of each class: a table over every choice of whole GPUs, filled as a knapsack.

A pipeline with any numbers of workers is an item: it takes so many GPUs of each class, and bears a rate. A model's GPUs
are filled with any of them, any number of times. The table holds the best rate of all such fillings.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np
from numpy.typing import NDArray

from tidegate_ppipe.columns import TOLERANCE, Column, Part

Floats = NDArray[np.float64]
Cell = tuple[int, ...]
"""Units of each class."""


@dataclass(frozen=True)
class Item:
    """A pipeline with certain numbers of workers."""

    cell: Cell
    """What it takes."""
    rate_rps: float


class Table:
    """The knapsack of one model.

    Where a unit is a whole GPU, every pool of a pipeline has GPUs of its own, so that each cell can be carried out. Where
    it is a part of one, workers take no more than their part: no plan of whole GPUs bears more than the table says.
    """

    def __init__(
        self,
        columns: Mapping[int, Column],
        gpus: Sequence[int],
        units: Sequence[int],
        is_late: Callable[[], bool],
    ) -> None:
        """`columns` of one model by their index; `gpus` of each class; into how many `units` a GPU of it is divided.

        When `is_late()`, the rest of the items is left out: see `is_complete`.
        """
        self._columns = columns
        self._units = tuple(units)
        self._counts = tuple(count * unit for count, unit in zip(gpus, units, strict=True))
        self._items: list[Item] = []
        self.is_complete = True
        """Whether no item was left out for lack of time."""
        one = self._of_one_column()
        self._rates_rps = np.zeros(one.shape)
        for cell in sorted(corners(one), key=sum):
            if is_late():
                self.is_complete = False
                break
            if one[cell] > self._rates_rps[cell] * (1 + TOLERANCE):  # else smaller ones bear as much
                self._add(Item(cell, float(one[cell])))

    @property
    def rates_rps(self) -> Floats:
        """By whole GPUs of each class."""
        rates: Floats = self._rates_rps[tuple(slice(None, None, unit) for unit in self._units)]
        return rates

    def workers(self, gpus: Sequence[int]) -> dict[int, list[int]]:
        """By column, of each of its pools: the workers that bear what the table says of so many GPUs of each class."""
        cell = tuple(count * unit for count, unit in zip(gpus, self._units, strict=True))
        found: dict[int, list[int]] = {}
        while self._rates_rps[cell] > 0:
            item, cell = next(
                (item, left)
                for item in self._items
                if min(left := _minus(cell, item.cell)) >= 0
                and self._rates_rps[left] + item.rate_rps >= self._rates_rps[cell] * (1 - TOLERANCE)
            )
            index = max(self._columns, key=lambda each: self._rate_rps(self._columns[each], item.cell))
            parts = self._columns[index].parts
            mine = found.setdefault(index, [0] * len(parts))
            for place, part in enumerate(parts):
                mine[place] += ceil(item.rate_rps / (part.rate_rps / part.share) * (1 - TOLERANCE))
        return found

    def _of_one_column(self) -> Floats:
        """The table if a model could have one pipeline only."""
        best = np.zeros([count + 1 for count in self._counts])
        for column in self._columns.values():
            rates = np.array(np.inf)
            for gpu, parts in _by_class(column).items():
                shape = [1] * best.ndim
                shape[gpu] = -1
                rates = np.minimum(rates, borne(parts, self._counts[gpu], self._units[gpu]).reshape(shape))
            np.maximum(best, rates, out=best)
        return best

    def _rate_rps(self, column: Column, cell: Cell) -> float:
        """What one column bears with the units of a cell."""
        return min(float(borne(parts, cell[gpu], self._units[gpu])[-1]) for gpu, parts in _by_class(column).items())

    def _add(self, item: Item) -> None:
        """Allow an item any number of times: none or one more of it, of two of it, of four of it, ..."""
        self._items.append(item)
        times = 1
        while all(times * taken <= count for taken, count in zip(item.cell, self._counts, strict=True)):
            rest = tuple(slice(0, count + 1 - times * taken) for taken, count in zip(item.cell, self._counts, strict=True))
            more = tuple(slice(times * taken, None) for taken in item.cell)
            np.maximum(self._rates_rps[more], self._rates_rps[rest] + times * item.rate_rps, out=self._rates_rps[more])
            times *= 2


def cells(gpus: Sequence[int], units: Sequence[int]) -> int:
    """How many cells a table has."""
    return prod(count * unit + 1 for count, unit in zip(gpus, units, strict=True))


def borne(parts: Sequence[Part], count: int, unit: int) -> Floats:
    """What pools of one pipeline on one class bear with 0, 1, ... `count` units, which make a GPU `unit` at a time."""
    units = np.arange(count + 1)
    alone = [units * part.share // unit * (part.rate_rps / part.share) for part in parts]
    if len(parts) == 1:
        return alone[0]
    rates = np.unique(np.concatenate(alone))
    taken = np.zeros(len(rates), dtype=int)
    for part in parts:
        workers = np.ceil(rates / (part.rate_rps / part.share) * (1 - TOLERANCE)).astype(int)
        taken += -(-workers * unit // part.share)
    fits = taken <= count
    best = np.zeros(count + 1)
    np.maximum.at(best, taken[fits], rates[fits])
    return np.maximum.accumulate(best)


def corners(table: Floats) -> list[Cell]:
    """Cells that say more than each of their neighbours with one unit less; the first cell, if it says anything."""
    is_corner = table > -np.inf
    for axis in range(table.ndim):
        later = tuple(slice(1 if each == axis else 0, None) for each in range(table.ndim))
        sooner = tuple(slice(0, -1 if each == axis else None) for each in range(table.ndim))
        is_corner[later] &= table[later] > table[sooner]
    return [tuple(cell) for cell in np.argwhere(is_corner).tolist()]


def _by_class(column: Column) -> dict[int, list[Part]]:
    parts: dict[int, list[Part]] = {}
    for part in column.parts:
        parts.setdefault(part.gpu, []).append(part)
    return parts


def _minus(cell: Cell, other: Cell) -> Cell:
    return tuple(mine - its for mine, its in zip(cell, other, strict=True))
