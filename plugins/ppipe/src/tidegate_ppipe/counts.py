"""How many workers each column gets: an integer program over workers and whole GPUs, solved by HiGHS.

Variables: for each column its rate, for each of its pools a number of workers, for each (model, class, share) a number
of GPUs. A column's rate is at most what each of its pools bears. GPUs come whole, where equation 23 of A.2 takes shares
of them, since workers have to be placed: those on one GPU are of one model, whose blocks were profiled side by side.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import lil_matrix

from tidegate_ppipe.columns import Column
from tidegate_ppipe.problem import PpipeProblem

NEAR = (0.01, 0.02)
"""Columns whose reduced cost is at most this share of the objective, first the fewer, then the more: with whole numbers
the others hardly ever pay."""
SLACK = 1e-7
"""By which share of itself the first stage's objective may be missed in the second: solvers round."""


@dataclass(frozen=True)
class Counts:
    """What each column gets."""

    objective: float
    bound: float
    rates_rps: NDArray[np.float64]
    """By column."""
    workers: list[list[int]]
    """By column, of each of its pools."""


@dataclass(frozen=True)
class Pool:
    """One pool of a column."""

    column: int
    part: int
    group: tuple[int, int, int]
    """(model, class, share): workers that may be on one GPU."""


def solve(problem: PpipeProblem, columns: Sequence[Column], *, paired: bool, time_limit_s: float) -> Counts | None:
    """The best numbers found in the time; None where there are none.

    The linear program over shares of GPUs comes first: it bounds what is possible, and its prices say which columns are
    worth an integer program.
    """
    if problem.objective != "throughput" or paired:
        return Program(problem, columns, paired=paired).solve(time_limit_s=time_limit_s)
    bound, reduced = _priced(problem, columns)
    best: Counts | None = None
    for near, share in zip(NEAR, (0.25, 0.65), strict=True):
        chosen = np.flatnonzero(reduced <= near)
        program = Program(problem, [columns[index] for index in chosen], paired=False)
        found = program.solve(time_limit_s=time_limit_s * share, at_least=best.objective if best else 0.0)
        if found is not None and (best is None or found.objective > best.objective):
            rates = np.zeros(len(columns))
            rates[chosen] = found.rates_rps
            workers = [[0] * len(column.parts) for column in columns]
            for index, mine in zip(chosen, found.workers, strict=True):
                workers[index] = mine
            best = Counts(found.objective, bound, rates, workers)
        if best and bound <= best.objective * (1 + problem.gap):
            break
    return best


def _priced(problem: PpipeProblem, columns: Sequence[Column]) -> tuple[float, NDArray[np.float64]]:
    """The load that shares of GPUs would bear, and each column's reduced cost as a share of it."""
    classes, models, count = len(problem.classes), len(problem.models), len(columns)
    rows = np.zeros((classes + models, count + 1))
    for index, column in enumerate(columns):
        rows[:classes, index] = column.gpus_per_rps(classes)
        rows[classes + column.model, index] = -1.0
    for number, model in enumerate(problem.models):
        rows[classes + number, count] = model.weight
    most = np.array([*(gpu.count for gpu in problem.classes), *([0.0] * models)], dtype=float)
    goal = np.zeros(count + 1)
    goal[count] = -1.0
    result = linprog(goal, A_ub=rows, b_ub=most, method="highs")
    reduced = (goal - rows.T @ result.ineqlin.marginals)[:count]
    weights = np.array([problem.models[column.model].weight for column in columns])
    return -(result.fun or 0.0), reduced * weights


class Program:
    """The program; solved for what is wanted, and then for the best use of what is left."""

    def __init__(self, problem: PpipeProblem, columns: Sequence[Column], *, paired: bool) -> None:
        """`paired`: all pools of a column have equally many workers."""
        self._problem = problem
        self._columns = columns
        self._pools = [
            Pool(number, index, (column.model, part.gpu, part.share))
            for number, column in enumerate(columns)
            for index, part in enumerate(column.parts)
        ]
        self._groups = sorted({pool.group for pool in self._pools})
        self._scale = len(columns)
        """The index of the load factor, after the rates; then come the workers, then the GPUs."""
        self._first_gpus = len(columns) + 1 + len(self._pools)
        self._size = self._first_gpus + len(self._groups)
        rows = self._bearing() + self._placed() + self._available()
        if paired:
            rows += self._pairs()
        self._rows = rows + self._wanted()

    def solve(self, *, time_limit_s: float, at_least: float = 0.0) -> Counts | None:
        """The best numbers found in the time; None where there are none. A quarter of it is for the second stage.

        `at_least`: what a throughput has to be to be of interest.
        """
        cutoff = [self._load_of_at_least(at_least)] if at_least else []
        first = self._run(self._goal(), cutoff, time_limit_s * 3 / 4)
        if first is None:
            return None
        x, objective, bound = first
        second = self._second_stage(x, time_limit_s / 4)
        return self._counts(x if second is None else second, objective, bound)

    def _load_of_at_least(self, load: float) -> Any:  # noqa: ANN401 - a row: coefficients, least, most
        return {self._scale: 1.0}, load, np.inf

    def _goal(self) -> NDArray[np.float64]:
        """What is made small."""
        goal = np.zeros(self._size)
        if self._problem.objective == "throughput":
            goal[self._scale] = -1.0
        else:
            for index, (_, number, _) in enumerate(self._groups):
                gpu = self._problem.classes[number]
                goal[self._first_gpus + index] = gpu.cost if self._problem.objective == "cost" else gpu.power_w
        return goal

    def _second_stage(self, x: NDArray[np.float64], time_limit_s: float) -> NDArray[np.float64] | None:
        """Max-min says nothing of the models that do not bind: serve them as well as what is left allows."""
        if self._problem.objective != "throughput":
            return None
        goal = np.zeros(self._size)
        for number, column in enumerate(self._columns):
            goal[number] = -1.0 / self._problem.models[column.model].weight
        found = self._run(goal, [self._load_of_at_least(x[self._scale] * (1 - SLACK))], time_limit_s)
        return None if found is None else found[0]

    def _run(
        self, goal: NDArray[np.float64], more: list[Any], time_limit_s: float
    ) -> tuple[NDArray[np.float64], float, float] | None:
        rows = [*self._rows, *more]
        matrix = lil_matrix((len(rows), self._size))
        low, high = np.empty(len(rows)), np.empty(len(rows))
        for index, (row, least, most) in enumerate(rows):
            for position, value in row.items():
                matrix[index, position] = value
            low[index], high[index] = least, most
        integral = np.zeros(self._size, dtype=np.int64)
        integral[self._scale + 1 :] = 1
        most = np.full(self._size, np.inf)
        for index, (_, number, _) in enumerate(self._groups):
            most[self._first_gpus + index] = self._problem.classes[number].count
        result = milp(
            goal,
            integrality=integral,
            bounds=Bounds(np.zeros(self._size), most),
            constraints=LinearConstraint(matrix.tocsr(), low, high),
            options={"time_limit": max(0.05, time_limit_s), "mip_rel_gap": self._problem.gap},
        )
        if result.x is None:
            return None
        bound = result.mip_dual_bound if result.mip_dual_bound is not None else result.fun
        sign = -1.0 if self._problem.objective == "throughput" else 1.0
        return result.x, sign * float(result.fun), sign * float(bound)

    def _bearing(self) -> list[Any]:
        """No column has a higher rate than any of its pools bears."""
        rows = []
        for index, pool in enumerate(self._pools):
            part = self._columns[pool.column].parts[pool.part]
            rows.append(({pool.column: 1.0, self._scale + 1 + index: -part.rate_rps / part.share}, -np.inf, 0.0))
        return rows

    def _placed(self) -> list[Any]:
        """Every worker has its place on a GPU."""
        rows = []
        for number, group in enumerate(self._groups):
            row = {self._scale + 1 + index: 1.0 for index, pool in enumerate(self._pools) if pool.group == group}
            row[self._first_gpus + number] = -float(group[2])
            rows.append((row, -np.inf, 0.0))
        return rows

    def _available(self) -> list[Any]:
        """No class has more GPUs than there are."""
        rows = []
        for number, gpu in enumerate(self._problem.classes):
            row = {self._first_gpus + index: 1.0 for index, group in enumerate(self._groups) if group[1] == number}
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
        workers: list[list[int]] = [[] for _ in self._columns]
        for index, pool in enumerate(self._pools):
            workers[pool.column].append(round(x[self._scale + 1 + index]))
        rates = np.array(
            [
                min(
                    part.rate_rps / part.share * count
                    for part, count in zip(column.parts, workers[number], strict=True)
                )
                for number, column in enumerate(self._columns)
            ]
        )
        return Counts(objective, bound, rates, workers)
