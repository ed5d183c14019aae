"""Cost of a live layout change: workers move to other GPUs under load; attainment meanwhile.

    python -m bench.shadow_switch [--changes N] [--load SHARE] [--stay S]

Two emulated GPUs serve one model at a share of what they bear. Every few seconds a controller moves one of the two
workers to another GPU: a new Triton starts beside the old ones, is warmed up, takes over, and the old one drains and
ends. It fails where a request is not answered, or a change is not done. The event log is replayed: what is said of
requests comes from there.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

import bench.moving_worker
from tidegate.api import AnyCommand, Batch, Request
from tidegate.host import Plugins
from tidegate.observation import (
    AnyEffect,
    ChangeProgressed,
    Observer,
    ObserverOptions,
    OutcomeListener,
    Reducer,
    read_log,
)
from tidegate.observation.stimuli import AnyStimulus
from tidegate.schemas import PROXY_FILE, Device, Layout, write_document
from tidegate.sim.replay import replay
from tidegate.workload import PolicyChoice, Scenario, layout_of
from tidegate.workload.arrivals import NS_PER_S, Poisson
from tidegate_loadtest.connection import Connection
from tidegate_loadtest.emulated_layout import write_emulated_deployment
from tidegate_loadtest.model_inputs import RandomRequests
from tidegate_loadtest.open_loop import run_open_loop
from tidegate_loadtest.processes import deployment_up

MODEL, WORKERS = "m", 2
ALPHA_MS, BETA_MS, MAX_BATCH, SLO_MS = 10.0, 40.0, 8, 500.0
BEARS_RPS = WORKERS * 1000 * MAX_BATCH / (ALPHA_MS * MAX_BATCH + BETA_MS)
SETTLE_S = 3.0


@dataclass(frozen=True)
class Change:
    """One change: when it began, when the new worker took over, when all was done; in ns of the log."""

    began_ns: int
    switched_ns: int
    done_ns: int


class _Fates(Observer, OutcomeListener):
    """What became of every request, and when the changes were."""

    def __init__(self) -> None:
        super().__init__(ObserverOptions())
        self._reducer = Reducer(self)
        self.ends: list[tuple[int, bool]] = []
        """When each request came, and whether it was answered on time."""
        self.lost = 0
        self.steps: list[ChangeProgressed] = []

    def handled(self, event: AnyStimulus, commands: Sequence[AnyCommand], effects: Sequence[AnyEffect]) -> None:
        self._reducer.handled(event, effects)

    def answered(self, batch: Batch, requests: Sequence[Request], ended_ns: int) -> None:
        self.ends += [(request.arrival_ns, ended_ns <= request.deadline_ns) for request in requests]

    def dropped(self, now_ns: int, request: Request, reason: str) -> None:
        self.ends.append((request.arrival_ns, False))

    def failed(self, now_ns: int, request: Request, reason: str) -> None:
        self.ends.append((request.arrival_ns, False))
        self.lost += 1

    def change_progressed(self, event: ChangeProgressed) -> None:
        self.steps.append(event)

    def changes(self) -> list[Change]:
        """Those that were done."""
        found, at_ns = [], {}
        for step in self.steps:
            at_ns[step.state] = step.now_ns
            if step.state == "done":
                found.append(Change(at_ns["starting"], at_ns["switched"], at_ns["done"]))
        return found

    def attainment(self, changes: Sequence[Change], *, during: bool) -> tuple[float, int]:
        """The share in time of those that came during a change, or of all others; and how many that is."""
        within = [any(change.began_ns <= at_ns <= change.done_ns for change in changes) for at_ns, _ in self.ends]
        chosen = [ok for (_, ok), inside in zip(self.ends, within, strict=True) if inside is during]
        return (sum(chosen) / len(chosen) if chosen else 1.0), len(chosen)


def scenario() -> Scenario:
    """Two emulated GPUs with one model."""
    document: dict[str, Any] = {
        "duration_s": 1,
        "workers": [{"count": WORKERS, "gpu": "A100"}],
        "models": [
            {
                "name": MODEL,
                "slo_ms": SLO_MS,
                "profile": {"alpha_ms": ALPHA_MS, "beta_ms": BETA_MS, "max_batch": MAX_BATCH},
            }
        ],
        "arrivals": {"rate_rps": 1},
    }
    return Scenario.model_validate(document)


def moved(first: Layout, changes: int) -> list[Layout]:
    """Layouts of which each has one of the workers of the one before on another GPU."""
    workers, layouts = list(first.workers), []
    for number in range(changes):
        gone = workers.pop(0)
        device = Device(gone.device.node, WORKERS + number, gone.device.product)
        workers.append(gone.model_copy(update={"name": f"moved-{number}", "device": device}))
        layouts.append(first.model_copy(update={"workers": tuple(workers)}))
    return layouts


def shadow_switch(folder: Path, *, changes: int, share: float, stay_s: float) -> tuple[_Fates, dict[str, int]]:
    """Run it; what became of the requests, and how they ended for their clients."""
    document, record = scenario(), folder / "events.jsonl"
    deployment = folder / "deployment"
    write_emulated_deployment(deployment, document, PolicyChoice(name="symphony"), 1, record)
    names = []
    for number, layout in enumerate(moved(layout_of(document), changes)):
        names.append(f"layout{number}.json")
        write_document(deployment / names[-1], layout)
    options = {"layouts": names, "stay_s": stay_s}
    config = yaml.safe_load((deployment / PROXY_FILE).read_text(encoding="utf-8"))
    config["controller"] = {
        "name": "mover",
        "interval_s": 0.2,
        "cooldown_s": 0,
        "min_improvement": 0,
        "options": options,
    }
    (deployment / PROXY_FILE).write_text(yaml.safe_dump(config), encoding="utf-8")
    bench.moving_worker.install(folder / "plugins")
    root = Path(bench.moving_worker.__file__).parents[1]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder / "plugins"), str(root)])
    with deployment_up(deployment, folder / "errors") as state:
        window_ns = round((changes * (stay_s + SETTLE_S) + SETTLE_S) * NS_PER_S)
        outcomes = asyncio.run(_load(state["grpc"], share * BEARS_RPS, window_ns))
    sys.path.insert(0, str(folder / "plugins"))
    with record.open("rb") as lines:
        header, entries = read_log(lines)
        policy = Plugins.installed().make_policy(header.policy, header.setup, header.options)
        fates = _Fates()
        found = replay(header, entries, policy, observers=[fates])
    if found.difference is not None:
        sys.exit(f"the replay differs from event {found.difference.number} on: {found.difference.event}")
    return fates, outcomes


async def _load(address: str, rate_rps: float, window_ns: int) -> dict[str, int]:
    arrivals_ns = list(Poisson(rate_rps).instants_ns(window_ns, Random(1)))
    async with Connection(address) as connection:
        inputs = await RandomRequests.for_model(connection, MODEL, rows=1, shapes={}, seed=1)
        run = await run_open_loop(connection, arrivals_ns, inputs, window_ns=window_ns, timeout_s=60.0)
    return {"sent": len(arrivals_ns), "answered": int(run.ok.sum()), **run.summary(SLO_MS).failed}


def main() -> None:
    """Run it and print what came of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.shadow_switch", description=__doc__)
    parser.add_argument("--changes", type=int, default=5, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--load", type=float, default=0.6, metavar="SHARE", help="of what the workers bear")
    parser.add_argument("--stay", type=float, default=5.0, metavar="S", help="seconds between changes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as work:
        fates, outcomes = shadow_switch(
            Path(work), changes=arguments.changes, share=arguments.load, stay_s=arguments.stay
        )
    changes = fates.changes()
    during, inside = fates.attainment(changes, during=True)
    besides, outside = fates.attainment(changes, during=False)
    table = Table(title=f"{len(changes)} changes at {arguments.load:.0%} load, {arguments.load * BEARS_RPS:.0f}/s")
    for column in ("", "requests", "in time"):
        table.add_column(column)
    table.add_row("during a change", str(inside), f"{during:.2%}")
    table.add_row("else", str(outside), f"{besides:.2%}")
    console = Console()
    console.print(table)
    for number, change in enumerate(changes, 1):
        up_s, drain_timeout_s = (
            (change.switched_ns - change.began_ns) / 1e9,
            (change.done_ns - change.switched_ns) / 1e9,
        )
        console.print(f"change {number}: {up_s:.2f} s until the switch, {drain_timeout_s:.2f} s to drain")
    console.print(f"for their clients: {outcomes}; failed without an answer: {fates.lost}")
    if fates.lost or len(changes) < arguments.changes:
        sys.exit(f"{fates.lost} requests lost, {len(changes)} changes done: {[step.state for step in fates.steps]}")


if __name__ == "__main__":
    main()
