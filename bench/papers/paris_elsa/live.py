"""ELSA and FIFS live: slices as emulated GPUs, each behind a real tritonserver, beside the same run simulated.

What live adds is measured in that very run and given to the simulation: what executions took besides the emulated
GPU's time, and the way from the client and back, by which the simulated SLA is shorter.
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from bench.papers.paris_elsa.design_points import MODEL, Point, layout_of, slices_of, slo_of
from bench.papers.paris_elsa.measured import Case, Curve, sizes_of_requests
from bench.papers.paris_elsa.throughput import ceiling_rps, scenario_of
from tidegate.api import NS_PER_MS, Dispatch, RequestArrived, StageFinished
from tidegate.observation import read_log
from tidegate.schemas import Layout
from tidegate.sim.result import ResultRow
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import Scenario
from tidegate_loadtest.live import LiveObservations, SendingOptions
from tidegate_loadtest.scenario_run import LiveRun, run_live

AIM = 0.05
LARGEST, FACTOR = 32, 1.5
STRETCH = 16.0
"""Emulated slices take so many times as long as was measured: then a machine of two cores is fast enough for them."""


@dataclass(frozen=True)
class Overhead:
    """What live adds, in ms, mean."""

    execution_ms: float
    """Of every execution: the way to Triton and back too, since the worker is taken for so long."""
    way_ms: float
    """From the scheduled instant to Tidegate, and from the end of the execution to the client."""


@dataclass(frozen=True)
class Pair:
    """One run, live and simulated."""

    policy: str
    load: float
    """Of what no scheduler can pass."""
    seed: int
    live: ResultRow
    simulated: ResultRow
    overhead: Overhead
    slices: dict[int, int]

    @property
    def goodput_off(self) -> float:
        """Of live, relative to simulated."""
        return self.live.goodput_rps / self.simulated.goodput_rps - 1

    @property
    def p95_off(self) -> float:
        """The 95th percentile of the latency, of live as the clients see it, less the way, relative to simulated."""
        assert self.live.p95_ms is not None, "it answered"
        assert self.simulated.p95_ms is not None, "it answered"
        return (self.live.p95_ms - self.overhead.way_ms) / self.simulated.p95_ms - 1

    @property
    def meets(self) -> bool:
        """Whether as many are answered on time as simulated."""
        return abs(self.goodput_off) <= AIM

    def row(self) -> dict[str, Any]:
        """For a file."""
        return {
            "policy": self.policy,
            "load": self.load,
            "seed": self.seed,
            "rate_rps": self.live.offered_rps,
            "live_goodput_rps": self.live.goodput_rps,
            "simulated_goodput_rps": self.simulated.goodput_rps,
            "goodput_off": self.goodput_off,
            "live_attainment": self.live.attainment,
            "simulated_attainment": self.simulated.attainment,
            "live_p95_ms": self.live.p95_ms,
            "simulated_p95_ms": self.simulated.p95_ms,
            "p95_off": self.p95_off,
            "execution_ms": self.overhead.execution_ms,
            "way_ms": self.overhead.way_ms,
            "late_sender_p99_ms": self.live.lateness_p99_ms,
            "slices": self.slices,
            "meets": self.meets,
        }


def run_pair(case: Case, point: Point, load: float, seed: int, seconds: float, gpcs: int) -> Pair:
    """A design point of so many GPCs, stretched in time, at a load: live, then simulated.

    Raises LoadTestError, PlanningError.
    """
    sizes = sizes_of_requests(LARGEST)
    case = replace(case, curves={size: _stretched(curve) for size, curve in case.curves.items()})
    slo_ms = slo_of(case, LARGEST, FACTOR)
    layout = layout_of(case, point, sizes, slo_ms, gpcs=gpcs)
    rate_rps = load * ceiling_rps(layout, sizes, slo_ms)
    scenario = _seen_live(scenario_of(layout, sizes, rate_rps, seconds))
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        live = run_live(LiveRun(scenario, point.policy, seed, SendingOptions({})), work=Path(folder))
        overhead = overhead_in_log(live.seen, Path(folder) / "events.jsonl", layout)
    slower = _slower(layout, overhead.execution_ms, slo_ms - overhead.way_ms)
    simulated = simulate(RunSpec(_seen_live(scenario_of(slower, sizes, rate_rps, seconds)), point.policy, seed))
    return Pair(point.policy.title, load, seed, live.result.total, simulated.total, overhead, slices_of(layout))


def overhead_in_log(seen: LiveObservations, event_log: Path, layout: Layout) -> Overhead:
    """What a run through Tidegate added to the times of its layout."""
    tables = layout.partitions[0].latency_ms
    kinds = [worker.speed for worker in layout.workers]
    rows_of: dict[int, int] = {}
    arrival_ns: dict[int, int] = {}
    batches: dict[int, tuple[int, ...]] = {}
    longer_ms, latency_ms = [], []
    with event_log.open("rb") as lines:
        _header, entries = read_log(lines)
        for entry in entries:
            match entry.event:
                case RequestArrived(request=request):
                    rows_of[request.id], arrival_ns[request.id] = request.rows, request.arrival_ns
                case StageFinished() as stage:
                    requests = batches[stage.batch_id]
                    rows = sum(rows_of[request_id] for request_id in requests)
                    took_ms = (stage.ended_ns - stage.started_ns) / NS_PER_MS
                    longer_ms.append(took_ms - tables[kinds[stage.worker_id]][rows - 1])
                    arrived_ns = [arrival_ns[request_id] for request_id in requests]
                    latency_ms += [(stage.ended_ns - at) / NS_PER_MS for at in arrived_ns if at >= seen.run.began_ns]
            for command in entry.commands:
                if isinstance(command, Dispatch):
                    batches[command.batch.id] = command.batch.request_ids
    by_clients_ms = float(seen.run.latency_ns[seen.run.ok].mean()) / NS_PER_MS
    return Overhead(mean(longer_ms), by_clients_ms - mean(latency_ms))


def _stretched(curve: Curve) -> Curve:
    return replace(curve, latency_ms={rows: STRETCH * latency_ms for rows, latency_ms in curve.latency_ms.items()})


def _seen_live(scenario: Scenario) -> Scenario:
    """With a warm-up that is long enough for what learns, as live Tidegate does."""
    simulation = scenario.simulation.model_copy(update={"learn": True})
    return scenario.model_copy(update={"warmup_s": 5.0, "simulation": simulation})


def _slower(layout: Layout, by_ms: float, slo_ms: float) -> Layout:
    """The layout with executions that take so much longer, and another SLA."""
    (part,), (model,) = layout.partitions, layout.models
    assert model.name == MODEL, "its only one"
    latency_ms = {kind: tuple(max(0.001, taken + by_ms) for taken in table) for kind, table in part.latency_ms.items()}
    return layout.model_copy(
        update={
            "partitions": (part.model_copy(update={"latency_ms": latency_ms}),),
            "models": (model.model_copy(update={"slo_ms": slo_ms}),),
        }
    )
