"""Start of the search: the optimum in parts of GPUs, rounded up to whole ones as far as there are GPUs.

It takes little time, so a planner always has a result; with thousands of GPUs it is nearly the best plan.
"""

from collections import Counter
from collections.abc import Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray

from tidegate_ppipe.columns import RELATIVE_TOLERANCE, Column
from tidegate_ppipe.problem import PpipeProblem

Workers = list[list[int]]
"""Number of workers of each pool, by column."""
BISECTION_STEPS = 30


def rounded(problem: PpipeProblem, columns: Sequence[Column], rates_rps: NDArray[np.float64]) -> Workers | None:
    """Return whole workers for these rates, for throughput for the largest feasible fraction; None if nothing fits.

    `rates_rps`: requests per second of each column.
    """
    used = np.flatnonzero(rates_rps).tolist()
    mine = _rounded(problem, [columns[index] for index in used], rates_rps[used])
    if mine is None:
        return None
    workers: Workers = [[0] * len(column.parts) for column in columns]
    for index, counts in zip(used, mine, strict=True):
        workers[index] = counts
    return workers


def _rounded(problem: PpipeProblem, columns: Sequence[Column], rates_rps: NDArray[np.float64]) -> Workers | None:
    if problem.objective != "throughput":
        workers = _workers_for(columns, rates_rps)
        return workers if fits(problem, columns, workers) else None
    best: Workers | None = None
    low, high = 0.0, 1.0
    for _ in range(BISECTION_STEPS):
        part = (low + high) / 2
        workers = _workers_for(columns, rates_rps * part)
        if fits(problem, columns, workers):
            best, low = workers, part
        else:
            high = part
    return best


def rates_of(columns: Sequence[Column], workers: Workers) -> NDArray[np.float64]:
    """Return the requests per second of the slowest pool of each column."""
    return np.array(
        [
            min(part.rate_rps / part.share * count for part, count in zip(column.parts, mine, strict=True))
            for column, mine in zip(columns, workers, strict=True)
        ]
    )


def _workers_for(columns: Sequence[Column], rates_rps: NDArray[np.float64]) -> Workers:
    return [
        [ceil(rate / (part.rate_rps / part.share) * (1 - RELATIVE_TOLERANCE)) for part in column.parts]
        for column, rate in zip(columns, rates_rps, strict=True)
    ]


def fits(problem: PpipeProblem, columns: Sequence[Column], workers: Workers) -> bool:
    """Whether there are enough GPUs; a GPU has only workers of one model and share."""
    used = gpus_of(columns, workers)
    return all(used[number] <= gpu.count for number, gpu in enumerate(problem.classes))


def gpus_of(columns: Sequence[Column], workers: Workers) -> Counter[int]:
    """Return the number of whole GPUs by class index."""
    groups: Counter[tuple[int, int, int]] = Counter()
    for column, mine in zip(columns, workers, strict=True):
        for part, count in zip(column.parts, mine, strict=True):
            groups[column.model, part.gpu, part.share] += count
    gpus: Counter[int] = Counter()
    for (_, number, share), count in groups.items():
        gpus[number] += -(-count // share)
    return gpus
