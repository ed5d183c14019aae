"""Accuracy of the simulator for graphs and tenants: one scenario of each, on emulated GPUs and simulated.

    python -m bench.live_graphs_and_tenants [--seconds S] [--rounds N] [--json FILE]

Keep the machine otherwise idle: generator, Tidegate and tritonserver share it. As in `bench.live_vs_simulated`, the
simulation is given what a live run adds: the mean time of executions beyond the emulated GPU's, and the network latency
of clients, by the requests of one model that no graph uses.
"""

import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from bench.common import console_of, parser_of, print_table, write_json
from tidegate.api import NS_PER_MS, Dispatch, RequestArrived, StageFinished
from tidegate.observation import read_log
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario, draw_requests
from tidegate_loadtest.emulated_layout import true_times
from tidegate_loadtest.live import LiveObservations, SendingOptions
from tidegate_loadtest.scenario_run import LiveRun, run_live

WARMUP_S = 3.0
RELATIVE_AIM = 0.05
"""Largest relative difference of a live from a simulated rate."""
POLICY = PolicyChoice(name="symphony")
DIRECT_MODEL = "embed"
"""Model of which all requests are clients' own."""
PROFILES = {
    "find": {"alpha_ms": 8, "beta_ms": 20, "max_batch": 8},
    "read": {"alpha_ms": 3, "beta_ms": 12, "max_batch": 16},
    DIRECT_MODEL: {"alpha_ms": 5, "beta_ms": 25, "max_batch": 8},
}
GRAPHS = [
    {
        "name": "pages",
        "slo_ms": 400,
        "weight": 2,
        "stages": [
            {"model": "find"},
            {"model": "read"},
            {"model": "read", "name": "read again", "after": ["find"]},
            {"model": "find", "name": "check", "after": ["read", "read again"]},
        ],
    }
]
TENANTS = [
    {"name": "shop", "load": 3, "clients": 10, "weight": 3},
    {"name": "flood", "load": 5, "clients": 10},
    {"name": "limited", "load": 2, "requests_per_s": 15},
]
CASES: dict[str, dict[str, Any]] = {
    "graph": {"graphs": GRAPHS, "weights": {"find": 0, "read": 1, DIRECT_MODEL: 1}, "rate_rps": 100},
    "tenants": {"tenants": TENANTS, "weights": {"find": 0, "read": 0, DIRECT_MODEL: 1}, "rate_rps": 280},
}
"""Scenarios near and above what two workers can do."""


@dataclass(frozen=True)
class Overhead:
    """Times that a live run adds to a simulated one, in ms."""

    execution_ms: dict[str, float]
    """Mean time of an execution beyond the emulated GPU's, by model."""
    network_latency_ms: float
    """Mean of the clients' latency minus that between arrival and end in Tidegate."""


@dataclass(frozen=True)
class Difference:
    """A rate of one model, graph or tenant, live and simulated."""

    case: str
    seed: int
    of: str
    live_rps: float
    simulated_rps: float

    @property
    def relative(self) -> float:
        """Relative difference of the live from the simulated rate."""
        return self.live_rps / self.simulated_rps - 1 if self.simulated_rps else 0.0


def scenario_of(case: str, seconds: float, overhead: Overhead | None = None) -> Scenario:
    """Return the scenario of a case, to be simulated with the overhead of a live run if it is given."""
    given = CASES[case]
    added, late_ms = (overhead.execution_ms, overhead.network_latency_ms) if overhead else ({}, 0.0)
    service = {
        name: {"profile": {**PROFILES[name], "beta_ms": PROFILES[name]["beta_ms"] + more_ms}}
        for name, more_ms in added.items()
    }
    return Scenario.model_validate(
        {
            "name": case,
            "warmup_s": WARMUP_S,
            "duration_s": seconds,
            "workers": [{"count": 2}],
            "models": [
                {"name": name, "slo_ms": 200 - late_ms, "profile": profile, "weight": given["weights"][name]}
                for name, profile in PROFILES.items()
            ],
            "graphs": [{**graph, "slo_ms": graph["slo_ms"] - late_ms} for graph in given.get("graphs", ())],
            "tenants": given.get("tenants", []),
            "arrivals": {"rate_rps": given["rate_rps"]},
            "simulation": {"service": service},
        }
    )


def overhead_of(scenario: Scenario, seed: int, seen: LiveObservations, event_log: Path) -> Overhead:
    """Return what a live run added, from the clients' observations and Tidegate's event log."""
    times = {model: profile for (model, _), profile in true_times(scenario).items()}
    requests: dict[int, tuple[str, int]] = {}
    batches: dict[int, tuple[str, tuple[int, ...]]] = {}
    longer_ms: dict[str, list[float]] = {}
    server_ms = []
    with event_log.open("rb") as lines:
        _header, entries = read_log(lines)
        for entry in entries:
            match entry.event:
                case RequestArrived(request=request):
                    requests[request.id] = request.model, request.arrival_ns
                case StageFinished() as stage:
                    model, members = batches[stage.batch_id]
                    took_ms = (stage.ended_ns - stage.started_ns) / NS_PER_MS
                    longer_ms.setdefault(model, []).append(took_ms - times[model].expected_ns(len(members)) / NS_PER_MS)
                    arrivals_ns = [requests[member][1] for member in members if model == DIRECT_MODEL]
                    server_ms += [
                        (stage.ended_ns - at_ns) / NS_PER_MS for at_ns in arrivals_ns if at_ns >= seen.run.began_ns
                    ]
            for command in entry.commands:
                if isinstance(command, Dispatch):
                    batches[command.batch.id] = command.batch.model, command.batch.request_ids
    drawn = draw_requests(scenario, seed)
    which = drawn.models.index(DIRECT_MODEL)
    direct = [number for number, model in enumerate(drawn.model[seen.first :]) if model == which]
    answered = [number for number in direct if seen.run.ok[number]]
    client_ms = [seen.run.latency_ns[number] / NS_PER_MS for number in answered]
    return Overhead({model: mean(each) for model, each in longer_ms.items()}, float(mean(client_ms)) - mean(server_ms))


def compare(case: str, seconds: float, seed: int, work: Path) -> tuple[list[Difference], Overhead, str]:
    """Run a case live and simulated; return the rates, the overhead, and why the live run measured nothing."""
    scenario = scenario_of(case, seconds)
    live = run_live(LiveRun(scenario, POLICY, seed, SendingOptions({})), work=work)
    overhead = overhead_of(scenario, seed, live.seen, work / "events.jsonl")
    simulated = simulate(RunSpec(scenario_of(case, seconds, overhead), POLICY, seed))
    pairs = [
        (row.model, row.goodput_rps, other.goodput_rps)
        for row, other in zip(live.result.rows, simulated.rows, strict=True)
        if other.accepted
    ]
    for tenant, other in zip(live.result.tenants, simulated.tenants, strict=True):
        pairs.append((f"{tenant.tenant}, on time", tenant.on_time / seconds, other.on_time / seconds))
        pairs.append((f"{tenant.tenant}, over its limit", tenant.rate_limited / seconds, other.rate_limited / seconds))
    return [Difference(case, seed, *pair) for pair in pairs], overhead, live.not_measured


def main() -> None:
    """Run the comparisons and write their figures."""
    parser = parser_of("bench.live_graphs_and_tenants", __doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="measured window of every live run")
    parser.add_argument("--rounds", type=int, default=1, help="seeds")
    arguments = parser.parse_args()
    console = console_of(160)
    console.print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} before")
    found: list[Difference] = []
    for case in CASES:
        for seed in range(1, arguments.rounds + 1):
            with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
                differences, overhead, why = compare(case, arguments.seconds, seed, Path(folder))
            found += differences
            added = ", ".join(f"{model} {more_ms:.2f}" for model, more_ms in overhead.execution_ms.items())
            console.print(f"{case}, seed {seed}: execution +{added} ms, network {overhead.network_latency_ms:.2f} ms")
            if why:
                console.print(f"[yellow]{case}, seed {seed}: not measured: {why}[/]")
    columns = ["case", "seed", "rate", "live /s", "simulated /s", "difference", "aim"]
    rows = [
        [
            each.case,
            str(each.seed),
            each.of,
            f"{each.live_rps:.1f}",
            f"{each.simulated_rps:.1f}",
            f"{each.relative:+.1%}",
            "met" if abs(each.relative) <= RELATIVE_AIM else "missed",
        ]
        for each in found
    ]
    print_table(console, f"Live against simulated, aim within {RELATIVE_AIM:.0%}", columns, rows)
    write_json(arguments.json, [asdict(each) | {"relative": each.relative} for each in found])


if __name__ == "__main__":
    main()
