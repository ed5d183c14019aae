"""Accuracy of the simulator: one scenario on emulated GPUs behind tritonserver, and simulated.

    python -m bench.live_vs_simulated [--seconds S] [--rounds N] [--json FILE]

Keep the machine otherwise idle: generator, Tidegate and tritonserver share it. Live overhead is measured and given to
the simulation: the profile that policies plan with, measured through Triton beforehand; the time of executions beyond
the emulated GPU's, the mean of that run from Tidegate's event log or Triton's statistics; the network latency of
clients, subtracted from the simulated SLO; and its part that the proxy reserves before deadlines (`deadline_margin_ms`,
for policies that have the option).
"""

import asyncio
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from rich.console import Console

from bench.common import console_of, parser_of, print_table, write_json
from tidegate.api import NS_PER_MS, Dispatch, RequestArrived, StageFinished
from tidegate.observation import read_log
from tidegate.schemas import ModelProfile
from tidegate.sim.result import ResultRow
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario
from tidegate_loadtest.connection import Connection
from tidegate_loadtest.emulated import TRITON_POLICY, emulated_cluster
from tidegate_loadtest.live import LiveObservations, SendingOptions
from tidegate_loadtest.profiler import measure_profiles
from tidegate_loadtest.progress_bar import progress_bar
from tidegate_loadtest.scenario_run import LiveRun, run_live

MODEL = "inceptionresnetv2"
NOMINAL = {"alpha_ms": 5.09, "beta_ms": 18.368}
"""Profile on a 1080Ti: Table 2 of the Symphony paper."""
WORKERS, SLO_MS, MAX_BATCH = 4, 70.0, 16
SIZES, SAMPLES = (1, 2, 4, 8, 16), 20
RATES_RPS = (300, 400)
WARMUP_S = 3.0
POLICIES = (
    PolicyChoice(name="symphony"),
    PolicyChoice(name="fifs"),
    PolicyChoice(name=TRITON_POLICY, options={"max_queue_delay_ms": 10}, label="Triton's batcher, 10 ms"),
)
GOODPUT_AIM, BATCH_AIM = 0.05, 1.0


@dataclass(frozen=True)
class Overhead:
    """Live overhead beyond the emulated GPU's time, in ms."""

    execution_ms: float
    """Mean overhead of an execution; with Tidegate it has the network latency to Triton and back, as the worker is then
    busy.
    """
    deadline_margin_ms: float
    """Median time reserved before deadlines; 0 without Tidegate."""
    network_latency_ms: float
    """Mean time from the scheduled arrival to the server plus that from the end of the execution to the client."""


@dataclass(frozen=True)
class Pair:
    """Results of one run, live and simulated."""

    policy: str
    rate_rps: float
    seed: int
    live: ResultRow
    simulated: ResultRow
    fell_behind: bool
    overhead: Overhead

    @property
    def goodput_off(self) -> float:
        """Relative difference of the live goodput from the simulated one."""
        return self.live.goodput_rps / self.simulated.goodput_rps - 1

    @property
    def batch_off(self) -> float:
        """Difference of the live median batch from the simulated one, in rows."""
        return (self.live.median_batch_rows or 0.0) - (self.simulated.median_batch_rows or 0.0)

    @property
    def meets(self) -> bool:
        """Whether goodput and batch are within their limits."""
        return abs(self.goodput_off) <= GOODPUT_AIM and abs(self.batch_off) <= BATCH_AIM


def bench_live_vs_simulated(console: Console, *, duration_s: float = 20.0, rounds: int = 1) -> list[dict[str, Any]]:
    """Run the comparison and print it; return a row per rate, policy and seed.

    `duration_s`: measured window, seconds; `rounds`: number of seeds.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        work = Path(folder)
        profile = _measured(work)
        console.print(
            f"l(b) measured through Triton: {profile.alpha_ms:.2f} ms * b + {profile.beta_ms:.2f} ms, "
            f"of the emulated GPU: {NOMINAL['alpha_ms']} ms * b + {NOMINAL['beta_ms']} ms",
            highlight=False,
        )
        cases = [(rate, choice, seed) for seed in range(1, rounds + 1) for rate in RATES_RPS for choice in POLICIES]
        pairs = []
        each_s = WARMUP_S + duration_s
        with progress_bar(console, each_s * len(cases)) as show:
            for number, (rate, choice, seed) in enumerate(cases):
                show(number * each_s, f"{choice.title} at {rate}/s")
                own = work / str(number)
                own.mkdir()
                pairs.append(_pair(profile, choice, rate, seed, duration_s, own))
    print_pairs(console, pairs, duration_s)
    return [asdict(pair) | {"meets": pair.meets} for pair in pairs]


def scenario_of(
    rate_rps: float, duration_s: float, expected: dict[str, Any], true: dict[str, Any], *, slo_ms: float = SLO_MS
) -> Scenario:
    """Return the scenario of one run.

    `rate_rps`: requests per second; `duration_s`: measured window, seconds; `expected`: profile that policies plan
    with; `true`: profile of the GPUs, emulated or simulated; `slo_ms`: SLO.
    """
    return Scenario.model_validate(
        {
            "warmup_s": WARMUP_S,
            "duration_s": duration_s,
            "workers": [{"count": WORKERS}],
            "models": [{"name": MODEL, "slo_ms": slo_ms, "profile": expected, "max_batch": MAX_BATCH}],
            "arrivals": {"rate_rps": rate_rps},
            "simulation": {"service": {MODEL: {"profile": true}}},
        }
    )


def _measured(work: Path) -> ModelProfile:
    """What `tidegate profile` finds."""
    folder = work / "profile"
    folder.mkdir()
    scenario = scenario_of(1, 1, NOMINAL, NOMINAL)

    async def measure(target: str) -> ModelProfile:
        async with Connection(target) as connection:
            (profile,) = await measure_profiles(connection, MODEL, SIZES, [{}], samples=SAMPLES)
            return profile

    with emulated_cluster(scenario, PolicyChoice(name=TRITON_POLICY), 0, folder) as cluster:
        return asyncio.run(measure(cluster.address))


def _pair(
    profile: ModelProfile, choice: PolicyChoice, rate_rps: float, seed: int, duration_s: float, work: Path
) -> Pair:
    expected = {"points_ms": {point.rows: point.p95_ms for point in profile.points}}
    live = run_live(
        LiveRun(scenario_of(rate_rps, duration_s, expected, NOMINAL), choice, seed, SendingOptions({})), work=work
    )
    if choice.name == TRITON_POLICY:
        overhead = _overhead_in_triton(live.seen)
    else:
        overhead = overhead_in_log(live.seen, work / "events.jsonl")
    true = {**NOMINAL, "beta_ms": NOMINAL["beta_ms"] + overhead.execution_ms}
    if choice.name == "symphony":
        deadline_margin_ms = max(0.0, overhead.deadline_margin_ms - overhead.network_latency_ms)
        choice = choice.model_copy(update={"options": {**choice.options, "deadline_margin_ms": deadline_margin_ms}})
    scenario = scenario_of(rate_rps, duration_s, expected, true, slo_ms=SLO_MS - overhead.network_latency_ms)
    simulated = simulate(RunSpec(scenario, choice, seed))
    title = live.run.policy.title
    return Pair(title, rate_rps, seed, live.result.total, simulated.total, live.fell_behind, overhead)


def nominal_ms(rows: int) -> float:
    """Return the emulated GPU's time for a batch, in ms."""
    return NOMINAL["alpha_ms"] * rows + NOMINAL["beta_ms"]


def _latency_ms(seen: LiveObservations) -> float:
    """By the clients' clock, mean of the answered."""
    return float(seen.run.latency_ns[seen.run.ok].mean()) / NS_PER_MS


def _overhead_in_triton(seen: LiveObservations) -> Overhead:
    usage = seen.usage[MODEL]
    assert usage.mean_request_ms is not None, "it answered"
    emulated_ms = sum(count * nominal_ms(rows) for rows, count in usage.executions_of.items())
    execution_ms = (usage.busy_ns / NS_PER_MS - emulated_ms) / usage.executions
    return Overhead(execution_ms, 0.0, _latency_ms(seen) - usage.mean_request_ms)


def overhead_in_log(seen: LiveObservations, event_log: Path) -> Overhead:
    """Return the overhead of a run through Tidegate, from the clients' observations and the event log."""
    arrival_ns: dict[int, int] = {}
    batches: dict[int, tuple[int, ...]] = {}
    kept_ms, longer_ms, latency_ms = [], [], []
    with event_log.open("rb") as lines:
        _header, entries = read_log(lines)
        for entry in entries:
            match entry.event:
                case RequestArrived(request=request):
                    arrival_ns[request.id] = request.arrival_ns
                    kept_ms.append(SLO_MS - (request.deadline_ns - request.arrival_ns) / NS_PER_MS)
                case StageFinished() as stage:
                    took_ms = (stage.ended_ns - stage.started_ns) / NS_PER_MS
                    longer_ms.append(took_ms - nominal_ms(len(batches[stage.batch_id])))
                    arrived_ns = [arrival_ns[request_id] for request_id in batches[stage.batch_id]]
                    latency_ms += [
                        (stage.ended_ns - at_ns) / NS_PER_MS for at_ns in arrived_ns if at_ns >= seen.run.began_ns
                    ]
            for command in entry.commands:
                if isinstance(command, Dispatch):
                    batches[command.batch.id] = command.batch.request_ids
    return Overhead(mean(longer_ms), median(kept_ms), _latency_ms(seen) - mean(latency_ms))


def print_pairs(console: Console, pairs: list[Pair], duration_s: float) -> None:
    """Print the table, and the runs that missed a limit or were not measured; `duration_s`: their measured window."""
    rows = []
    for pair in pairs:
        live, simulated, overhead = pair.live, pair.simulated, pair.overhead
        added_ms = (overhead.execution_ms, overhead.network_latency_ms, overhead.deadline_margin_ms)
        rows.append(
            (
                f"{pair.rate_rps:g}/s, {pair.policy}",
                f"{live.goodput_rps:.0f}, {simulated.goodput_rps:.0f}",
                f"{pair.goodput_off:+.1%}",
                f"{live.attainment:.1%}, {simulated.attainment:.1%}",
                f"{live.median_batch_rows:g}, {simulated.median_batch_rows:g}",
                f"{live.mean_batch_rows:.2f}, {simulated.mean_batch_rows:.2f}",
                f"{live.p99_ms:.1f}, {simulated.p99_ms:.1f}",
                f"{live.lateness_p99_ms:.1f}",
                ", ".join(f"{each:.2f}" for each in added_ms),
                "met" if pair.meets else "missed",
            )
        )
    columns = ["rate, policy", "goodput /s live, simulated", "", "attainment", "median batch", "mean batch", "p99 ms"]
    columns += ["late p99 ms", "execution, network, reserve ms", "aims"]
    title = f"{WORKERS} emulated GPUs, SLO {SLO_MS:g} ms, Poisson, {duration_s:g} s: live, simulated"
    print_table(console, title, columns, rows)
    console.print(f"Aims: goodput within {GOODPUT_AIM:.0%}, median batch within {BATCH_AIM:g}.")
    for pair in pairs:
        where = f"{pair.policy} at {pair.rate_rps:g}/s, seed {pair.seed}"
        if not pair.meets:
            console.print(f"Missed: {where}: goodput {pair.goodput_off:+.1%}, median batch {pair.batch_off:+g}")
        if pair.fell_behind:
            console.print(f"[yellow]{where}: the generator fell behind: this run does not measure the server[/]")


def main() -> None:
    """Run the comparison and write its figures."""
    parser = parser_of("bench.live_vs_simulated", __doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="measured window of every live run")
    parser.add_argument("--rounds", type=int, default=1, help="seeds")
    arguments = parser.parse_args()
    console = console_of(200)
    console.print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} before")
    rows = bench_live_vs_simulated(console, duration_s=arguments.seconds, rounds=arguments.rounds)
    write_json(arguments.json, rows)


if __name__ == "__main__":
    main()
