"""Latency-bounded throughput: the most queries per second of which 95 % are answered within the SLA."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import numpy as np
from scipy.optimize import linprog

from bench.papers.paris_elsa.design_points import MODEL, Point, layout_of, slices_of, slo_of
from bench.papers.paris_elsa.measured import Case, sizes_of_requests
from tidegate.api import PlanningError
from tidegate.schemas import Layout
from tidegate.sim.goodput import GoodputQuery, search_goodput
from tidegate.sim.run import RunSpec
from tidegate.workload import Scenario

LATE = 0.05
"""Maximum share of late requests, for a 95th percentile within the SLA."""
PRECISION = 0.01
SEED = 1


@dataclass(frozen=True)
class Setting:
    """Varied parameters (section VI-C)."""

    factor: float = 1.5
    """SLA as a multiple of the latency of the largest batch on GPU(7)."""
    spread: float = 1.0
    """Spread of request sizes, see `sizes_of_requests`."""
    largest: int = 32


@dataclass(frozen=True)
class Cell:
    """A model at a design point."""

    case: Case
    point: Point
    setting: Setting
    requests: int


@dataclass(frozen=True)
class Found:
    """Throughput of a cell."""

    cell: Cell
    rate_rps: float | None
    """Queries per second; None if the model cannot run there."""
    slices: dict[int, int]
    ceiling_rps: float = 0.0
    """Bound on the throughput of any scheduler on these slices without merging, queries per second."""
    p95_ms: float | None = None
    why_not: str = ""

    def row(self) -> dict[str, Any]:
        """Return the result as a row for a file."""
        cell = self.cell
        return {
            "model": cell.case.title,
            "planner": cell.point.planner,
            "options": dict(cell.point.options),
            "policy": cell.point.policy.title,
            "merging": cell.point.merging,
            "factor": cell.setting.factor,
            "spread": cell.setting.spread,
            "largest": cell.setting.largest,
            "slices": self.slices,
            "rate_rps": self.rate_rps,
            "ceiling_rps": self.ceiling_rps,
            "why_not": self.why_not,
        }


def measure(cell: Cell) -> Found:
    """Plan a cell and search for the highest rate."""
    setting, case = cell.setting, cell.case
    sizes = sizes_of_requests(setting.largest, setting.spread)
    slo_ms = slo_of(case, setting.largest, setting.factor)
    try:
        layout = layout_of(case, cell.point, sizes, slo_ms)
    except PlanningError as error:
        return Found(cell, None, {}, why_not=str(error))
    highest_rps = ceiling_rps(layout, sizes, slo_ms)
    rate_rps = 0.7 * capacity_rps(layout, sizes)
    # FIFS takes the first idle slice: listed by size, it would use the small ones, on which large queries are late.
    layout = layout.model_copy(update={"workers": tuple(Random(SEED).sample(layout.workers, len(layout.workers)))})
    scenario = scenario_of(layout, sizes, rate_rps, cell.requests / rate_rps, merging=cell.point.merging)
    search = search_goodput(GoodputQuery(RunSpec(scenario, cell.point.policy, SEED), LATE, PRECISION))
    return Found(cell, search.rate_rps, slices_of(layout), highest_rps)


def scenario_of(
    layout: Layout, sizes: Mapping[int, float], rate_rps: float, duration_s: float, *, merging: bool = False
) -> Scenario:
    """Return a scenario with Poisson arrivals on a layout.

    `layout`: the slices; `sizes`: share of the queries by rows; `rate_rps`: queries per second; `duration_s`: measured
    window, seconds; `merging`: whether queries may share batches.
    """
    rows = {"distribution": "table", "values": list(sizes), "weights": list(sizes.values())}
    return Scenario.model_validate(
        {
            "warmup_s": 0.1 * duration_s,
            "duration_s": duration_s,
            "layout": layout,
            "models": [{"name": MODEL, "scheduling": "batched" if merging else "unbatched", "rows": rows}],
            "arrivals": {"rate_rps": rate_rps},
            "simulation": {"learn": False},
        }
    )


def capacity_rps(layout: Layout, sizes: Mapping[int, float]) -> float:
    """Return the capacity in queries per second if each slice gets queries of all sizes and deadlines are ignored.

    `sizes`: share of the queries by rows.
    """
    tables = layout.partitions[0].latency_ms
    busy_ms = {kind: sum(share * table[rows - 1] for rows, share in sizes.items()) for kind, table in tables.items()}
    return sum(1000 / busy_ms[worker.speed] for worker in layout.workers)


def ceiling_rps(layout: Layout, sizes: Mapping[int, float], slo_ms: float) -> float:
    """Return an upper bound on queries per second of any scheduler without merging: 95 % of queries run at once on a
    slice where they are on time, and the others are dropped.

    `layout`: the slices; `sizes`: share of the queries by rows; `slo_ms`: SLA.
    """
    tables = layout.partitions[0].latency_ms
    workers = {kind: sum(worker.speed == kind for worker in layout.workers) for kind in tables}
    return _ceiling(
        tuple(sizes.items()), tuple((tables[kind], float(count)) for kind, count in workers.items()), slo_ms
    )


@cache
def _ceiling(
    sizes: tuple[tuple[int, float], ...], kinds: tuple[tuple[tuple[float, ...], float], ...], slo_ms: float
) -> float:
    """Variables: for each size and kind the rate that is on time; for each size the dropped rate; the whole rate."""
    places = [(number, rows, table[rows - 1]) for rows, _ in sizes for number, (table, _) in enumerate(kinds)]
    width = len(places) + len(sizes) + 1
    objective = np.zeros(width)
    objective[-1] = -1
    shared, busy, late = np.zeros((len(sizes), width)), np.zeros((len(kinds), width)), np.zeros((1, width))
    for place, (kind, _, latency_ms) in enumerate(places):
        shared[place // len(kinds), place] = 1
        busy[kind, place] = latency_ms / 1000
    shared[:, len(places) : -1] = np.eye(len(sizes))
    shared[:, -1] = [-share for _, share in sizes]
    late[0, len(places) : -1] = 1
    late[0, -1] = -LATE
    bounds = [(0, None if latency_ms <= slo_ms else 0) for _, _, latency_ms in places]
    found = linprog(
        objective,
        A_ub=np.vstack([busy, late]),
        b_ub=np.array([*(count for _, count in kinds), 0]),
        A_eq=shared,
        b_eq=np.zeros(len(sizes)),
        bounds=[*bounds, *[(0, None)] * (len(sizes) + 1)],
    )
    assert found.fun is not None, "nothing at all is a solution"
    return max(0.0, -float(found.fun))
