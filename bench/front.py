"""The hop: a no-op model on the same Triton, directly and through Tidegate, the runs in turn (A B A B).

One caller gives the latency that Tidegate adds; 32 callers give how many requests per second pass.
"""

import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from demo.processes import run_load, tidegate_serve
from tidegate_proxy.embedded import EmbeddedTriton

ROUNDS = 5
DURATION_S, WARMUP_S = 4.0, 1.0
CALLERS = (1, 32)
NO_OP_CONFIG = """
name: "noop"
backend: "python"
max_batch_size: 32
input { name: "INPUT" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 16 ] }
instance_group { count: 2 kind: KIND_CPU }
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


def bench_front(console: Console) -> list[dict[str, Any]]:
    """Run and print; a row per (target, callers) with the medians over the rounds."""
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
                runs = _runs(console, targets)
    rows = [_row(target, callers, runs[target, callers], runs["Triton", callers]) for target, callers in runs]
    _show(console, rows)
    return rows


def _runs(console: Console, targets: dict[str, str]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=ROUNDS * len(CALLERS) * len(targets))
        for callers in CALLERS:
            for _ in range(ROUNDS):
                for target, address in targets.items():
                    progress.update(task, description=f"{target}, {callers} callers")
                    runs.setdefault((target, callers), []).append(_closed_loop(address, callers))
                    progress.advance(task)
    return runs


def _closed_loop(address: str, callers: int) -> dict[str, Any]:
    report = run_load(address, "noop", concurrency=callers, duration_s=DURATION_S, warmup_s=WARMUP_S, slo_ms=1000)
    return {**report["summary"], "mean_rows": report["server"]["mean_rows"]}


def _row(target: str, callers: int, runs: list[dict[str, Any]], direct: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "target": target,
        "callers": callers,
        "rps": median(run["throughput_rps"] for run in runs),
        "rps_of_direct": median(
            run["throughput_rps"] / other["throughput_rps"] for run, other in zip(runs, direct, strict=True)
        ),
        "p50_ms": median(run["p50_ms"] for run in runs),
        "p99_ms": median(run["p99_ms"] for run in runs),
        "p50_added_ms": median(run["p50_ms"] - other["p50_ms"] for run, other in zip(runs, direct, strict=True)),
        "mean_rows": median(run["mean_rows"] for run in runs),
    }


def _show(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table(
        "target", "callers", "requests/s", "of direct", "p50 ms", "added ms", "p99 ms", "mean batch",
        title=f"A no-op model, 16 floats: medians of {ROUNDS} runs in turn, {DURATION_S:g} s each",
    )  # fmt: skip
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(
            row["target"],
            str(row["callers"]),
            f"{row['rps']:,.0f}",
            f"{row['rps_of_direct']:.0%}",
            f"{row['p50_ms']:.2f}",
            f"{row['p50_added_ms']:+.2f}",
            f"{row['p99_ms']:.2f}",
            f"{row['mean_rows']:.1f}",
        )
    console.print(table)
