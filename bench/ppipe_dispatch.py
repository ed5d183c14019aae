"""What PPipe's data plane costs: probes and microseconds per batch, from 100 GPUs to 10,000 (section 7.2).

    python -m bench.ppipe_dispatch --layout layout.json

LAYOUT is a planner's, of some hundred GPUs at most (`tidegate plan ppipe PROBLEM --layout layout.json`); larger ones
are so many copies of it, under so many times its load. Without one: 25 fast and 75 slow GPUs that serve a split model.
The time is that of the policy alone, the engine's checks and the simulator excluded; run nothing else meanwhile.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from tidegate.api import AnyEvent, Commands, Setup
from tidegate.schemas import DocumentError, Layout, read_document
from tidegate.sim.build import setup_of, simulation_of
from tidegate.sim.record import RunRecord
from tidegate.workload import Scenario, draw_requests
from tidegate_ppipe.policy import Ppipe, PpipeOptions

LOAD = 0.9
"""Of what the plan bears."""
BATCHES = 4000
"""About so many per run."""
PAPER = "3.58 probes and less than 9 us at 100 GPUs, in Java"


class Timed(Ppipe):
    """Sums up what its handlers take."""

    def __init__(self, setup: Setup, options: PpipeOptions) -> None:
        super().__init__(setup, options)
        self.spent_ns = 0

    def handle(self, event: AnyEvent) -> Commands:
        """Handle and look at the clock."""
        started_ns = time.perf_counter_ns()
        commands = super().handle(event)
        self.spent_ns += time.perf_counter_ns() - started_ns
        return commands


def made_up() -> Layout:
    """A model in two pools of 75 slow and 25 fast GPUs, two to a machine."""
    workers = [
        {
            "name": f"{kind}{number}",
            "device": {"node": f"{kind}-{number // 2}", "id": number % 2, "product": kind},
            "hosts": [part],
        }
        for kind, count, part in (("slow", 75, "m.0"), ("fast", 25, "m.1"))
        for number in range(count)
    ]
    tables = {
        "m.0": {"slow": [8.0 + 4 * rows for rows in range(1, 9)]},
        "m.1": {"fast": [2.0 + 1.4 * rows for rows in range(1, 9)]},
    }
    return Layout.model_validate(
        {
            "models": [
                {
                    "name": "m",
                    "slo_ms": 120,
                    "rate_rps": 14_000,
                    "pipelines": [{"partitions": ["m.0", "m.1"], "batch": 8}],
                }
            ],
            "partitions": [
                {
                    "name": name,
                    "model": "m",
                    "blocks": [number, number + 1],
                    "bytes_per_row": 150_000 * (1 - number),
                    "latency_ms": tables[name],
                }
                for number, name in enumerate(tables)
            ],
            "workers": workers,
            "network": {"gbps": 10},
        }
    )


def copies_of(layout: Layout, times: int) -> Layout:
    """So many of each worker, in nodes of their own."""
    workers = tuple(
        worker.model_copy(
            update={
                "name": f"{copy}/{worker.name}",
                "device": replace(worker.device, node=f"{copy}/{worker.device.node}"),
            }
        )
        for copy in range(times)
        for worker in layout.workers
    )
    models = tuple(model.model_copy(update={"rate_rps": model.rate_rps * times}) for model in layout.models)
    return layout.model_copy(update={"workers": workers, "models": models})


def measure(layout: Layout, options: PpipeOptions) -> dict[str, float]:
    """One run."""
    rate_rps = LOAD * sum(model.rate_rps for model in layout.models)
    scenario = Scenario.model_validate(
        {
            "layout": layout,
            "warmup_s": 0,
            "duration_s": BATCHES * 4 / rate_rps,
            "arrivals": {"process": "poisson", "rate_rps": rate_rps},
            "simulation": {"learn": False},
        }
    )
    policy = Timed(setup_of(scenario, 0), options)
    requests = draw_requests(scenario, 0, 1.0)
    record = RunRecord(requests, measured_from_ns=0, limits=None)
    simulation_of(scenario, policy, requests, record, name="ppipe", seed=0).run()
    batches = policy.new_batch_id()
    return {
        "gpus": len({worker.device for worker in layout.workers}),
        "workers": len(layout.workers),
        "batches": batches,
        "probes_per_batch": policy.resources.probes / batches,
        "us_per_batch": policy.spent_ns / batches / 1000,
    }


def bench_dispatch(
    console: Console, layout: Layout | None = None, times: Sequence[int] = (1, 10, 100)
) -> list[dict[str, Any]]:
    """Measure copies of a layout, with gaps left and filled; prints a table."""
    layout = layout or made_up()
    rows: list[dict[str, Any]] = []
    table = Table("GPUs", "workers", "gaps", "probes/batch", "us/batch", title=f"PPipe's data plane; paper: {PAPER}")
    for copies in times:
        for fill_gaps in (False, True):
            row = measure(copies_of(layout, copies), PpipeOptions(fill_gaps=fill_gaps))
            rows.append({"fill_gaps": fill_gaps, **row})
            table.add_row(
                f"{row['gpus']:,}",
                f"{row['workers']:,}",
                "filled" if fill_gaps else "left",
                f"{row['probes_per_batch']:.2f}",
                f"{row['us_per_batch']:.1f}",
            )
    console.print(table)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.ppipe_dispatch", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--layout", type=Path, help="a planner's layout; default: a made-up one for 100 GPUs")
    parser.add_argument("--times", type=int, nargs="*", default=[1, 10, 100], help="copies; default 1 10 100")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args(arguments)
    try:
        layout = read_document(options.layout, Layout) if options.layout else None
    except DocumentError as error:
        parser.error(str(error))
    rows = bench_dispatch(Console(width=None if os.isatty(1) else 100), layout, options.times)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
