"""Linear program over parts of GPUs.

No plan of whole GPUs exceeds its optimum, and its prices select the columns for the integer program.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from tidegate_ppipe.columns import Column
from tidegate_ppipe.problem import PpipeProblem

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
