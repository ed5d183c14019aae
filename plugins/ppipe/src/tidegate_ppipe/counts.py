"""How many GPUs each column gets: an integer program over whole GPUs, solved by HiGHS.

Variables: for each column its rate, for each of its pools a whole number of GPUs. A column's rate is at most what each
of its pools bears; pools of a class together have no more GPUs than there are. Whole GPUs rather than shares of them
(equation 23 in A.2), because the workers of a pool have to be placed on GPUs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

from tidegate_ppipe.columns import Column
from tidegate_ppipe.problem import PpipeProblem

SLACK = 1e-7
"""By which share of itself the first stage's objective may be missed in the second: solvers round."""


@dataclass(frozen=True)
class Counts:
    """What each column gets."""

    objective: float
    bound: float
    rates_rps: NDArray[np.float64]
    """By column."""
    gpus: list[list[int]]
    """By column, of each of its pools."""


@dataclass(frozen=True)
class Pool:
    """One pool of a column, or two as one: DART-r's pairs have equally many GPUs."""

    column: int
    part: int


class Program:
    """The program; solved twice, for what is wanted and then for the best use of what is left."""

    def __init__(self, problem: PpipeProblem, columns: Sequence[Column], *, paired: bool) -> None:
        """`paired`: all pools of a column have equally many GPUs."""
        self._problem = problem
        self._columns = columns
        self._pools = [Pool(number, part) for number, column in enumerate(columns) for part in range(len(column.parts))]
        self._scale = len(columns)
        """The index of the load factor, after the rates and before the GPUs."""
        self._size = len(columns) + 1 + len(self._pools)
        rows = self._bearing() + self._available()
        if paired:
            rows += self._pairs()
        self._rows = rows + self._wanted()

    def solve(self, *, time_limit_s: float) -> Counts | None:
        """The best numbers found in the time; None where there are none. The second stage has a third of it."""
        first = self._run(self._goal(), [], time_limit_s * 2 / 3, self._problem.gap)
        if first is None:
            return None
        x, objective, bound = first
        second = self._second_stage(x, time_limit_s / 3)
        return self._counts(x if second is None else second, objective, bound)

    def _goal(self) -> NDArray[np.float64]:
        """What is made small."""
        goal = np.zeros(self._size)
        if self._problem.objective == "throughput":
            goal[self._scale] = -1.0
        else:
            for index, pool in enumerate(self._pools):
                gpu = self._problem.classes[self._columns[pool.column].parts[pool.part].gpu]
                goal[self._scale + 1 + index] = gpu.cost if self._problem.objective == "cost" else gpu.power_w
        return goal

    def _second_stage(self, x: NDArray[np.float64], time_limit_s: float) -> NDArray[np.float64] | None:
        """Max-min says nothing of the models that do not bind: serve them as well as what is left allows."""
        if self._problem.objective != "throughput":
            return None
        row = np.zeros(self._size)
        row[self._scale] = 1.0
        goal = np.zeros(self._size)
        for number, column in enumerate(self._columns):
            goal[number] = -1.0 / self._problem.models[column.model].weight
        found = self._run(goal, [(row, x[self._scale] * (1 - SLACK), np.inf)], time_limit_s, self._problem.gap)
        return None if found is None else found[0]

    def _run(
        self, goal: NDArray[np.float64], more: list[Any], time_limit_s: float, gap: float
    ) -> tuple[NDArray[np.float64], float, float] | None:
        rows = [*self._rows, *more]
        matrix = lil_matrix((len(rows), self._size))
        low, high = np.empty(len(rows)), np.empty(len(rows))
        for index, (row, least, most) in enumerate(rows):
            entries = row.items() if isinstance(row, dict) else ((i, row[i]) for i in np.flatnonzero(row))
            for position, value in entries:
                matrix[index, position] = value
            low[index], high[index] = least, most
        integral = np.zeros(self._size)
        integral[self._scale + 1 :] = 1
        most = np.full(self._size, np.inf)
        for index, pool in enumerate(self._pools):
            most[self._scale + 1 + index] = self._problem.classes[self._columns[pool.column].parts[pool.part].gpu].count
        result = milp(
            goal,
            integrality=integral,
            bounds=Bounds(np.zeros(self._size), most),
            constraints=LinearConstraint(matrix.tocsr(), low, high),
            options={"time_limit": max(0.05, time_limit_s), "mip_rel_gap": gap},
        )
        if result.x is None:
            return None
        bound = result.mip_dual_bound if result.mip_dual_bound is not None else result.fun
        sign = -1.0 if self._problem.objective == "throughput" else 1.0
        return result.x, sign * float(result.fun), sign * float(bound)

    def _bearing(self) -> list[Any]:
        """No column has a higher rate than any of its pools bears."""
        return [
            (
                {
                    pool.column: 1.0,
                    self._scale + 1 + index: -self._columns[pool.column].parts[pool.part].rate_rps,
                },
                -np.inf,
                0.0,
            )
            for index, pool in enumerate(self._pools)
        ]

    def _available(self) -> list[Any]:
        """No class has more GPUs than there are."""
        rows = []
        for number, gpu in enumerate(self._problem.classes):
            row = {
                self._scale + 1 + index: 1.0
                for index, pool in enumerate(self._pools)
                if self._columns[pool.column].parts[pool.part].gpu == number
            }
            rows.append((row, 0.0, float(gpu.count)))
        return rows

    def _pairs(self) -> list[Any]:
        firsts = {pool.column: index for index, pool in enumerate(self._pools) if pool.part == 0}
        return [
            ({self._scale + 1 + index: 1.0, self._scale + 1 + firsts[pool.column]: -1.0}, 0.0, 0.0)
            for index, pool in enumerate(self._pools)
            if pool.part
        ]

    def _wanted(self) -> list[Any]:
        """Every model has its part of the load, or the rate that it must bear."""
        rows = []
        for number, model in enumerate(self._problem.models):
            row = {index: 1.0 for index, column in enumerate(self._columns) if column.model == number}
            if self._problem.objective == "throughput":
                row[self._scale] = -model.weight
                rows.append((row, 0.0, np.inf))
            else:
                rows.append((row, float(model.rate_rps or 0.0), np.inf))
        return rows

    def _counts(self, x: NDArray[np.float64], objective: float, bound: float) -> Counts:
        gpus: list[list[int]] = [[] for _ in self._columns]
        for index, pool in enumerate(self._pools):
            gpus[pool.column].append(round(x[self._scale + 1 + index]))
        rates = np.array(
            [
                min(part.rate_rps * count for part, count in zip(column.parts, gpus[number], strict=True))
                for number, column in enumerate(self._columns)
            ]
        )
        return Counts(objective, bound, rates, gpus)
