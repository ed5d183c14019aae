"""Accuracy of shadow mode: three workloads on emulated GPUs behind tritonserver.

    python -m bench.shadow_mode [--workload N ...] [--seconds S] [--json FILE]

The requests of each workload are sent three times at the same instants: bypassing the policy (`scheduling: bypass`),
bypassing it in shadow mode, and scheduled. The gain that shadow mode estimates is compared with that measured by
clients: scheduled minus bypass. The cost of shadow mode is the CPU time of the proxy's process and the median latency,
against bypass without it. Policies plan with a profile measured through that Triton. Keep the machine otherwise idle.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
import urllib.request
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from bench.proxy_process import ProxyProcess, proxy_process
from tidegate.schemas import write_profile
from tidegate.workload import PolicyChoice, Scenario
from tidegate_loadtest.connection import Connection
from tidegate_loadtest.emulated import TRITON_POLICY, emulated_cluster
from tidegate_loadtest.live import SendingOptions
from tidegate_loadtest.profiler import measure_profiles
from tidegate_loadtest.scenario_run import LiveRun, run_live

WARMUP_S = 2.0
SIZES, SAMPLES = (1, 2, 4, 8, 16), 20
INCEPTION = {
    "name": "inceptionresnetv2",
    "slo_ms": 70,
    "profile": {"alpha_ms": 5.09, "beta_ms": 18.368},
    "max_batch": 16,
}
RESNET = {"name": "resnet50", "slo_ms": 40, "profile": {"alpha_ms": 2.1, "beta_ms": 10.1}, "max_batch": 16}
WORKLOADS: dict[str, dict[str, Any]] = {
    "one model, Poisson, near what is carried": {
        "workers": [{"count": 2}],
        "models": [INCEPTION],
        "arrivals": {"rate_rps": 170},
    },
    "one model, bursts (gamma 0.2)": {
        "workers": [{"count": 2}],
        "models": [INCEPTION],
        "arrivals": {"process": "gamma", "shape": 0.2, "rate_rps": 120},
    },
    "two models on the same GPUs": {
        "workers": [{"count": 2}],
        "models": [INCEPTION, RESNET],
        "arrivals": {"rate_rps": 170},
    },
}
AIM = 0.03


@dataclass(frozen=True)
class Compared:
    """Results of one workload."""

    workload: str
    measured: float
    """Attainment with bypass in shadow mode, measured by clients."""
    scheduled: float
    """Attainment when scheduled, measured by clients."""
    scheduled_seen: float
    """Attainment when scheduled, counted by Tidegate with the warm-up."""
    said: dict[str, Any]
    """Estimate for all models, and the measured start delay of idle instances."""
    plain_p50_ms: float
    shadow_p50_ms: float
    plain_cpu: float
    """CPU share of the proxy's process with bypass without shadow mode."""
    shadow_cpu: float
    simulator_cpu: float
    """CPU share of the simulator process, which has the lowest priority."""
    fell_behind: bool

    @property
    def gain(self) -> float:
        """Measured gain of scheduling."""
        return self.scheduled - self.measured

    @property
    def off(self) -> float:
        """Difference between the estimated and the measured gain."""
        return float(self.said["policy"] - self.said["passing"]) - self.gain


def compare(workload: str, seconds: float, work: Path) -> Compared:
    """Run a workload three times.

    Args:
        workload: its number.
        seconds: measured window.
        work: folder for files.
    """
    scenario = Scenario.model_validate({"warmup_s": WARMUP_S, "duration_s": seconds, **WORKLOADS[workload]})
    with emulated_cluster(scenario, PolicyChoice(name=TRITON_POLICY), 1, work) as cluster:
        profiles = work / "measured.json"
        asyncio.run(_measure(cluster.address, scenario, profiles))
        flags = ["--triton", cluster.address, "--listen", "127.0.0.1:0", "--listen-metrics", "127.0.0.1:0"]
        flags += ["--profiles", str(profiles)]
        slos = [word for model in scenario.models for word in ("--slo", f"{model.name}={model.slo_ms}")]
        passing = [word for model in scenario.models for word in ("--scheduling", f"{model.name}=bypass")]
        merging = [word for model in scenario.models for word in ("--scheduling", f"{model.name}=batched")]
        plain, plain_cpu, _, _, _ = _sent(scenario, work, *flags, *passing)
        shadow, shadow_cpu, simulator_cpu, said, _ = _sent(scenario, work, *flags, *slos, *merging, "--shadow")
        scheduled, _, _, _, seen = _sent(scenario, work, *flags, *slos, *merging)
    rows = [live.result.total for live in (plain, shadow, scheduled)]
    return Compared(
        workload,
        rows[1].attainment,
        rows[2].attainment,
        seen,
        said or {},
        rows[0].p50_ms or 0.0,
        rows[1].p50_ms or 0.0,
        plain_cpu,
        shadow_cpu,
        simulator_cpu,
        any(live.fell_behind for live in (plain, shadow, scheduled)),
    )


async def _measure(target: str, scenario: Scenario, path: Path) -> None:
    async with Connection(target) as connection:
        for model in scenario.models:
            for profile in await measure_profiles(connection, model.name, SIZES, [{}], samples=SAMPLES):
                write_profile(path, profile)


def _sent(scenario: Scenario, work: Path, *flags: str) -> tuple[Any, float, float, dict[str, Any] | None, float]:
    """Send the workload through a Tidegate.

    The run, its CPU, that of the simulator, what /shadow then says, and the attainment of what it scheduled, 0 to 1.
    """
    with proxy_process(work, *flags) as proxy:
        began_s, (spent_s, _) = time.monotonic(), proxy.spent()
        run = LiveRun(scenario, PolicyChoice(name="symphony"), 1, SendingOptions({}), target=proxy.grpc)
        live = run_live(run)
        took_s = time.monotonic() - began_s
        cpu = (proxy.spent()[0] - spent_s) / took_s
        if "--shadow" not in flags:
            return live, cpu, 0.0, None, _seen(proxy)
        simulator_cpu = _children_s(proxy.pid) / took_s
        return live, cpu, simulator_cpu, _said(proxy, len(live.seen.run.ok)), 0.0


def _seen(proxy: ProxyProcess) -> float:
    """The share of the scheduled requests that Tidegate counts as in time; 0 where it scheduled none."""
    with urllib.request.urlopen(f"http://{proxy.metrics}/metrics") as answer:
        page = answer.read().decode()
    ended: Counter[str] = Counter()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "tidegate_requests_total":
                ended[sample.labels["outcome"]] += int(sample.value)
    counted = ended.total() - ended["cancelled"]
    return ended["on_time"] / counted if counted else 0.0


def _said(proxy: ProxyProcess, sent: int) -> dict[str, Any]:
    """The estimate of all models, and how long idle instances take to begin, once it is of all that was sent."""
    give_up = time.monotonic() + 40
    while True:
        with urllib.request.urlopen(f"http://{proxy.metrics}/shadow") as answer:
            report = json.load(answer)["report"]
        if report and report["estimates"] and report["estimates"][0]["requests"] >= sent:
            return dict(report["estimates"][0]) | {"begin_ms": report["begin_ms"]}
        if time.monotonic() > give_up:
            raise SystemExit(f"shadow mode has not said anything of all {sent} requests: {report}\n{proxy.log}")
        time.sleep(0.5)


def _children_s(pid: int) -> float:
    """The CPU time of the processes that it has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    fields = (Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split() for child in children)
    return sum((int(of[11]) + int(of[12])) / os.sysconf("SC_CLK_TCK") for of in fields)


def show(console: Console, rows: list[Compared]) -> None:
    """Print the tables."""
    table = Table("workload", "passed", "scheduled", "gained", "simulated gain", "said", "off", "aim", "p50 ms", "CPU")
    for row in rows:
        said = row.said
        low, high = said["gain"] or (0.0, 0.0)
        table.add_row(
            row.workload + (" [yellow](generator fell behind)[/]" if row.fell_behind else ""),
            f"{row.measured:.1%} (seen {said['measured']:.1%}, simulated {said['batcher']:.1%}, "
            f"at clients {said['passing']:.1%}, begin {said['begin_ms']} ms)",
            f"{row.scheduled:.1%} (seen {row.scheduled_seen:.1%}, simulated {said['policy']:.1%})",
            f"{100 * row.gain:+.1f}",
            f"{100 * (said['policy'] - said['passing']):+.1f}",
            f"{100 * low:+.1f} to {100 * high:+.1f}" if said["gain"] else f"nothing: {said['why']}",
            f"{100 * row.off:+.1f}",
            "met" if abs(row.off) <= AIM else "[red]missed[/]",
            f"{row.plain_p50_ms:.1f} -> {row.shadow_p50_ms:.1f}",
            f"{row.plain_cpu:.1%} -> {row.shadow_cpu:.1%}, simulator {row.simulator_cpu:.1%}",
        )
    console.print(table)


def main() -> None:
    """Run the workloads and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.shadow_mode", description=__doc__)
    numbers = range(1, len(WORKLOADS) + 1)
    parser.add_argument("--workload", type=int, action="append", choices=numbers, help="only these, by number from 1")
    parser.add_argument("--seconds", type=float, default=40.0, help="measured window of every run")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    console = Console(width=None if os.isatty(1) else 240)
    console.print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} before")
    rows = []
    for number, workload in enumerate(WORKLOADS, 1):
        if number not in (arguments.workload or numbers):
            continue
        with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
            rows.append(compare(workload, arguments.seconds, Path(folder)))
        show(console, rows[-1:])
    show(console, rows)
    if arguments.json:
        figures = [asdict(row) | {"gain": row.gain, "off": row.off} for row in rows]
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
