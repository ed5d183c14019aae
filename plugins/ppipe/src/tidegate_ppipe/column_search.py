"""Number of workers of each column: rounding first, then wider searches while gap and time remain.

Few enough GPUs are divided with tables, first whole GPUs, then parts of them for the bound. If the tables are large, an
integer program over the columns that pay by their prices comes first, then a wider one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from tidegate.api import Progress
from tidegate_ppipe.columns import RELATIVE_TOLERANCE, Column, cheapest
from tidegate_ppipe.division import can_divide, divide, divides_quickly, units_of
from tidegate_ppipe.problem import PpipeProblem
from tidegate_ppipe.program import OBJECTIVE_TOLERANCE, Program
from tidegate_ppipe.rounding import Workers, fits, gpus_of, rates_of, rounded

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Prices:
    """Optimum of the linear program, with its dual prices."""

    objective: float
    """Bound: load for the objective throughput, otherwise cost or watts."""
    rates_rps: Floats
    """Requests per second of each column."""
    reduced: Floats
    """Fraction of the objective that is lost if a column serves its model's whole load, by column; at least 0."""
    scarce: int
    """Index of the GPU class of which one more GPU would help most."""


def price(problem: PpipeProblem, columns: Sequence[Column]) -> Prices | None:
    """Return the optimum of the linear program; None if the GPUs cannot sustain the rates."""
    classes, models, count = len(problem.classes), len(problem.models), len(columns)
    is_load = problem.objective == "throughput"
    rows = np.zeros((classes + models, count + is_load))
    for index, column in enumerate(columns):
        rows[:classes, index] = column.gpus_per_rps(classes)
        rows[classes + column.model, index] = -1.0
    most = np.array([*(gpu.count for gpu in problem.classes), *([0.0] * models)], dtype=float)
    goal = np.zeros(count + is_load)
    if is_load:
        rows[classes:, count] = load_shares = [model.weight for model in problem.models]
        goal[count] = -1.0
    else:
        load_shares = [float(model.rate_rps or 0.0) for model in problem.models]
        most[classes:] = [-rate for rate in load_shares]
        goal[:] = np.array(problem.prices) @ rows[:classes]
    result: Any = linprog(goal, A_ub=rows, b_ub=most, method="highs")
    if result.x is None:
        return None
    objective = abs(float(result.fun))
    marginals = np.asarray(result.ineqlin.marginals)
    loads = np.array([load_shares[column.model] for column in columns])
    reduced = (goal - rows.T @ marginals)[:count] * loads / (1.0 if is_load else objective)
    return Prices(
        objective, np.asarray(result.x)[:count], np.maximum(reduced, 0.0), int(np.argmin(marginals[:classes]))
    )


MAX_FILLER_PRICE_RATIO = 5
"""Maximum price of a whole model on one GPU relative to other columns: it fills the GPUs that they leave."""
MAX_COLUMNS = 4000
"""Maximum number of columns of an integer program, the cheapest ones; more delay the solver's check of the time."""
FIRST_SEARCH = 0.15
"""Fraction of the remaining time for the first integer program."""
DIVISION_TIME_FRACTION = 0.8
"""Fraction of the remaining time for each division with tables."""
LEVELING_TIME_FRACTION = 0.25
"""Fraction of the remaining time for the second solve."""
MIN_S = 0.2
"""Minimum seconds of a search, even after the time limit."""


@dataclass(frozen=True)
class ColumnCounts:
    """Number of GPUs of each column."""

    objective: float
    """Load for the objective throughput, otherwise cost or watts."""
    bound: float | None
    """Bound of the objective; None: unknown."""
    workers: Workers


@dataclass(frozen=True)
class Infeasible:
    """Result of a search without a plan: none exists, or none was found in time."""

    proven: bool
    """Whether the absence of a plan is proven; otherwise the time was too short."""


def solve(
    problem: PpipeProblem,
    columns: Sequence[Column],
    prices: Prices,
    *,
    exact: bool,
    paired: bool = False,
    time_limit_s: float,
    progress: Progress,
) -> ColumnCounts | Infeasible:
    """Return the best numbers of GPUs found in time, no worse than the rounded optimum in parts of GPUs.

    `prices`: of these columns. `exact`: the columns are complete, so a search over all of them can prove optimality.
    `paired`: all pools of a column have equally many workers. `time_limit_s`: seconds to search.
    """
    search = _Search(problem, columns, prices, paired, time_limit_s, progress)
    is_quick = divides_quickly(problem)
    is_divided = is_quick and search.divided(proves=exact)
    if not is_divided and not search.is_over:
        search.over(worth_it(problem, columns, prices), FIRST_SEARCH, proves=False)
        if can_divide(problem) and not is_quick and not search.is_over:
            search.divided(proves=exact)
    if not search.is_over:
        wide = np.argsort(prices.reduced, kind="stable")[:MAX_COLUMNS].tolist()
        search.over(wide, 1.0, proves=exact and len(wide) == len(columns))
    if search.best is None:
        return Infeasible(exact and search.proven)
    if problem.objective == "throughput" and not search.is_level:
        search.level(worth_it(problem, columns, prices))
    return ColumnCounts(search.value, search.bound, search.best)


def worth_it(problem: PpipeProblem, columns: Sequence[Column], prices: Prices) -> list[int]:
    """Return columns that could serve a model's whole load for at most one GPU more, and a few that fill gaps.

    With whole GPUs the others hardly ever pay. Of columns that cost at least as much of every class as another one of
    the model, only whole models on one GPU are kept.
    """
    is_load = problem.objective == "throughput"
    one_gpu = 1 / problem.gpus if is_load else max(problem.prices) / prices.objective
    chosen = {
        index
        for index, column in enumerate(columns)
        if len(column.parts) == 1 and prices.reduced[index] <= MAX_FILLER_PRICE_RATIO * one_gpu
    }
    for number in range(len(problem.models)):
        mine = [
            index for index, column in enumerate(columns) if column.model == number and prices.reduced[index] <= one_gpu
        ]
        if mine:
            costs = np.stack([columns[index].gpus_per_rps(len(problem.classes)) for index in mine])
            chosen.update(mine[index] for index in cheapest(costs))
    return sorted(chosen)


class _Search:
    """The best so far, and what is known of what could be."""

    def __init__(
        self,
        problem: PpipeProblem,
        columns: Sequence[Column],
        prices: Prices,
        paired: bool,
        time_limit_s: float,
        progress: Progress,
    ) -> None:
        self._problem = problem
        self._columns = columns
        self._paired = paired
        self._time_limit_s = time_limit_s
        self._progress = progress
        self.bound = prices.objective
        self.proven = False
        self._leveled: Workers | None = None
        self.best = rounded(problem, columns, prices.rates_rps)

    @property
    def value(self) -> float:
        """The objective of the best."""
        assert self.best is not None
        return self._value_of(self.best)

    @property
    def is_level(self) -> bool:
        """Whether the models that do not bind have all that the best leaves them."""
        return self.best is self._leveled

    @property
    def is_over(self) -> bool:
        """Whether no more than the problem's gap can be gained, or the time is up."""
        if self.best is None:
            return False
        is_good_enough = abs(self.bound - self.value) <= max(self._problem.gap, RELATIVE_TOLERANCE) * self.value
        return is_good_enough or self._left_s() <= 0

    def divided(self, *, proves: bool) -> bool:
        """Divide whole GPUs by tables, then, where it `proves` and something may be gained, parts of them.

        Returns whether there was time for the whole ones.
        """
        whole = [1] * len(self._problem.classes)
        parts = units_of(self._problem, self._columns) if proves else None
        for units in (whole, parts):
            if units is None or self.is_over:
                break
            try:
                found = divide(
                    self._problem,
                    self._columns,
                    units,
                    loads=(0.0 if self.best is None else self.value, self.bound),
                    on_time=self._until(DIVISION_TIME_FRACTION),
                )
            except TimeoutError:
                return units is parts
            if found is None:
                continue
            if units == parts:
                self._prove(found.value)
            if fits(self._problem, *self._used(found.workers)):
                self._take(found.workers)
                if found.is_level and self.best is found.workers:
                    self._leveled = self.best
        return True

    def over(self, chosen: Sequence[int], share: float, *, proves: bool) -> None:
        """Search these columns by an integer program, for a share of the time that is left to the first solve."""
        time_limit_s = self._left_s() * (1 - LEVELING_TIME_FRACTION) * share
        beat = None if self.best is None else self.value
        answer = self._program(chosen).search(time_limit_s=max(MIN_S, time_limit_s), beat=beat)
        if answer.objective > 0:
            self._take(self._spread(chosen, answer.workers))
        self.proven = proves and (answer.proven or answer.bound == 0)
        if proves and answer.bound is not None and self.best is not None:
            self._prove(answer.bound)

    def level(self, chosen: Sequence[int]) -> None:
        """Use what the first solve left, if that is more in the time."""
        assert self.best is not None
        inside = sorted({*chosen, *(index for index, mine in enumerate(self.best) if any(mine))})
        time_limit_s = max(MIN_S, self._left_s())
        self._take(self._spread(inside, self._program(inside).level(self.value, time_limit_s=time_limit_s).workers))

    def _program(self, chosen: Sequence[int]) -> Program:
        return Program(self._problem, [self._columns[index] for index in chosen], paired=self._paired)

    def _value_of(self, workers: Workers) -> float:
        if self._problem.objective != "throughput":
            gpus = gpus_of(*self._used(workers))
            return sum(price * gpus[number] for number, price in enumerate(self._problem.prices))
        return min(self._loads(workers))

    def _loads(self, workers: Workers) -> list[float]:
        """The rate of each model relative to its weight."""
        loads = [0.0] * len(self._problem.models)
        columns, mine = self._used(workers)
        for column, rate in zip(columns, rates_of(columns, mine), strict=True):
            loads[column.model] += float(rate) / self._problem.models[column.model].weight
        return loads

    def _used(self, workers: Workers) -> tuple[list[Column], Workers]:
        """Columns that have workers, of thousands, and their workers."""
        used = [index for index, mine in enumerate(workers) if any(mine)]
        return [self._columns[index] for index in used], [workers[index] for index in used]

    def _left_s(self) -> float:
        """Seconds; those who watch hear how far it is."""
        value = None if self.best is None else self.value
        return self._time_limit_s - self._progress(objective=value, bound=self.bound)

    def _until(self, share: float) -> Callable[[], None]:
        """Return a check that raises TimeoutError when a fraction of the remaining time is over."""
        until_s = self._time_limit_s - self._left_s() * (1 - share)

        def on_time() -> None:
            if self._progress() > until_s:
                raise TimeoutError

        return on_time

    def _prove(self, bound: float) -> None:
        """No plan is better than this."""
        nearer = min if self._problem.objective == "throughput" else max
        self.bound = nearer(self.bound, bound)

    def _spread(self, chosen: Sequence[int], workers: Workers | None) -> Workers | None:
        """Workers of some columns as those of all."""
        if workers is None:
            return None
        every: Workers = [[0] * len(column.parts) for column in self._columns]
        for index, mine in zip(chosen, workers, strict=True):
            if all(mine):  # else no batch could pass
                every[index] = mine
        return every

    def _take(self, workers: Workers | None) -> None:
        """Keep a result that is better, or as good and sustains more of all models together."""
        if workers is None:
            return
        if self.best is not None:
            value, before = self._value_of(workers), self.value
            is_load = self._problem.objective == "throughput"
            gain, rounding = value - before if is_load else before - value, 2 * OBJECTIVE_TOLERANCE * before
            if gain < -rounding or (gain <= rounding and sum(self._loads(workers)) <= sum(self._loads(self.best))):
                return
        self.best = workers
