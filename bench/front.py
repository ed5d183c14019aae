"""The hop: a no-op model on the same Triton, directly and through Tidegate, the runs in turn (A B A B).

One caller gives the latency that Tidegate adds; more of them tell how many requests per second pass.
The load comes from our own generator, in Python, which takes a good part of a small machine; or from NVIDIA's
perf_analyzer (`--perf-analyzer PATH`), which takes less and leaves more to measure.
"""

import csv
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from demo.processes import run_load, tidegate_serve
from tidegate_proxy.embedded import EmbeddedTriton

ROUNDS = 3
DURATION_S, WARMUP_S = 3.0, 1.0
CALLERS = (1, 8, 32, 128)
FLOATS = {"64 B": 16, "600 KB": 150_000}
"""Tensors in and out, by their size."""
NO_OP_CONFIG = """
name: "noop"
backend: "python"
max_batch_size: 32
input { name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] }
instance_group { count: 2 kind: KIND_CPU }
parameters { key: "tidegate_batch" value: { string_value: "merge" } }
"""
NO_OP_MODEL = """
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb.InferenceResponse([pb.Tensor("OUTPUT", pb.get_input_tensor_by_name(request, "INPUT").as_numpy())])
            for request in requests
        ]
"""
Figures = dict[str, float]
Load = Callable[[str, int, int], Figures]
"""`load(address, floats, callers)`: requests/s, and the 50th and 99th percentile of their latency in ms."""


def bench_front(console: Console, perf_analyzer: Path | None = None) -> list[dict[str, Any]]:
    """Run and print; a row per (target, size, callers) with the medians over the rounds."""
    load: Load = _own_load
    if perf_analyzer:
        load = partial(_perf_analyzer_load, perf_analyzer)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        work = Path(folder)
        version = work / "models" / "noop" / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(NO_OP_CONFIG)
        (version / "model.py").write_text(NO_OP_MODEL)
        with EmbeddedTriton([work / "models"]) as triton:
            serve = ("--triton", triton.grpc_address, "--policy")
            with (
                tidegate_serve(*serve, "fifs", log=work / "fifs.log") as fifs,
                tidegate_serve(*serve, "symphony", log=work / "symphony.log") as symphony,
            ):
                targets = {"Triton": triton.grpc_address, "Tidegate fifs": fifs, "Tidegate symphony": symphony}
                runs = _runs(console, targets, load)
    rows = [_row(target, size, callers, runs) for target, size, callers in runs]
    _show(console, rows)
    return rows


Runs = dict[tuple[str, str, int], list[Figures]]


def _runs(console: Console, targets: dict[str, str], load: Load) -> Runs:
    runs: Runs = {}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=ROUNDS * len(CALLERS) * len(FLOATS) * len(targets))
        for size, floats in FLOATS.items():
            for callers in CALLERS:
                for _ in range(ROUNDS):
                    for target, address in targets.items():
                        progress.update(task, description=f"{target}, {size}, {callers} callers")
                        runs.setdefault((target, size, callers), []).append(load(address, floats, callers))
                        progress.advance(task)
    return runs


def _own_load(address: str, floats: int, callers: int) -> Figures:
    report = run_load(
        address,
        "noop",
        concurrency=callers,
        duration_s=DURATION_S,
        warmup_s=WARMUP_S,
        slo_ms=1000,
        shape=f"INPUT:{floats}",
    )
    summary = report["summary"]
    return {"rps": summary["throughput_rps"], "p50_ms": summary["p50_ms"], "p99_ms": summary["p99_ms"]}


def _perf_analyzer_load(perf_analyzer: Path, address: str, floats: int, callers: int) -> Figures:
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        report = Path(folder) / "report.csv"
        command = [str(perf_analyzer), "-m", "noop", "-u", address, "-i", "grpc", "--async"]
        command += ["--shape", f"INPUT:{floats}", "--concurrency-range", str(callers), "-f", str(report)]
        command += ["-p", str(round(DURATION_S * 500)), "-s", "999", "-r", "3"]  # two windows after one to warm up
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if not report.exists():
            raise SystemExit(f"perf_analyzer failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        (row,) = csv.DictReader(report.read_text().splitlines())
    us = {name: float(row[f"{name} latency"]) for name in ("p50", "p99")}
    return {"rps": float(row["Inferences/Second"]), "p50_ms": us["p50"] / 1000, "p99_ms": us["p99"] / 1000}


def _row(target: str, size: str, callers: int, runs: Runs) -> dict[str, Any]:
    mine, direct = runs[target, size, callers], runs["Triton", size, callers]
    pairs = list(zip(mine, direct, strict=True))
    return {
        "target": target,
        "size": size,
        "callers": callers,
        **{name: median(run[name] for run in mine) for name in ("rps", "p50_ms", "p99_ms")},
        "rps_of_direct": median(run["rps"] / other["rps"] for run, other in pairs),
        "p50_added_ms": median(run["p50_ms"] - other["p50_ms"] for run, other in pairs),
    }


def _show(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table(
        "target", "tensor", "callers", "requests/s", "of direct", "p50 ms", "added ms", "p99 ms",
        title=f"A no-op model over gRPC: medians of {ROUNDS} runs in turn, {DURATION_S:g} s each",
    )  # fmt: skip
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(
            row["target"],
            row["size"],
            str(row["callers"]),
            f"{row['rps']:,.0f}",
            f"{row['rps_of_direct']:.0%}",
            f"{row['p50_ms']:.2f}",
            f"{row['p50_added_ms']:+.2f}",
            f"{row['p99_ms']:.2f}",
        )
    console.print(table)
