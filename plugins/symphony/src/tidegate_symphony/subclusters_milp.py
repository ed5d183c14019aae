"""The integer program of Symphony's Appendix A.1, and its solvers.

Rates are fractions of R and static memory is in fractions of S, so that the solvers' tolerances mean the same for every
problem.
"""

import math
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from tidegate.api import PlanningError, Progress
from tidegate_symphony.subclusters_plan import SubclusterProblem

Limit = Literal["max_rate_rps", "max_memory_mib", "max_move_cost"]
"""Limit of the problem, by the name of its field."""


@dataclass(frozen=True)
class MilpSolution:
    """Result of a solver: assignment, objective, bound and status."""

    assignment: list[int] | None
    """Sub-cluster of each model; None: none found."""
    infeasible: bool
    """Whether the solver proved that there is none."""
    bound: float
    """Lower bound of the objective."""


def solve(
    problem: SubclusterProblem,
    start: Sequence[int] | None,
    *,
    freed: Limit | None = None,
    time_limit_s: float,
    progress: Progress,
) -> MilpSolution:
    """Assign models to sub-clusters by a MILP that minimizes the imbalance of rates plus the weighted one of memory.

    `start`: assignment that keeps every limit, as the initial solution; None: none is known.

    `freed`: limit to minimize instead, to find its necessary value. `time_limit_s`: seconds to search. Raises
    PlanningError if the solver is not installed.
    """
    program = _Program(problem, freed)
    if start is not None:
        program.begin_at(start)
    left_s = max(time_limit_s - progress(), 0.1)
    run = _run_highs if problem.solver == "highs" else _run_cbc
    bound = run(program, start is not None, left_s, progress)
    pulp = _import("pulp")
    if program.lp.sol_status not in {pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible}:
        return MilpSolution(None, infeasible=program.lp.status == pulp.LpStatusInfeasible, bound=bound)
    return MilpSolution(program.assignment(), infeasible=False, bound=bound)


class _Program:
    """The program in PuLP's terms."""

    def __init__(self, problem: SubclusterProblem, freed: Limit | None) -> None:
        pulp = _import("pulp")
        self._problem = problem
        models, places = problem.models, range(problem.subclusters)
        rate_unit, static_unit = problem.mean_rate_rps or 1.0, problem.mean_static_mib or 1.0
        self.lp: Any = pulp.LpProblem("subclusters", pulp.LpMinimize)
        self._x = [[self.lp.add_variable(f"x_{i}_{j}", cat=pulp.LpBinary) for j in places] for i in range(len(models))]
        self._deltas = [self.lp.add_variable(name, lowBound=0) for name in ("dR", "dS")]
        self._dynamic = [self.lp.add_variable(f"d_{j}", lowBound=0) for j in places]
        """The dynamic memory, at least `max_i d_i x_ij`, in shares of S."""
        limits: dict[Limit, Any] = {
            "max_rate_rps": problem.max_rate_rps / rate_unit,
            "max_memory_mib": problem.max_memory_mib / static_unit,
            "max_move_cost": problem.max_move_cost,
        }
        if freed:
            limits[freed] = self.lp.add_variable("freed", lowBound=0)
        self.scale = rate_unit + problem.weight_or_even * static_unit
        """An objective of 1 here is this in the problem's units."""
        share = rate_unit / self.scale
        self.lp += limits[freed] if freed else share * self._deltas[0] + (1 - share) * self._deltas[1]
        for j in places:
            rate = pulp.LpAffineExpression(
                (self._x[i][j], model.rate_rps / rate_unit) for i, model in enumerate(models)
            )
            static = pulp.LpAffineExpression(
                (self._x[i][j], model.static_mib / static_unit) for i, model in enumerate(models)
            )
            self.lp += rate <= limits["max_rate_rps"]  # (4)
            self.lp += static + self._dynamic[j] <= limits["max_memory_mib"]  # (5)
            for i, model in enumerate(models):
                if model.dynamic_mib:
                    self.lp += model.dynamic_mib / static_unit * self._x[i][j] <= self._dynamic[j]
            for load, mean, delta in (
                (rate, problem.mean_rate_rps / rate_unit, self._deltas[0]),  # (6)
                (static, problem.mean_static_mib / static_unit, self._deltas[1]),  # (7)
            ):
                self.lp += load - mean <= delta
                self.lp += mean - load <= delta
        for of_model in self._x:
            self.lp += pulp.lpSum(of_model) == 1  # (8)
        if limits["max_move_cost"] is not None:  # (10), where |x - x'| is 1 - x at the model's home and x elsewhere
            changes = (
                model.cost_at(j) * (1 - self._x[i][j] if problem.home(model) == j else self._x[i][j])
                for i, model in enumerate(models)
                for j in places
            )
            self.lp += pulp.lpSum(changes) <= limits["max_move_cost"]

    def begin_at(self, assignment: Sequence[int]) -> None:
        """Give the solver an assignment to begin with."""
        problem = self._problem
        static_unit = problem.mean_static_mib or 1.0
        for of_model, place in zip(self._x, assignment, strict=True):
            for j, x in enumerate(of_model):
                x.setInitialValue(int(j == place))
        for j, dynamic in enumerate(self._dynamic):
            there = (m.dynamic_mib for m, place in zip(problem.models, assignment, strict=True) if place == j)
            dynamic.setInitialValue(max(there, default=0.0) / static_unit)
        for delta, field in zip(self._deltas, ("rate_rps", "static_mib"), strict=True):
            loads = [0.0] * problem.subclusters
            for model, place in zip(problem.models, assignment, strict=True):
                loads[place] += getattr(model, field)
            mean = sum(loads) / len(loads)
            delta.setInitialValue(max(abs(load - mean) for load in loads) / (mean or 1.0))

    def assignment(self) -> list[int]:
        """Sub-cluster of each model in the solution."""
        return [max(range(len(of_model)), key=lambda j, x=of_model: x[j].value()) for of_model in self._x]  # type: ignore[misc]


def _run_cbc(program: _Program, started: bool, time_limit_s: float, progress: Progress) -> float:
    """Run CBC, the solver that comes with PuLP; returns the bound. It is silent until it ends.

    On large programs it sometimes crashes at its time limit: then it has found nothing, and the start stands.
    """
    pulp = _import("pulp")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "cbc.log"
        solver = pulp.COIN_CMD(
            path=pulp.PULP_CBC_CMD.pulp_cbc_path,
            msg=False,
            timeLimit=time_limit_s,
            warmStart=started,
            logPath=str(log),
        )
        if not solver.available():
            raise PlanningError("PuLP brings no CBC for this platform: choose solver highs")
        try:
            program.lp.solve(solver)
        except pulp.PulpSolverError:
            return 0.0
        lower_bound = re.search(r"^Lower bound:\s+(\S+)", log.read_text(), re.MULTILINE)
    if program.lp.sol_status == pulp.LpSolutionOptimal:
        return float(program.lp.objective.value()) * program.scale
    return float(lower_bound[1]) * program.scale if lower_bound else 0.0


def _run_highs(program: _Program, started: bool, time_limit_s: float, progress: Progress) -> float:
    """Run HiGHS; returns the bound. It reports each better assignment."""
    pulp, highspy = _import("pulp"), _import("highspy")

    def improved(kind: object, message: str, progress_data: Any, answer: object, data: object) -> None:  # noqa: ANN401
        bound = max(progress_data.mip_dual_bound, 0.0)  # minus infinity before the first relaxation is solved
        progress(objective=progress_data.objective_function_value * program.scale, bound=bound * program.scale)

    solver = pulp.HiGHS(
        msg=False,
        timeLimit=time_limit_s,
        gapRel=0.0,
        callbackTuple=(improved, None),
        callbacksToActivate=[highspy.cb.HighsCallbackType.kCallbackMipImprovingSolution],
    )
    # As `LpProblem.solve` does, but that it leaves no way to give this solver a start.
    solver.createAndConfigureSolver(program.lp)
    solver.buildSolverModel(program.lp)
    highs = program.lp.solverModel
    if started:
        start = highspy.HighsSolution()
        start.col_value = [float(variable.value()) for variable in program.lp.variables()]
        highs.setSolution(start)
    highs.run()
    program.lp.assignStatus(*solver.findSolutionValues(program.lp))
    bound = highs.getInfo().mip_dual_bound * program.scale
    return bound if math.isfinite(bound) else 0.0


def _import(name: str) -> Any:  # noqa: ANN401 - neither library says its types
    """A library of the extra `planner`, which a plugin without planners does without."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise PlanningError(f'this planner needs {name}: pip install "tidegate-symphony[planner]"') from error
