"""The scheduler alone: how many requests per second engine and policy decide about, under virtual time on one core."""

import random
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from tidegate.api import Model, Profile, Request, RequestArrived, Setup, Worker, ms_to_ns
from tidegate.engine import Engine
from tidegate.host import Plugins
from tidegate.sim import Simulation
from tidegate.workload import Poisson

SLO_MS, MAX_ROWS = 25.0, 64
ALPHA_MS, BETA_MS = 1.053, 5.072
"""ResNet50 of the Symphony paper, Table 2."""
RATE_PER_WORKER_RPS = 600
DURATION_S = 2.0


def bench_scheduler(console: Console) -> list[dict[str, Any]]:
    """Run and print; a row per (policy, workers)."""
    plugins = Plugins.installed()
    rows = [_measure(plugins, name, workers) for name in sorted(plugins.policies) for workers in (8, 64)]
    table = Table("policy", "workers", "decided requests/s", "µs/request", title="Engine and policy alone, one core")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(row["policy"], str(row["workers"]), f"{row['rps']:,.0f}", f"{1e6 / row['rps']:.1f}")
    console.print(table)
    return rows


def _measure(plugins: Plugins, policy: str, workers: int) -> dict[str, Any]:
    model = Model("resnet50", MAX_ROWS, ms_to_ns(SLO_MS))
    setup = Setup(
        models=(model,),
        workers=tuple(Worker(index, f"gpu{index}", (model.name,)) for index in range(workers)),
        profiles=(Profile.linear(model.name, alpha_ms=ALPHA_MS, beta_ms=BETA_MS, max_rows=MAX_ROWS),),
    )
    arrivals = Poisson(RATE_PER_WORKER_RPS * workers).instants_ns(round(DURATION_S * 1e9), random.Random(0))
    due_ns = ms_to_ns(SLO_MS)
    events = [
        RequestArrived(at_ns, Request(index, model.name, 1, at_ns, at_ns + due_ns))
        for index, at_ns in enumerate(arrivals)
    ]
    simulation = Simulation(Engine(plugins.make_policy(policy, setup, {}), name=policy))
    simulation.schedule(events)
    start_ns = time.perf_counter_ns()
    simulation.run()
    return {"policy": policy, "workers": workers, "rps": len(events) / (time.perf_counter_ns() - start_ns) * 1e9}
