"""How fast the simulator and the scheduler are on one core, and how the scheduler's time grows.

`python -m bench --only scheduler` for this alone, `--full` for every size, `--plot FILE` for a chart.
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
from rich.table import Table

from bench.scheduler_driver import BATCH, Drive, Lap, setup_of
from tidegate.host import Plugins
from tidegate.sim.run import Run, simulate
from tidegate.workload import PolicyChoice, read_scenario

SCENARIO = Path(__file__).parents[1] / "scenarios" / "resnet50.yaml"
SIMULATED_S = 5.0
MODELS, WORKERS = (1, 32, 256, 1024), (8, 64, 256, 1024)
MIDDLE = 256
"""One of the two stays at it while the other grows."""
AUTHORS = (32, 1024)
"""Models and workers at which Symphony's own scheduler, in C++, does 500 to 700 thousand requests/s on one thread."""
DEFERRALS = ("adaptive", "frontrun")
LAP_REQUESTS, LAPS = 10_000, 3


@dataclass(frozen=True)
class Cell:
    """Symphony at one size: the median lap."""

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
    """How the time per request grows with the number of models, or of workers, the other being constant."""

    deferral: str
    of: str
    exponent: float
    """The slope of log time over log size: 1 would be linear, 0 constant."""
    us_per_doubling: float
    """The slope of time over log2 size: what O(log size) promises to be bounded."""


def bench_scheduler(console: Console, *, full: bool = False, plot: Path | None = None) -> dict[str, Any]:
    """Print the simulator's speed, the scheduler's, and its growth. `full`: every size; `plot`: an HTML file."""
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
    if plot:
        write_plot(plot, cells)
        console.print(f"Chart: {plot}")
    return {"simulator": simulated, "scheduler": [asdict(c) for c in cells], "growth": [asdict(g) for g in growths]}


def simulated_rps(plugins: Plugins, policy: str) -> float:
    """Requests per second of one core, of the whole simulator: drawing them, running, and the report's figures."""
    scenario = read_scenario(SCENARIO).model_copy(update={"warmup_s": 0.5, "duration_s": SIMULATED_S})
    clock_s = time.process_time()
    result = simulate(Run(scenario, PolicyChoice(name=policy), seed=1), plugins=plugins)
    cpu_s = time.process_time() - clock_s
    requests = result.rows[0].offered_rps * (scenario.warmup_s + scenario.duration_s)
    return requests / cpu_s


def measure(deferral: str, models: int, workers: int) -> Cell:
    """Symphony in the engine with nothing around it."""
    names = [f"model{index:04}" for index in range(models)]
    drive = Drive(setup_of(names, range(workers)), "symphony", {"deferral": deferral})
    drive.warm_up()
    lap: Lap = sorted((drive.lap(LAP_REQUESTS) for _ in range(LAPS)), key=lambda lap: lap.cpu_s)[LAPS // 2]
    return Cell(
        deferral, models, workers, lap.rps, lap.us_per_request, lap.us_per_event, lap.requests / lap.batches, lap.busy
    )


def growth(cells: list[Cell], deferral: str, of: str) -> Growth:
    """Fit both laws by least squares, for each constant number of the other; the median over those."""
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


def write_plot(file: Path, cells: list[Cell]) -> None:
    """Time per request against each size, as an HTML page that needs no network."""
    from plotly.graph_objects import Figure, Scatter  # noqa: PLC0415 - slow to import, wanted by few
    from plotly.subplots import make_subplots  # noqa: PLC0415

    figure: Figure = make_subplots(cols=2, subplot_titles=(f"{MIDDLE} workers", f"{MIDDLE} models"), shared_yaxes=True)
    for column, (of, other) in enumerate((("models", "workers"), ("workers", "models")), start=1):
        for deferral in DEFERRALS:
            row = [cell for cell in cells if cell.deferral == deferral and getattr(cell, other) == MIDDLE]
            x, y = [getattr(cell, of) for cell in row], [cell.us_per_request for cell in row]
            figure.add_trace(Scatter(x=x, y=y, name=f"{deferral}, {of}", mode="lines+markers"), row=1, col=column)
        figure.update_xaxes(title_text=of, type="log", row=1, col=column)
    figure.update_yaxes(title_text="µs per request", rangemode="tozero", col=1)
    figure.write_html(file, include_plotlyjs=True)


def _show(console: Console, simulated: dict[str, float], cells: list[Cell], growths: list[Growth]) -> None:
    table = _table(f"The simulator on one core: {SCENARIO.name}, {SIMULATED_S:g} s", "policy", "requests/s")
    for policy, rps in simulated.items():
        table.add_row(policy, f"{rps:,.0f}")
    console.print(table)
    title = f"Symphony in the engine, one core; load: batches of {BATCH} would keep workers busy for 80 %"
    table = _table(title, "deferral", "models", "workers", "requests/s", "µs/request", "µs/event", "mean batch", "busy")
    for cell in cells:
        table.add_row(
            cell.deferral,
            str(cell.models),
            str(cell.workers),
            f"{cell.rps:,.0f}",
            f"{cell.us_per_request:.1f}",
            f"{cell.us_per_event:.1f}",
            f"{cell.mean_batch:.1f}",
            f"{min(1.0, cell.busy):.0%}",
        )
    console.print(table)
    table = _table("Growth of the time per request; claimed: O(log models + log workers)", "deferral", "with the", "")
    table.columns[2].header = "exponent (linear: 1)"
    table.add_column("µs per doubling", justify="right")
    for row in growths:
        table.add_row(row.deferral, row.of, f"{row.exponent:.2f}", f"{row.us_per_doubling:+.2f}")
    console.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(*columns, title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    return table
