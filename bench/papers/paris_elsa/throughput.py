"""Latency-bounded throughput: the most queries per second of which 95 % are answered within the SLA."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from bench.papers.paris_elsa.design_points import MODEL, Point, layout_of, slices_of
from bench.papers.paris_elsa.measured import Case, sizes_of_requests
from tidegate.api import PlanningError
from tidegate.schemas import Layout
from tidegate.sim.goodput import GoodputQuery, search_goodput
from tidegate.sim.run import RunSpec
from tidegate.workload import Scenario

LARGEST_ROWS, SLO_FACTOR = 32, 1.5
"""Rows of the largest request, and the SLA as a multiple of its latency on GPU(7)."""
LATE = 0.05
"""Maximum share of late requests, for a 95th percentile within the SLA."""
TOLERANCE = 0.01
SEED = 1


@dataclass(frozen=True)
class Cell:
    """A model at a design point."""

    case: Case
    point: Point
    requests: int


@dataclass(frozen=True)
class Found:
    """Throughput of a cell."""

    cell: Cell
    rate_rps: float | None
    """Queries per second; None if the model cannot run there."""
    slices: dict[int, int]
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
            "slices": self.slices,
            "rate_rps": self.rate_rps,
            "why_not": self.why_not,
        }


def measure(cell: Cell) -> Found:
    """Plan a cell and search for the highest rate."""
    case, sizes = cell.case, sizes_of_requests(LARGEST_ROWS)
    slo_ms = SLO_FACTOR * case.curves[7].latency_ms[LARGEST_ROWS]
    try:
        layout = layout_of(case, cell.point, sizes, slo_ms)
    except PlanningError as error:
        return Found(cell, None, {}, why_not=str(error))
    rate_rps = 0.7 * capacity_rps(layout, sizes)
    # FIFS takes the first idle slice: listed by size, it would use the small ones, on which large queries are late.
    layout = layout.model_copy(update={"workers": tuple(Random(SEED).sample(layout.workers, len(layout.workers)))})
    scenario = scenario_of(layout, sizes, rate_rps, cell.requests / rate_rps, merging=cell.point.merging)
    search = search_goodput(GoodputQuery(RunSpec(scenario, cell.point.policy, SEED), LATE, TOLERANCE))
    return Found(cell, search.rate_rps, slices_of(layout))


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
