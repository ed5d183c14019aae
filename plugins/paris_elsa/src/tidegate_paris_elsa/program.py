"""The integer program: number of slices of each type for each model, and the partition of every GPU, solved by HiGHS.

PARIS does not define how fractional slices become whole ones that fit GPUs. Here whole slices sustain as much as
possible of the load that the fractional ones would; a segment may also be served by larger slices, as ELSA does. Among
the numbers that sustain as much, those nearest to PARIS's are taken. Partitions of a GPU are enumerated (`budget`), so
every solution can be placed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp
from scipy.sparse import csr_matrix

from tidegate.api import PlanningError, Progress
from tidegate_paris_elsa.budget import Budget, Cut, spent
from tidegate_paris_elsa.problem import MigProblem
from tidegate_paris_elsa.slices import SliceOffers

LOAD_TOLERANCE = 1e-6
"""Relative tolerance of the load in the second solve, for rounding of the solver."""
LOAD_SHARE = 0.7
"""Fraction of the time for the first solve."""
MIN_S = 0.2
"""Minimum seconds of a search, even after the time limit."""
INFEASIBLE_STATUS = 2
"""Status of the solver for an infeasible program."""


@dataclass(frozen=True)
class SizeDemand:
    """Requests of a range of sizes of one model."""

    model: int
    works_s: Mapping[int, float]
    """Seconds of a slice for each request of the model of any size, by index of a slice type that may serve them."""


@dataclass(frozen=True)
class SliceCounts:
    """Number of slices of each slice type for each model."""

    load: float
    """Rate that every model gets, in requests per second relative to its weight."""
    bound: float | None
    """Bound of the load; None: unknown."""
    slices: Mapping[tuple[int, int], int]
    """Number of slices by (model, slice type)."""
    cuts: Counter[tuple[int, Cut]]
    """Number of GPUs by (pool, partition); they may have more slices than are needed."""


Row = tuple[dict[int, float], float, float]
"""Constraint: coefficients by variable, minimum, maximum."""


def minimize(
    goal: NDArray[np.float64],
    rows: Sequence[Row],
    integral: NDArray[np.int64],
    most: NDArray[np.float64],
    *,
    time_limit_s: float,
    gap: float,
) -> OptimizeResult:
    """Return the solver's result for variables from 0 to `most`, of which those with 1 in `integral` are whole.

    `goal`: coefficients by variable. `rows`: constraints. `time_limit_s`: seconds to search. `gap`: relative distance
    from the bound at which the search ends.
    """
    places = [(number, place, value) for number, (row, _, _) in enumerate(rows) for place, value in row.items()]
    down, across, values = zip(*places, strict=True)
    matrix = csr_matrix((values, (down, across)), shape=(len(rows), len(goal)))
    return milp(
        goal,
        integrality=integral,
        bounds=Bounds(np.zeros(len(goal)), most),
        constraints=LinearConstraint(matrix, [low for _, low, _ in rows], [high for _, _, high in rows]),
        options={"time_limit": time_limit_s, "mip_rel_gap": gap},
    )


class Program:
    """Integer program for the numbers of slices.

    Variables in order: load; slices by (model, slice type); GPUs by (pool, partition); loads by (demand, slice type).
    """

    def __init__(
        self,
        problem: MigProblem,
        offers: SliceOffers,
        demands: Sequence[SizeDemand],
        cuts: Sequence[tuple[int, Cut]],
        gpcs: int,
        *,
        most_of_each: Sequence[int],
        most_rps: float = np.inf,
    ) -> None:
        """Create the program.

        `offers`: slice types with latencies; `demands`: requests to serve; `cuts`: allowed (pool, partition) pairs;
        `gpcs`: GPCs to use. `most_of_each`: maximum number of GPUs of each pair. `most_rps`: maximum load that is
        useful.
        """
        self._problem = problem
        self._slice_types = offers.slice_types
        self._cuts = cuts
        self._most_of_each = most_of_each
        self._gpcs = gpcs
        usable = sorted({slice_type for _, cut in cuts for slice_type, count in enumerate(cut) if count})
        self._slices = [
            (number, speed.slice_type)
            for number, mine in enumerate(offers.speeds)
            for speed in mine
            if speed.slice_type in usable
        ]
        self._flows = [
            (number, slice_type)
            for number, demand in enumerate(demands)
            for slice_type in demand.works_s
            if slice_type in usable
        ]
        self._first_cut = 1 + len(self._slices)
        self._first_flow = self._first_cut + len(cuts)
        self._size = self._first_flow + len(self._flows)
        weights = [model.weight for model in problem.models]
        self._unit_rps = gpcs / sum(
            weights[demand.model]
            * min(work * self._slice_types[slice_type].gpcs for slice_type, work in demand.works_s.items())
            for demand in demands
        )
        """The load that parts of slices would bear: of its size are all loads, which is what solvers like."""
        self._most_load = most_rps / self._unit_rps
        self._rows = self._served(demands, weights) + self._cut() + [self._spent()]

    def search(self, wanted: Mapping[tuple[int, int], float], time_limit_s: float, progress: Progress) -> SliceCounts:
        """Return the counts with the highest load, and among them the nearest to `wanted`, weighted by GPCs.

        `wanted`: slices by (model, slice type). `time_limit_s`: seconds to search. Raises PlanningError if there is no
        solution.
        """
        goal = np.zeros(self._size)
        goal[0] = -1.0
        most = self._run(goal, self._rows, self._problem.gap, (time_limit_s - progress()) * LOAD_SHARE)
        load = 0.0 if most.values is None else float(most.values[0])
        is_proven = most.bound is not None and -most.bound <= LOAD_TOLERANCE
        if most.values is None or (load <= LOAD_TOLERANCE and not is_proven):
            raise self._nothing(most.infeasible, time_limit_s)
        bound = None if most.bound is None else max(-most.bound, load) * self._unit_rps
        progress(objective=load * self._unit_rps, bound=bound)
        if load <= LOAD_TOLERANCE:
            raise PlanningError(
                f"gpus: {self._gpcs} GPCs are too few for {len(self._problem.models)} models: no two share a slice, "
                "and each needs some that are large enough: more GPCs, or fewer models"
            )
        near = self._nearest(wanted, load, time_limit_s - progress()) if wanted else most
        values = most.values if near.values is None else near.values
        slices = {key: round(float(values[1 + place])) for place, key in enumerate(self._slices)}
        cuts = Counter(
            {
                cut: count
                for place, cut in enumerate(self._cuts)
                if (count := round(float(values[self._first_cut + place])))
            }
        )
        return SliceCounts(load * self._unit_rps, bound, slices, cuts)

    def _nearest(self, wanted: Mapping[tuple[int, int], float], load: float, time_limit_s: float) -> "_Answer":
        """The counts that differ least, of those that bear as much: one more variable for each difference."""
        goal = np.zeros(self._size + len(self._slices))
        rows: list[Row] = [*self._rows, ({0: 1.0}, load * (1 - LOAD_TOLERANCE), np.inf)]
        for place, (model, slice_type) in enumerate(self._slices):
            ideal, count, far = wanted.get((model, slice_type), 0.0), 1 + place, self._size + place
            goal[far] = self._slice_types[slice_type].gpcs
            rows += [({far: 1.0, count: -1.0}, -ideal, np.inf), ({far: 1.0, count: 1.0}, ideal, np.inf)]
        return self._run(goal, rows, 1e-4, time_limit_s)

    def _served(self, demands: Sequence[SizeDemand], weights: Sequence[float]) -> list[Row]:
        """Constrain every demand to be served, and slices to their capacity."""
        rows: list[Row] = []
        busy: dict[tuple[int, int], dict[int, float]] = {key: {1 + n: -1.0} for n, key in enumerate(self._slices)}
        of_demand: list[dict[int, float]] = [{0: -1.0} for _ in demands]
        for place, (number, slice_type) in enumerate(self._flows, start=self._first_flow):
            demand = demands[number]
            of_demand[number][place] = 1.0
            busy[demand.model, slice_type][place] = demand.works_s[slice_type] * weights[demand.model] * self._unit_rps
        rows += [(row, 0.0, np.inf) for row in of_demand]
        rows += [(row, -np.inf, 0.0) for row in busy.values()]
        return rows

    def _cut(self) -> list[Row]:
        """GPUs are cut into no fewer slices than there are, and there are no more GPUs."""
        rows: list[Row] = []
        for slice_type in range(len(self._slice_types)):
            there = {
                self._first_cut + n: -float(cut[slice_type]) for n, (_, cut) in enumerate(self._cuts) if cut[slice_type]
            }
            used = {1 + place: 1.0 for place, (_, its) in enumerate(self._slices) if its == slice_type}
            if used:
                rows.append(({**there, **used}, -np.inf, 0.0))
        for number, pool in enumerate(self._problem.gpus):
            mine = {self._first_cut + n: 1.0 for n, (its, _) in enumerate(self._cuts) if its == number}
            if mine:
                rows.append((mine, 0.0, float(pool.count)))
        return rows

    def _spent(self) -> Row:
        gpcs = float(self._gpcs)
        return (
            {1 + n: float(self._slice_types[slice_type].gpcs) for n, (_, slice_type) in enumerate(self._slices)},
            gpcs,
            gpcs,
        )

    def _run(self, goal: NDArray[np.float64], rows: Sequence[Row], gap: float, time_limit_s: float) -> "_Answer":
        integral = np.zeros(len(goal), dtype=np.int64)
        integral[1 : self._first_flow] = 1
        most = np.full(len(goal), np.inf)
        most[0] = self._most_load
        most[self._first_cut : self._first_flow] = self._most_of_each
        result = minimize(goal, rows, integral, most, time_limit_s=max(MIN_S, time_limit_s), gap=gap)
        bound = None if result.mip_dual_bound is None else float(result.mip_dual_bound)
        return _Answer(result.x, bound, result.status == INFEASIBLE_STATUS)

    def _nothing(self, infeasible: bool, time_limit_s: float) -> PlanningError:
        if infeasible:
            return PlanningError(
                f"gpcs: {self._gpcs} cannot be spent with slices on which the models were measured: measure more, or "
                "give another number"
            )
        return PlanningError(f"found no plan in {time_limit_s:g} s, and no proof that there is none: give more time")


@dataclass(frozen=True)
class _Answer:
    values: NDArray[np.float64] | None
    bound: float | None
    infeasible: bool


def solve(
    problem: MigProblem,
    offers: SliceOffers,
    demands: Sequence[SizeDemand],
    budget: Budget,
    wanted: Mapping[tuple[int, int], float],
    *,
    most_rps: float = np.inf,
    time_limit_s: float,
    progress: Progress,
) -> SliceCounts:
    """Return the slices of a problem and the partitions of its GPUs, nearest to `wanted`, by (model, slice type).

    `offers`: slice types with latencies; `demands`: requests to serve. `most_rps`: load that the wanted slices
    would sustain; more is not useful. `time_limit_s`: seconds to search. Raises PlanningError if there is no solution.
    """
    cuts = [(pool, cut) for pool, mine in enumerate(budget.cuts) for cut in mine]
    most = [problem.gpus[pool].count for pool, _ in cuts]
    program = Program(problem, offers, demands, cuts, budget.gpcs, most_of_each=most, most_rps=most_rps)
    return program.search(wanted, time_limit_s, progress)


def share_out(
    problem: MigProblem,
    offers: SliceOffers,
    demands: Sequence[SizeDemand],
    cuts: Counter[tuple[int, Cut]],
    *,
    time_limit_s: float,
    progress: Progress,
) -> SliceCounts:
    """Return the slices of each model for given partitions of GPUs: every slice goes to one model.

    `cuts`: number of GPUs by (pool, partition); `time_limit_s`: seconds to search. Raises PlanningError.
    """
    once = [(pool, tuple(count * number for number in cut)) for (pool, cut), count in cuts.items()]
    gpcs = sum(spent(cut, offers.slice_types) for _, cut in once)
    program = Program(problem, offers, demands, once, gpcs, most_of_each=[1] * len(once))
    counts = program.search({}, time_limit_s, progress)
    return SliceCounts(counts.load, counts.bound, counts.slices, cuts)
