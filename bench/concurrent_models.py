"""Several models in one Triton: passed through, scheduled in turn, side by side, and as Tidegate learns it.

    python -m bench.concurrent_models [--seconds S] [--slowdown K ...] [--workload NAME ...] [--load L ...]
                                      [--arm NAME ...] [--json FILE]

A Triton without a rate limiter executes its models concurrently. What that costs is the slowdown: by how much of its
own time a batch takes longer for each other one that runs meanwhile. 0: nothing, as on processors with cores to spare,
or a GPU that is mostly idle; 1: all of it, as on a GPU whose time is sliced. Each workload is sent once in each way,
the same requests at the same instants, to an emulated GPU behind the real tritonserver: passed through (`scheduling:
bypass`), as Triton with its own batcher does by itself; scheduled with `serialize_models: true`, `serialize_models:
false` and `serialize_models: learned`, which learns which of them is right. Policies plan with a profile measured
through that Triton, one model at a time. Nothing else should run meanwhile.
"""

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from rich.console import Console
from rich.table import Table
from tritonclient.grpc import model_config_pb2

from bench.proxy_process import proxy_process
from tidegate.schemas import write_profile
from tidegate.sim.result import ResultRow
from tidegate.workload import PolicyChoice, Scenario
from tidegate_loadtest.connection import Connection
from tidegate_loadtest.emulated import by_kind, write_emulated_model
from tidegate_loadtest.live import SendingOptions
from tidegate_loadtest.processes import serving_command
from tidegate_loadtest.profiler import measure_profiles
from tidegate_loadtest.scenario_run import LiveRun, run_live

WARMUP_S = 2.0
SIZES, SAMPLES = (1, 2, 4, 8), 12


def _model(name: str, slo_ms: float, alpha_ms: float, beta_ms: float, share: float) -> dict[str, Any]:
    times = {"alpha_ms": alpha_ms, "beta_ms": beta_ms, "max_batch": 8}
    return {"name": name, "slo_ms": slo_ms, "share": share, "profile": times}


WORKLOADS: dict[str, tuple[float, list[dict[str, Any]]]] = {
    "two alike": (110, [_model("a", 40, 1, 8, 1), _model("b", 50, 1.5, 10, 1)]),
    "short beside long": (90, [_model("short", 15, 0.5, 3.5, 8), _model("long", 160, 5, 35, 1)]),
    "four": (
        130,
        [
            _model(name, slo, 1, beta, 1)
            for name, slo, beta in (("a", 30, 4), ("b", 40, 7), ("c", 60, 10), ("d", 90, 16))
        ],
    ),
}
"""The rate at load 1, in requests per second, and the models: at load 1 and slowdown 1 they take about all of a GPU."""
ARMS: dict[str, bool | str | None] = {"passed": None, "in turn": True, "side by side": False, "learned": "learned"}
"""Value of `serialize_models` for each arm; None: requests bypass the scheduler."""


@dataclass(frozen=True)
class Measured:
    """One run."""

    workload: str
    slowdown: float
    load: float
    arm: str
    attainment: float
    worst: float
    """Attainment of the model that fares worst."""
    p50_ms: float
    fell_behind: bool


@contextmanager
def _triton(scenario: Scenario, slowdown: float, work: Path) -> Iterator[str]:
    """One Triton with a model of each of the scenario's, one instance each, all on one emulated GPU. Its address."""
    repository = work / "models"
    told = {"board": str(work / "board"), "uses": {"1": [0, 0, 1]}, "minds": [0, 0, slowdown]}
    for model in scenario.models:
        write_emulated_model(repository, scenario, model, by_kind(scenario.workers), seed=1, batching={})
        path = repository / model.name / "config.pbtxt"
        config = text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
        for group in config.instance_group:
            group.ClearField("rate_limiter")
        config.parameters["neighbors"].string_value = json.dumps(told)
        path.write_text(text_format.MessageToString(config))
    ports = [word for name in ("grpc", "http", "metrics") for word in (f"--{name}-port", "0")]
    with serving_command("triton", *ports, str(repository), log=work / "triton.errors") as address:
        yield address


async def _measure(target: str, scenario: Scenario, path: Path) -> None:
    async with Connection(target) as connection:
        for model in scenario.models:
            for profile in await measure_profiles(connection, model.name, SIZES, [{}], samples=SAMPLES):
                write_profile(path, profile)


def measure(
    workload: str, slowdown: float, load: float, seconds: float, arms: Mapping[str, bool | str | None]
) -> list[Measured]:
    """Run one workload, once in each way."""
    rate_rps, models = WORKLOADS[workload]
    scenario = Scenario.model_validate(
        {
            "warmup_s": WARMUP_S,
            "duration_s": seconds,
            "workers": [{"count": 1}],
            "models": models,
            "arrivals": {"rate_rps": rate_rps * load},
        }
    )
    rows = []
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        work = Path(folder)
        with _triton(scenario, slowdown, work) as address:
            profiles = work / "measured.json"
            asyncio.run(_measure(address, scenario, profiles))
            for arm, serialize_models in arms.items():
                scheduling = "bypass" if arm == "passed" else "batched"
                told = {
                    "tritons": [{"grpc": address, "serialize_models": serialize_models}],
                    "listen": "127.0.0.1:0",
                    "profiles": str(profiles),
                    "models": {
                        model.name: {"scheduling": scheduling}
                        | ({} if scheduling == "bypass" else {"slo_ms": model.slo_ms})
                        for model in scenario.models
                    },
                }
                config = work / "tidegate.yaml"
                config.write_text(json.dumps(told))
                with proxy_process(work, "--config", str(config)) as proxy:
                    live = run_live(
                        LiveRun(scenario, PolicyChoice(name="symphony"), 1, SendingOptions({}), target=proxy.grpc)
                    )
                rows.append(_measured(workload, slowdown, load, arm, live.result.rows, live.fell_behind))
    return rows


def _measured(
    workload: str, slowdown: float, load: float, arm: str, rows: list[ResultRow], fell_behind: bool
) -> Measured:
    total = rows[0]
    worst = min(row.attainment for row in rows)
    return Measured(workload, slowdown, load, arm, total.attainment, worst, total.p50_ms or 0.0, fell_behind)


def show(console: Console, rows: list[Measured]) -> None:
    """A line for each workload, slowdown and load."""
    arms_run = dict.fromkeys(row.arm for row in rows)
    table = Table("workload", "slowdown", "load", *(f"{arm}: in time, worst model, p50 ms" for arm in arms_run))
    cases: dict[tuple[str, float, float], dict[str, Measured]] = {}
    for row in rows:
        cases.setdefault((row.workload, row.slowdown, row.load), {})[row.arm] = row
    for (workload, slowdown, load), arms in cases.items():
        cells = [
            f"{row.attainment:.1%}, {row.worst:.1%}, {row.p50_ms:.1f}" + (" [yellow]fell behind[/]" * row.fell_behind)
            for row in arms.values()
        ]
        table.add_row(workload, f"{slowdown:g}", f"{load:g}", *cells)
    console.print(table)


def main() -> None:
    """Run it, write its figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.concurrent_models", description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="measured window of every run")
    parser.add_argument("--slowdown", type=float, nargs="+", default=[0.0, 0.5, 1.0])
    parser.add_argument("--workload", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--load", type=float, nargs="+", default=[0.5, 0.8, 1.1])
    parser.add_argument("--arm", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    console = Console(width=None if os.isatty(1) else 200)
    console.print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} before")
    arms = {arm: ARMS[arm] for arm in arguments.arm}
    rows: list[Measured] = []
    for workload in arguments.workload:
        for slowdown in arguments.slowdown:
            for load in arguments.load:
                rows += measure(workload, slowdown, load, arguments.seconds, arms)
                show(console, rows[-len(arms) :])
    show(console, rows)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
