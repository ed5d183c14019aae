"""Speed of the simulator and of the scheduler on one core, and its growth with models and workers.

`python -m bench --only scheduler` runs only this, `--full` every size.
"""

import time
from dataclasses import asdict, dataclass
from math import log2
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from bench.common import print_table
from bench.scheduler_driver import BATCH, Drive, Lap, setup_of
from tidegate.host import Plugins
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, read_scenario

SCENARIO = Path(__file__).parents[1] / "scenarios" / "resnet50.yaml"
SIMULATED_S = 5.0
MODELS, WORKERS = (1, 32, 256, 1024), (8, 64, 256, 1024)
MIDDLE = 256
"""Number of models or workers while the other number varies."""
AUTHORS = (32, 1024)
"""Models and workers at which Symphony's own scheduler, in C++, does 500 to 700 thousand requests/s on one thread."""
DEFERRALS = ("adaptive", "frontrun")
LAP_REQUESTS, LAPS = 10_000, 3


@dataclass(frozen=True)
class Cell:
    """Symphony at one number of models and workers: the median lap."""

    deferral: str
    models: int
    workers: int
    rps: float
    us_per_request: float
    us_per_event: float
    mean_batch: float
    busy: float


@dataclass(frozen=True)
class Growth:
    """Growth of the time per request with the number of models or workers, the other being constant."""

    deferral: str
    of: str
    exponent: float
    """Slope of log time over log size: 1 is linear, 0 constant."""
    us_per_doubling: float
    """Slope of time over log2 size in microseconds, bounded for O(log size)."""


def bench_scheduler(console: Console, *, full: bool = False) -> dict[str, Any]:
    """Measure and print the speed of the simulator and the scheduler, and its growth.

    `full`: every size.
    """
    plugins = Plugins.installed()
    sizes = [(m, w) for m in MODELS for w in WORKERS if full or MIDDLE in (m, w) or (m, w) == AUTHORS]
    policies = sorted(plugins.policies)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(policies) + len(sizes) * len(DEFERRALS))
        simulated, cells = {}, []
        for policy in policies:
            progress.update(task, description=f"simulator, {policy}")
            simulated[policy] = simulated_rps(plugins, policy)
            progress.advance(task)
        for deferral in DEFERRALS:
            for models, workers in sizes:
                progress.update(task, description=f"{deferral}, {models} models, {workers} workers")
                cells.append(measure(deferral, models, workers))
                progress.advance(task)
    growths = [growth(cells, deferral, of) for deferral in DEFERRALS for of in ("models", "workers")]
    _show(console, simulated, cells, growths)
    return {"simulator": simulated, "scheduler": [asdict(c) for c in cells], "growth": [asdict(g) for g in growths]}


def simulated_rps(plugins: Plugins, policy: str) -> float:
    """Return requests per second of the whole simulator on one core, from drawing requests to the report's figures."""
    scenario = read_scenario(SCENARIO).model_copy(update={"warmup_s": 0.5, "duration_s": SIMULATED_S})
    clock_s = time.process_time()
    result = simulate(RunSpec(scenario, PolicyChoice(name=policy), seed=1), plugins=plugins)
    cpu_s = time.process_time() - clock_s
    requests = result.rows[0].offered_rps * (scenario.warmup_s + scenario.duration_s)
    return requests / cpu_s


def measure(deferral: str, models: int, workers: int) -> Cell:
    """Measure Symphony in the engine without a driver's overhead.

    `deferral`: option of Symphony; `models`: number of models; `workers`: number of workers.
    """
    names = [f"model{index:04}" for index in range(models)]
    drive = Drive(setup_of(names, range(workers)), "symphony", {"deferral": deferral})
    drive.warm_up()
    lap: Lap = sorted((drive.lap(LAP_REQUESTS) for _ in range(LAPS)), key=lambda lap: lap.cpu_s)[LAPS // 2]
    return Cell(
        deferral, models, workers, lap.rps, lap.us_per_request, lap.us_per_event, lap.requests / lap.batches, lap.busy
    )


def growth(cells: list[Cell], deferral: str, of: str) -> Growth:
    """Fit the growth by least squares for each constant size of the other; return the median.

    `cells`: measurements; `deferral`: option of Symphony; `of`: `models` or `workers`.
    """
    other = "workers" if of == "models" else "models"
    exponents, doublings = [], []
    for constant in WORKERS if of == "models" else MODELS:
        row = [cell for cell in cells if cell.deferral == deferral and getattr(cell, other) == constant]
        if len(row) >= len(MODELS):
            doubled = np.array([log2(getattr(cell, of)) for cell in row])
            taken_us = np.array([cell.us_per_request for cell in row])
            exponents.append(float(np.polyfit(doubled, np.log2(taken_us), 1)[0]))
            doublings.append(float(np.polyfit(doubled, taken_us, 1)[0]))
    return Growth(deferral, of, median(exponents), median(doublings))


def _show(console: Console, simulated: dict[str, float], cells: list[Cell], growths: list[Growth]) -> None:
    title = f"The simulator on one core: {SCENARIO.name}, {SIMULATED_S:g} s"
    print_table(console, title, ("policy", "requests/s"), ((each, f"{rps:,.0f}") for each, rps in simulated.items()))
    rows = (
        (
            cell.deferral,
            cell.models,
            cell.workers,
            f"{cell.rps:,.0f}",
            f"{cell.us_per_request:.1f}",
            f"{cell.us_per_event:.1f}",
            f"{cell.mean_batch:.1f}",
            f"{min(1.0, cell.busy):.0%}",
        )
        for cell in cells
    )
    title = f"Symphony in the engine, one core; load: batches of {BATCH} would keep workers busy for 80 %"
    columns = ("deferral", "models", "workers", "requests/s", "µs/request", "µs/event", "mean batch", "busy")
    print_table(console, title, columns, rows)
    title = "Growth of the time per request; claimed: O(log models + log workers)"
    lines = ((row.deferral, row.of, f"{row.exponent:.2f}", f"{row.us_per_doubling:+.2f}") for row in growths)
    print_table(console, title, ("deferral", "with the", "exponent (linear: 1)", "µs per doubling"), lines)
