"""Request rate that the slices of any layout serve for a problem."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import linprog

from tidegate.api import PlanningError
from tidegate.schemas import Layout
from tidegate_paris_elsa.problem import MigModel, MigProblem
from tidegate_paris_elsa.slices import SliceOffers, SliceSpeed, offers_of


def rates_borne(problem: MigProblem, layout: Layout) -> dict[str, float]:
    """Return {model: requests per second} at the highest load, relative to the models' weights, that the slices
    sustain.

    Every request may go to any slice on which it is on time; if it is on time on no measured kind, to the fastest one.
    Raises PlanningError for a model that was not measured, or on none of its slices.
    """
    offers = offers_of(problem.model_copy(update={"gpcs": None}))
    workers: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    model_of = {part.name: part.model for part in layout.partitions}
    for worker in layout.workers:
        for name in worker.hosts:
            # A kind that the layout names is not what the problem calls it.
            workers[model_of[name]][worker.device.device_class(worker.slice)] += 1 / len(worker.hosts)
    load = min(
        _borne_rps(model, offers, speeds, workers[model.name]) / model.weight
        for model, speeds in zip(problem.models, offers.speeds, strict=True)
    )
    return {model.name: load * model.weight for model in problem.models}


def _borne_rps(
    model: MigModel, offers: SliceOffers, speeds: Sequence[SliceSpeed], workers: Mapping[str, float]
) -> float:
    """A linear program: what goes where, and how many times a second all sizes can come in their shares."""
    mine = [speed for speed in speeds if workers.get(offers.kinds[speed.kind].name)]
    if not mine and workers:
        known = ", ".join(offers.kinds[speed.kind].name for speed in speeds)
        raise PlanningError(
            f"problem: model {model.name!r} was measured on {known}, and the layout has it on "
            f"{', '.join(sorted(workers))}: name products in both alike, or measure it there"
        )
    if not mine:
        return 0.0
    allowed = {rows: _allowed(model, speeds, rows) for rows in model.shares}
    flows = [(rows, place) for rows in model.shares for place, speed in enumerate(mine) if speed in allowed[rows]]
    if {rows for rows, _ in flows} < model.shares.keys():
        return 0.0
    sizes = list(model.shares)
    served = np.zeros((len(sizes), len(flows) + 1))
    served[:, -1] = 1.0
    busy = np.zeros((len(mine), len(flows) + 1))
    for column, (rows, place) in enumerate(flows):
        served[sizes.index(rows), column] = -1.0
        busy[place, column] = model.shares[rows] / mine[place].throughput_rps(rows)
    have = [workers[offers.kinds[speed.kind].name] for speed in mine]
    # In units of what the fastest kind would bear, since solvers like numbers near 1.
    unit_rps = sum(have) / min(busy[place].sum() or np.inf for place in range(len(mine)))
    result = linprog(
        [*[0.0] * len(flows), -1.0],
        A_ub=np.vstack([served, busy * unit_rps]),
        b_ub=[*[0.0] * len(sizes), *have],
        method="highs",
    )
    return -float(result.fun or 0.0) * unit_rps


def _allowed(model: MigModel, speeds: Sequence[SliceSpeed], rows: int) -> Sequence[SliceSpeed]:
    """The kinds on which so many rows are on time; else the last, which is the fastest."""
    if model.slo_ms is None:
        return speeds
    return [speed for speed in speeds if speed.latency_ms(rows) <= model.slo_ms] or speeds[-1:]
