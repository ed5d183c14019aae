"""Runs in which the sizes of requests drift, on fixed slices, on slices that follow, and on those of an oracle."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import log
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

from bench.papers.paris_elsa.design_points import MODEL
from bench.papers.paris_elsa.measured import PRODUCT, PROFILES, Case, read_cases
from tidegate.host import Plugins
from tidegate.schemas import Layout
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, RequestSequence, Scenario, draw_requests

HELD_OUT: Final = ("densenet121", "resnet101", "vgg19", "bert-base-seq64 (MIGPerf)")
"""Models on which nothing of the controller was tuned."""
GPUS, LARGEST_ROWS, SLO_FACTOR = 3, 32, 1.5
LOAD: Final = 0.8
"""Rates as a fraction of what the plan for the sizes of the moment sustains."""
DRIFT_S, DURATION_S = 150.0, 600.0
CUT_S, LOAD_S = 5.0, 30.0
"""Seconds to cut instances and to load a model: guesses, as the planner's defaults."""
SMALL, LARGE = "small", "large"
MEDIANS: Final = {SMALL: 3.0, LARGE: 10.0}
WAYS: Final = ("fixed", "followed", "oracle")
SEEDS: Final = (1, 2, 3, 4, 5)
ELSA: Final = PolicyChoice(name="elsa", options={"allow_batching": False})


@dataclass(frozen=True)
class DriftCell:
    """A model, the sizes before and after, who plans, and a seed."""

    folder: Path
    model: str
    before: str
    after: str
    way: str
    seed: int


def sizes_of(name: str) -> dict[int, float]:
    """Return the share of requests by rows: log-normal around a median, truncated to 1 and the largest."""
    bell = NormalDist(log(MEDIANS[name]), 0.7)
    weights = {rows: bell.cdf(log(rows + 0.5)) - bell.cdf(log(rows - 0.5)) for rows in range(1, LARGEST_ROWS + 1)}
    total = sum(weights.values())
    return {rows: weight / total for rows, weight in weights.items()}


def problem_of(case: Case, sizes: Mapping[int, float]) -> dict[str, Any]:
    """Return the planner's problem, as a file has it."""
    return {
        "gpus": [{"product": PRODUCT, "count": GPUS}],
        "models": [
            {
                "name": MODEL,
                "slo_ms": SLO_FACTOR * case.curves[7].latency_ms[LARGEST_ROWS],
                "sizes": dict(sizes),
                "profiles": [
                    {
                        "slice_type": PROFILES[size],
                        "rows": list(curve.latency_ms),
                        "latency_ms": list(curve.latency_ms.values()),
                    }
                    for size, curve in case.curves.items()
                ],
            }
        ],
    }


@cache
def planned(folder: Path, model: str, sizes: str) -> tuple[Layout, float]:
    """Return PARIS's layout for these sizes, and the rate that it sustains."""
    spec = Plugins.installed().planner("paris")
    problem: Any = spec.problem.model_validate(problem_of(case_of(folder, model), sizes_of(sizes)))
    plan: Any = spec.run(problem, time_limit_s=30, progress=lambda **_: 0.0)
    assert spec.layout is not None, "its plans are layouts"
    layout = spec.layout(problem, plan)
    assert isinstance(layout, Layout)
    return layout, plan.models[0].rate_rps


@cache
def case_of(folder: Path, model: str) -> Case:
    """Return the measurements of a model."""
    return next(case for case in read_cases(folder) if case.title == model)


def scenario_of(cell: DriftCell, sizes: str, layout: Layout, steps: Sequence[tuple[float, float]]) -> Scenario:
    """Return the scenario with these sizes throughout. `steps`: rates by the second from which they hold."""
    rows = sizes_of(sizes)
    table = {"distribution": "table", "values": [*rows], "weights": [*rows.values()]}
    document: dict[str, Any] = {
        "warmup_s": 0,
        "duration_s": DURATION_S,
        "layout": layout,
        "models": [{"name": MODEL, "scheduling": "unbatched", "rows": table}],
        "arrivals": {"rate_rps": [{"from_s": at_s, "rate_rps": rate} for at_s, rate in steps]},
        "simulation": {"learn": False, "startup": {"time_s": CUT_S + LOAD_S}},
    }
    if cell.way == "followed":
        problem = problem_of(case_of(cell.folder, cell.model), sizes_of(cell.before))
        options = {"problem": problem, "cut_s": CUT_S, "load_s": LOAD_S}
        document["controller"] = {"name": "paris-replanning", "options": options}
    return Scenario.model_validate(document)


def run_cell(cell: DriftCell) -> float:
    """Return the fraction of the requests after the drift that are answered on time."""
    (first, first_rps), (second, second_rps) = (
        planned(cell.folder, cell.model, sizes) for sizes in (cell.before, cell.after)
    )
    steps = [(0.0, LOAD * first_rps), (DRIFT_S, LOAD * second_rps)]
    layout = second if cell.way == "oracle" else first
    scenario = scenario_of(cell, cell.before, layout, steps)
    before, after = (
        draw_requests(scenario_of(cell, sizes, layout, steps), cell.seed) for sizes in (cell.before, cell.after)
    )
    assert before.rows is not None
    assert after.rows is not None
    place = next(number for number, at_ns in enumerate(before.at_ns) if at_ns >= DRIFT_S * 1e9)
    drifting = replace(before, rows=before.rows[:place] + after.rows[place:])
    if cell.way == "oracle":
        return on_time(scenario, cut(drifting, place, len(drifting)), cell.seed)
    whole = on_time(scenario, drifting, cell.seed) * len(drifting)
    fixed = scenario.model_copy(update={"controller": None})
    return (whole - on_time(fixed, cut(drifting, 0, place), cell.seed) * place) / (len(drifting) - place)


def on_time(scenario: Scenario, requests: RequestSequence, seed: int) -> float:
    """Return the fraction of these requests that are answered on time."""
    return simulate(RunSpec(scenario, ELSA, seed), requests=requests).total.attainment


def cut(requests: RequestSequence, first: int, last: int) -> RequestSequence:
    """Return the requests from one position to another."""
    assert requests.rows is not None
    return replace(
        requests, at_ns=requests.at_ns[first:last], model=requests.model[first:last], rows=requests.rows[first:last]
    )
