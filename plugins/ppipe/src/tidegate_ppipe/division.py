"""How GPUs are divided among models, where each model's knapsack says what it bears with so many of them.

Tables are combined model by model (a max-plus or max-min convolution), and the division is read back from the last one.
With few enough GPUs that is the best plan there is but for GPUs that two pipelines of a model could share, and takes
a part of the time that an integer program takes; in parts of GPUs it bounds every plan.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

import numpy as np

from tidegate_ppipe.columns import TOLERANCE, Column
from tidegate_ppipe.knapsack import Cell, Floats, Table, cells, corners
from tidegate_ppipe.problem import PpipeProblem
from tidegate_ppipe.rounding import Workers

MOST_CELLS = 20_000
"""Of a table of whole GPUs: the time to combine two grows with the square."""
MOST_PARTS = 300_000
"""Of a table of parts of GPUs: the time to fill one grows with the number."""
Combine = Callable[[Any, Any], Any]
"""Of two models' rates: their sum, or the smaller one."""


@dataclass(frozen=True)
class Division:
    """What each column gets."""

    workers: Workers
    """In parts of GPUs, these may not fit."""
    value: float
    """The load, or cost or watts. In parts of GPUs no plan is better; with whole ones, none without shared GPUs."""


def can_divide(problem: PpipeProblem) -> bool:
    """Whether the GPUs are few enough."""
    gpus = [gpu.count for gpu in problem.classes]
    return cells(gpus, [1] * len(gpus)) <= MOST_CELLS


def units_of(problem: PpipeProblem, columns: Sequence[Column]) -> list[int] | None:
    """By class: parts of a GPU of which every share is a whole number; None where there would be too many."""
    shares = [{part.share for column in columns for part in column.parts if part.gpu == n} for n in range(len(problem.classes))]
    units = [lcm(*mine) for mine in shares]
    return units if cells([gpu.count for gpu in problem.classes], units) <= MOST_PARTS else None


def divide(
    problem: PpipeProblem,
    columns: Sequence[Column],
    units: Sequence[int],
    is_late: Callable[[], bool],
) -> Division | None:
    """The best division; None where none bears the load, or where it is late.

    `units`: into how many a GPU of each class is divided; 1 for whole GPUs.
    """
    gpus = [gpu.count for gpu in problem.classes]
    is_load = problem.objective == "throughput"
    tables = []
    for number in range(len(problem.models)):
        mine = {index: column for index, column in enumerate(columns) if column.model == number}
        tables.append(Table(mine, gpus, units, is_late))
        if not tables[-1].is_complete:
            return None
    if is_load:
        loads = [table.rates_rps / model.weight for table, model in zip(tables, problem.models, strict=True)]
        value = float(_combined(loads, np.minimum)[-1].flat[-1])
        if value <= 0:
            return None
        # Of the divisions that bear this load: the one that bears most of all models together.
        enough = [np.where(load >= value * (1 - TOLERANCE), load, -np.inf) for load in loads]
        given = _divided(_combined(enough, np.add), enough, tuple(gpus))
    else:
        enough = [
            np.where(table.rates_rps >= (model.rate_rps or 0) * (1 - TOLERANCE), 0.0, -np.inf)
            for table, model in zip(tables, problem.models, strict=True)
        ]
        together = _combined(enough, np.add)
        prices = np.tensordot(problem.prices, np.indices(together[-1].shape), axes=1)
        prices[together[-1] < 0] = np.inf
        cheapest = int(np.argmin(prices))
        value = float(prices.flat[cheapest])
        if value == np.inf:
            return None
        given = _divided(together, enough, tuple(map(int, np.unravel_index(cheapest, prices.shape))))
    workers: Workers = [[0] * len(column.parts) for column in columns]
    for table, cell in zip(tables, given, strict=True):
        for index, mine_of in table.workers(cell).items():
            workers[index] = mine_of
    return Division(workers, value)


def _combined(tables: Sequence[Floats], combine: Combine) -> list[Floats]:
    """Of the first table, of the first two, ... of all: the best of every division."""
    together = [tables[0]]
    for table in tables[1:]:
        before = together[-1]
        best = np.full(table.shape, -np.inf)
        for cell in corners(table):
            rest = tuple(slice(0, size - taken) for taken, size in zip(cell, table.shape, strict=True))
            more = best[tuple(slice(taken, None) for taken in cell)]
            np.maximum(more, combine(table[cell], before[rest]), out=more)
        together.append(best)
    return together


def _divided(together: Sequence[Floats], tables: Sequence[Floats], cell: Cell) -> list[Cell]:
    """What each model gets of the GPUs of a cell, for sums."""
    given = []
    for before, table in zip(reversed(together[:-1]), reversed(tables[1:]), strict=True):
        inside = tuple(slice(0, count + 1) for count in cell)
        sums = table[inside] + np.flip(before[inside])
        mine = tuple(map(int, np.unravel_index(int(np.argmax(sums)), sums.shape)))
        given.append(mine)
        cell = tuple(left - taken for left, taken in zip(cell, mine, strict=True))
    return [cell, *reversed(given)]
