"""How many workers each column gets: a start by rounding, then integer programs over the columns that are worth it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidegate.api import Progress
from tidegate_ppipe.columns import Column, cheapest
from tidegate_ppipe.prices import Prices
from tidegate_ppipe.problem import PpipeProblem
from tidegate_ppipe.program import Program
from tidegate_ppipe.rounding import Workers, gpus_of, rates_of, rounded

FILLERS = 5
"""How many times dearer than other columns a whole model on one GPU may be: it fills what they leave."""
FIRST_SEARCH = 0.3
"""Of the time, where a second search may follow."""
LEVELLING = 0.25
"""Of the time that is left: for the second stage."""
LEAST_S = 0.2
"""A search gets so much however late it is: with less it would hardly begin."""


@dataclass(frozen=True)
class Counts:
    """What each column gets."""

    objective: float
    """The load for throughput, else cost or watts."""
    bound: float | None
    """No numbers are better; None: unknown."""
    workers: Workers


@dataclass(frozen=True)
class Nothing:
    """There are no numbers to give."""

    proven: bool
    """That there are none; else the time was too short."""


def solve(
    problem: PpipeProblem,
    columns: Sequence[Column],
    prices: Prices,
    *,
    exact: bool,
    paired: bool = False,
    time_limit_s: float,
    progress: Progress,
) -> Counts | Nothing:
    """The best numbers found by the time, no worse than the optimum in parts of GPUs, rounded.

    `prices`: of these columns. `exact`: no column that could be of use is missing, so that a search over all of them is
    worth its time, and proves. `paired`: all pools of a column have equally many workers.
    """
    search = _Search(problem, columns, prices, paired, time_limit_s, progress)
    near = worth_it(problem, columns, prices)
    search.over(near, FIRST_SEARCH if exact else 1.0, proves=False)
    if search.best is None or (exact and not search.is_good_enough):
        search.over(range(len(columns)), 1.0, proves=exact)
    if search.best is None:
        return Nothing(exact and search.proven)
    if problem.objective == "throughput":
        search.level(near)
    return Counts(search.value, search.bound, search.best)


def worth_it(problem: PpipeProblem, columns: Sequence[Column], prices: Prices) -> list[int]:
    """Columns through which a model's whole load would cost no more than a GPU is worth, or a few where they fill gaps.

    With whole numbers the others hardly ever pay. Of those that cost as much of every class, or more, as another one
    of the model, only whole models on one GPU are kept.
    """
    is_load = problem.objective == "throughput"
    one_gpu = 1 / problem.gpus if is_load else max(problem.prices) / prices.objective
    chosen = {
        index
        for index, column in enumerate(columns)
        if len(column.parts) == 1 and prices.reduced[index] <= FILLERS * one_gpu
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
        self.best = rounded(problem, columns, prices.rates_rps)

    @property
    def value(self) -> float:
        """Of the best."""
        assert self.best is not None
        if self._problem.objective != "throughput":
            gpus = gpus_of(self._columns, self.best)
            return sum(price * gpus[number] for number, price in enumerate(self._problem.prices))
        return min(self._loads(self.best))

    @property
    def is_good_enough(self) -> bool:
        """Whether no more than the problem's gap can be gained."""
        return self.best is not None and abs(self.bound - self.value) <= self._problem.gap * self.value

    def over(self, chosen: Sequence[int], share: float, *, proves: bool) -> None:
        """Search these columns, for a share of the time that is left to the first stage."""
        beat = None if self.best is None else self.value
        time_limit_s = self._left_s(beat) * (1 - LEVELLING) * share
        answer = self._program(chosen).search(time_limit_s=max(LEAST_S, time_limit_s), beat=beat)
        if answer.objective > 0:
            self._take(chosen, answer.workers)
        self.proven = answer.proven or answer.bound == 0
        if proves and answer.bound is not None and self.best is not None:
            nearer = min if self._problem.objective == "throughput" else max
            self.bound = nearer(self.bound, answer.bound)

    def level(self, chosen: Sequence[int]) -> None:
        """Use what the first stage left, if that is more in the time."""
        assert self.best is not None
        before = self.best
        inside = {*chosen, *(index for index, mine in enumerate(self.best) if any(mine))}
        time_limit_s = max(LEAST_S, self._left_s(self.value))
        chosen = sorted(inside)
        self._take(chosen, self._program(chosen).level(self.value, time_limit_s=time_limit_s).workers)
        if sum(self._loads(self.best)) < sum(self._loads(before)):
            self.best = before

    def _program(self, chosen: Sequence[int]) -> Program:
        return Program(self._problem, [self._columns[index] for index in chosen], paired=self._paired)

    def _loads(self, workers: Workers) -> list[float]:
        """Of each model, its rate relative to its weight."""
        loads = [0.0] * len(self._problem.models)
        for column, rate in zip(self._columns, rates_of(self._columns, workers), strict=True):
            loads[column.model] += float(rate) / self._problem.models[column.model].weight
        return loads

    def _left_s(self, value: float | None) -> float:
        return self._time_limit_s - self._progress(objective=value, bound=self.bound)

    def _take(self, chosen: Sequence[int], workers: Workers | None) -> None:
        if workers is None:
            return
        best: Workers = [[0] * len(column.parts) for column in self._columns]
        for index, mine in zip(chosen, workers, strict=True):
            if all(mine):  # else no batch could pass
                best[index] = mine
        self.best = best
