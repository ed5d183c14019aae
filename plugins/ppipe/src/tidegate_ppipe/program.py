"""The integer program: number of workers of each column, on whole GPUs, solved by HiGHS.

Variables: a rate for each column, a number of workers for each of its pools, a number of GPUs for each (model, class,
share). A column's rate is at most that of each pool. GPUs are whole, unlike in equation 23 of A.2, because workers must
be placed: workers on one GPU are of one model, whose blocks were profiled side by side.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

from tidegate_ppipe.columns import Column
from tidegate_ppipe.problem import PpipeProblem
from tidegate_ppipe.rounding import Workers

OBJECTIVE_TOLERANCE = 1e-7
"""Relative tolerance of the first objective in the second solve, for rounding of the solver."""
INFEASIBLE_STATUS = 2
"""Status of the solver for an infeasible program."""

Row = tuple[dict[int, float], float, float]
"""Constraint: coefficients by variable, minimum, maximum."""


@dataclass(frozen=True)
class ColumnPool:
    """One pool of a column in the program."""

    column: int
    part: int
    group: tuple[int, int, int]
    """(model, class, share): workers that may share a GPU."""


@dataclass(frozen=True)
class ProgramSolution:
    """Result of a search. For throughput the objective is the load in requests per second for a weight of 1."""

    workers: Workers | None
    """Workers of each pool, by column; None: none found that are good enough."""
    objective: float
    bound: float | None
    """Bound over these columns; None: unknown."""
    proven: bool
    """Whether the absence of a solution is proven, if none was found."""


class Program:
    """Integer program for the workers of given columns."""

    def __init__(self, problem: PpipeProblem, columns: Sequence[Column], *, paired: bool) -> None:
        """Create the program. `paired`: all pools of a column have equally many workers."""
        self._problem = problem
        self._columns = columns
        self._pools = [
            ColumnPool(number, index, (column.model, part.gpu, part.share))
            for number, column in enumerate(columns)
            for index, part in enumerate(column.parts)
        ]
        self._groups = sorted({pool.group for pool in self._pools})
        self._load = len(columns)
        """The index of the load, after the rates; then come the workers, then the GPUs."""
        self._first_gpus = len(columns) + 1 + len(self._pools)
        self._size = self._first_gpus + len(self._groups)
        rows = self._bearing() + self._placed() + self._available()
        if paired:
            rows += self._pairs()
        self._rows = rows + self._wanted()

    def search(self, *, time_limit_s: float, beat: float | None) -> ProgramSolution:
        """Return the best numbers found in `time_limit_s` seconds.

        `beat`: objective to exceed; solutions that are no better are ignored. None: any solution counts.
        """
        goal = np.zeros(self._size)
        limits: list[Row] = []
        if self._problem.objective == "throughput":
            goal[self._load] = -1.0
            if beat is not None:
                limits = [({self._load: 1.0}, beat * (1 - OBJECTIVE_TOLERANCE), np.inf)]
        else:
            goal[self._first_gpus :] = [self._problem.prices[number] for _, number, _ in self._groups]
            if beat is not None:
                prices = {
                    self._first_gpus + index: goal[self._first_gpus + index] for index in range(len(self._groups))
                }
                limits = [(prices, -np.inf, beat * (1 + OBJECTIVE_TOLERANCE))]
        return self._run(goal, limits, time_limit_s)

    def level(self, load: float, *, time_limit_s: float) -> ProgramSolution:
        """Return the second solve for throughput: the most requests of all models together at the given load.

        Max-min does not determine the models that do not limit the load; they get the remaining GPUs. `time_limit_s`:
        seconds to search.
        """
        goal = np.zeros(self._size)
        for number, column in enumerate(self._columns):
            goal[number] = -1.0 / self._problem.models[column.model].weight
        return self._run(goal, [({self._load: 1.0}, load * (1 - OBJECTIVE_TOLERANCE), np.inf)], time_limit_s)

    def _run(self, goal: NDArray[np.float64], limits: list[Row], time_limit_s: float) -> ProgramSolution:
        rows = [*self._rows, *limits]
        matrix = lil_matrix((len(rows), self._size))
        low, high = np.empty(len(rows)), np.empty(len(rows))
        for index, (row, least, top) in enumerate(rows):
            for position, value in row.items():
                matrix[index, position] = value
            low[index], high[index] = least, top
        integral = np.zeros(self._size, dtype=np.int64)
        integral[self._load + 1 :] = 1
        most = np.full(self._size, np.inf)
        for index, (_, number, _) in enumerate(self._groups):
            most[self._first_gpus + index] = self._problem.classes[number].count
        result = milp(
            goal,
            integrality=integral,
            bounds=Bounds(np.zeros(self._size), most),
            constraints=LinearConstraint(matrix.tocsr(), low, high),
            options={"time_limit": time_limit_s, "mip_rel_gap": self._problem.gap},
        )
        bound = None if result.mip_dual_bound is None else abs(float(result.mip_dual_bound))
        if result.x is None:
            return ProgramSolution(None, 0.0, bound, proven=result.status == INFEASIBLE_STATUS)
        workers: Workers = [[] for _ in self._columns]
        for index, pool in enumerate(self._pools):
            workers[pool.column].append(round(result.x[self._load + 1 + index]))
        return ProgramSolution(workers, abs(float(result.fun)), bound, proven=False)

    def _bearing(self) -> list[Row]:
        """Constrain the rate of each column to that which each of its pools sustains."""
        rows: list[Row] = []
        for index, pool in enumerate(self._pools):
            part = self._columns[pool.column].parts[pool.part]
            rows.append(({pool.column: 1.0, self._load + 1 + index: -part.rate_rps / part.share}, -np.inf, 0.0))
        return rows

    def _placed(self) -> list[Row]:
        """Every worker has its place on a GPU."""
        rows: list[Row] = []
        for number, group in enumerate(self._groups):
            row = {self._load + 1 + index: 1.0 for index, pool in enumerate(self._pools) if pool.group == group}
            row[self._first_gpus + number] = -float(group[2])
            rows.append((row, -np.inf, 0.0))
        return rows

    def _available(self) -> list[Row]:
        """No class has more GPUs than there are."""
        rows: list[Row] = []
        for number, gpu in enumerate(self._problem.classes):
            row = {self._first_gpus + index: 1.0 for index, group in enumerate(self._groups) if group[1] == number}
            rows.append((row, 0.0, float(gpu.count)))
        return rows

    def _pairs(self) -> list[Row]:
        firsts = {pool.column: index for index, pool in enumerate(self._pools) if pool.part == 0}
        return [
            ({self._load + 1 + index: 1.0, self._load + 1 + firsts[pool.column]: -1.0}, 0.0, 0.0)
            for index, pool in enumerate(self._pools)
            if pool.part
        ]

    def _wanted(self) -> list[Row]:
        """Every model has its part of the load, or the rate that it must bear."""
        rows: list[Row] = []
        for number, model in enumerate(self._problem.models):
            row = {index: 1.0 for index, column in enumerate(self._columns) if column.model == number}
            if self._problem.objective == "throughput":
                row[self._load] = -model.weight
                rows.append((row, 0.0, np.inf))
            else:
                rows.append((row, float(model.rate_rps or 0.0), np.inf))
        return rows
