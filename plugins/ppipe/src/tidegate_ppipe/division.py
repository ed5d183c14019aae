"""How GPUs are divided among models by dynamic programming, where each model's knapsack says what so many of them bear.

Tables are combined model by model (a max-min or max-plus convolution), and the division is read back from them.
In whole GPUs that is the best plan but for GPUs that two pipelines of a model could share; in parts of GPUs it bounds
every plan. Both take a part of the time of an integer program, while the GPUs are hundreds and their classes few.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

import numpy as np

from tidegate_ppipe.columns import RELATIVE_TOLERANCE, Column
from tidegate_ppipe.knapsack import Cell, Floats, KnapsackTable, cells, corners
from tidegate_ppipe.problem import PpipeProblem
from tidegate_ppipe.rounding import Workers

QUICK_CELLS = 10_000
"""The cells of a table of whole GPUs up to which all is done in a part of a second."""
MAX_CELLS = 400_000
"""The most cells of a table of whole GPUs: the time to combine two grows with the square."""
MAX_PARTS = 3_000_000
"""The most cells of a table of parts of GPUs: the time to fill one grows with the number."""
Combine = Callable[[Any, Any], Any]
"""Combination of two models' rates: their sum, or the smaller one."""
OnTime = Callable[[], None]
"""Check that raises TimeoutError when the time is over."""


@dataclass(frozen=True)
class GpuDivision:
    """Number of GPUs of each column, from the division by tables."""

    workers: Workers
    """The workers; where a GPU is given in parts, they may not fit."""
    value: float
    """The load, or cost or watts. In parts of GPUs no plan is better; with whole ones, none without shared GPUs."""
    is_level: bool
    """Whether the models that do not bind have all that the load leaves them."""


def can_divide(problem: PpipeProblem) -> bool:
    """Whether the GPUs are few enough."""
    return _whole_cells(problem) <= MAX_CELLS


def divides_quickly(problem: PpipeProblem) -> bool:
    """Whether it takes less time than an integer program."""
    return _whole_cells(problem) <= QUICK_CELLS


def _whole_cells(problem: PpipeProblem) -> int:
    return cells([gpu.count for gpu in problem.classes], [1] * len(problem.classes))


def units_of(problem: PpipeProblem, columns: Sequence[Column]) -> list[int] | None:
    """Return the units of a GPU in which every share is whole, by class; None if there are too many."""
    shares: list[set[int]] = [set() for _ in problem.classes]
    for column in columns:
        for part in column.parts:
            shares[part.gpu].add(part.share)
    units = [lcm(*mine) for mine in shares]
    return units if cells([gpu.count for gpu in problem.classes], units) <= MAX_PARTS else None


def divide(
    problem: PpipeProblem,
    columns: Sequence[Column],
    units: Sequence[int],
    *,
    loads: tuple[float, float],
    on_time: OnTime,
) -> GpuDivision | None:
    """The best division; None where none bears the load. Raises TimeoutError when it is late.

    `units`: into how many a GPU of each class is divided; 1 for whole GPUs. `loads`: for the objective throughput, one
    that is borne, and one that no plan exceeds: what is not between them is not looked at.
    """
    gpus = tuple(gpu.count for gpu in problem.classes)
    tables = []
    for number in range(len(problem.models)):
        mine = {index: column for index, column in enumerate(columns) if column.model == number}
        tables.append(KnapsackTable(mine, gpus, units, on_time))
    rates = [table.rates_rps for table in tables]
    if problem.objective == "throughput":
        found = _most(
            problem, [rate / model.weight for rate, model in zip(rates, problem.models, strict=True)], loads, on_time
        )
    else:
        found = _cheapest(problem, rates, on_time)
    if found is None:
        return None
    value, given, is_level = found
    workers: Workers = [[0] * len(column.parts) for column in columns]
    for table, cell in zip(tables, given, strict=True):
        for index, counts in table.workers(cell).items():
            workers[index] = counts
    return GpuDivision(workers, value, is_level)


def _most(
    problem: PpipeProblem, tables: Sequence[Floats], loads: tuple[float, float], on_time: OnTime
) -> tuple[float, list[Cell], bool] | None:
    """The largest load, and of the divisions that bear it the one that bears most of all models together."""
    gpus = tuple(gpu.count for gpu in problem.classes)
    least, most = loads
    between = [_at_least(least, np.minimum(table, most)) for table in tables]
    given = _divided(between, np.minimum, gpus, on_time)
    load = min(float(table[cell]) for table, cell in zip(between, given, strict=True))
    if load <= 0:
        return None
    enough = [_at_least(load, table) for table in tables]
    try:
        return load, _divided(enough, np.add, gpus, on_time), True
    except TimeoutError:
        return load, given, False


def _cheapest(
    problem: PpipeProblem, tables: Sequence[Floats], on_time: OnTime
) -> tuple[float, list[Cell], bool] | None:
    """The GPUs of the lowest price that bear every model's rate."""
    enough = [
        np.where(_at_least(model.rate_rps or 0.0, table) >= 0, 0.0, -np.inf)
        for model, table in zip(problem.models, tables, strict=True)
    ]
    together = _combined(enough, np.add, on_time)[-1]
    prices = np.tensordot(problem.prices, np.indices(together.shape), axes=1)
    prices[together < 0] = np.inf
    cell = tuple(map(int, np.unravel_index(int(np.argmin(prices)), prices.shape)))
    return None if prices[cell] == np.inf else (float(prices[cell]), _divided(enough, np.add, cell, on_time), True)


def _at_least(load: float, table: Floats) -> Floats:
    """The table where it says so much, else minus infinity."""
    return np.where(table >= load * (1 - RELATIVE_TOLERANCE), table, -np.inf)


def _divided(tables: Sequence[Floats], combine: Combine, cell: Cell, on_time: OnTime) -> list[Cell]:
    """Return the GPUs of each model for a cell under its best division."""
    given = []
    for before, table in zip(reversed(_combined(tables[:-1], combine, on_time)), reversed(tables), strict=False):
        inside = tuple(slice(0, count + 1) for count in cell)
        both = combine(table[inside], np.flip(before[inside]))
        mine = tuple(map(int, np.unravel_index(int(np.argmax(both)), both.shape)))
        given.append(mine)
        cell = tuple(left - taken for left, taken in zip(cell, mine, strict=True))
    return [cell, *reversed(given)]


def _combined(tables: Sequence[Floats], combine: Combine, on_time: OnTime) -> list[Floats]:
    """The best of every division of the first table, of the first two, ... of all."""
    together = list(tables[:1])
    for table in tables[1:]:
        best = np.full(table.shape, -np.inf)
        for cell in corners(table):
            on_time()
            rest = tuple(slice(0, size - taken) for taken, size in zip(cell, table.shape, strict=True))
            more = best[tuple(slice(taken, None) for taken in cell)]
            np.maximum(more, combine(table[cell], together[-1][rest]), out=more)
        together.append(best)
    return together
