"""Division of GPUs among models by dynamic programming, with the rate of each model from its knapsack.

Tables are combined model by model (a max-min or max-plus convolution), and the division is read back from them. In
whole GPUs that is the best plan, except for GPUs shared by two pipelines of a model; in parts of GPUs it bounds every
plan. Both are faster than an integer program for hundreds of GPUs in few classes.
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
"""Number of cells of a table of whole GPUs up to which the division takes less than a second."""
MAX_CELLS = 400_000
"""Maximum number of cells of a table of whole GPUs: combining two takes time with the square."""
MAX_PARTS = 3_000_000
"""Maximum number of cells of a table of parts of GPUs: filling one takes time in proportion."""
Combine = Callable[[Any, Any], Any]
"""Combination of two models' rates: the sum, or the smaller one."""
OnTime = Callable[[], None]
"""Function that raises TimeoutError when the time is over."""


@dataclass(frozen=True)
class GpuDivision:
    """Result of the division of GPUs among columns: workers of each pool, and the bound that it gives."""

    workers: Workers
    """Workers of each pool, by column; if GPUs are divided in parts, they may not fit."""
    value: float
    """Load, cost or watts: a bound of all plans with parts of GPUs; with whole ones, of plans without shared GPUs."""
    is_level: bool
    """Whether models that do not limit the load have all of the remaining GPUs."""


def can_divide(problem: PpipeProblem) -> bool:
    """Whether there are few enough GPUs for a division with tables."""
    return _whole_cells(problem) <= MAX_CELLS


def divides_quickly(problem: PpipeProblem) -> bool:
    """Whether the division takes less time than an integer program."""
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
    """Return the best division; None if none sustains the load. Raises TimeoutError if `on_time` does.

    `units`: parts of a GPU of each class; 1: whole GPUs. `loads`: for the objective throughput, a feasible load and an
    upper bound, between which the search looks.
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
    """Return the largest load, and the division that sustains most of all models together at it."""
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
