"""GPU idle time at saturation: emulated GPUs behind Triton's batcher and behind Tidegate, alternating.

As many closed-loop callers as fill four batches. The GPU takes 2 ms for every batch, or 3 to 5 or 10 to 18 ms by its
rows. A further model, which Triton does not batch, has eight callers. The load generator is ours, or NVIDIA's
perf_analyzer (`--perf-analyzer PATH`), which takes less of a small machine.
"""

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tritonclient.grpc
from rich.console import Console
from rich.progress import Progress

from bench.added_latency import DIRECT, ROUNDS, Figures, medians_of
from bench.closed_loop import closed_loop, perf_analyzer
from bench.common import print_table
from bench.proxy_process import proxy_process
from demo.emulated import write_models
from demo.processes import TIDEGATE
from tidegate_proxy.tritons.embedded import EmbeddedTriton

DURATION_S, WARMUP_S = 3.0, 2.0
LOOK_AFTER_S, LOOK_FOR_S = 2.5, 2.0
"""Seconds until a run is steady, and its minimum length after that."""
MAX_BATCH = 4
CASES = {
    "gpu_2ms": ("2 ms", {"alpha_ms": 0.0, "beta_ms": 2.0}, "batched", 4 * MAX_BATCH),
    "gpu_3to5ms": ("3 to 5 ms", {"alpha_ms": 2 / 3, "beta_ms": 7 / 3}, "batched", 4 * MAX_BATCH),
    "gpu_10to18ms": ("10 to 18 ms", {"alpha_ms": 8 / 3, "beta_ms": 22 / 3}, "batched", 4 * MAX_BATCH),
    "gpu_alone": ("2 ms, run alone", {"alpha_ms": 0.0, "beta_ms": 2.0}, "unbatched", 8),
}
"""By model: name in the table, latency of a batch, how it is scheduled, and number of callers."""
AIM = 0.99
TARGETS = {"Tidegate fifs": "fifs", "Tidegate symphony": "symphony"}


def bench_saturation(
    console: Console,
    program: Path | None = None,
    against: Path | None = None,
    *,
    flags: tuple[str, ...] = (),
    rounds: int = ROUNDS,
) -> list[dict[str, Any]]:
    """Measure the models and print them; return a row per model and target, with medians over rounds.

    `program`: path of perf_analyzer; None: our load generator; `against`: path of another checkout's `tidegate`,
    measured with the policy `fifs`; `flags`: further flags of `tidegate serve`; `rounds`: number of repetitions,
    alternating between targets.
    """
    commands = {name: (TIDEGATE, ("--policy", policy, *flags)) for name, policy in TARGETS.items()}
    if against:
        commands["other fifs"] = (str(against), ("--policy", "fifs"))
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder, ExitStack() as stack:
        work = Path(folder)
        models = [
            {"name": model, "profile": {**latency, "max_batch": MAX_BATCH}, "scheduling": scheduling}
            for model, (_, latency, scheduling, _) in CASES.items()
        ]
        write_models(work / "models", models, {})
        triton = stack.enter_context(EmbeddedTriton([work / "models"]))
        addresses = {DIRECT: triton.grpc_address}
        for name, (command, own) in commands.items():
            (work / name).mkdir()
            given = ("--triton", triton.grpc_address, "--listen", "127.0.0.1:0", *own)
            process = stack.enter_context(proxy_process(work / name, *given, tidegate=command))
            addresses[name] = process.grpc
        rows: list[dict[str, Any]] = []
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("", total=len(CASES) * rounds * len(addresses))
            for model, (title, _, _, callers) in CASES.items():
                runs: dict[str, list[Figures]] = {name: [] for name in addresses}
                for _ in range(rounds):
                    for name, address in addresses.items():
                        progress.update(task, description=f"{name}, {title}")
                        runs[name].append(_run(program, triton, address, model, callers))
                        progress.advance(task)
                facts = {"model": title, "callers": callers}
                of_model = [{"target": name, **facts, **medians_of(runs, name)} for name in runs]
                _show(console, title, of_model)  # at once: all of them take a quarter of an hour
                rows += of_model
    return rows


def _run(program: Path | None, triton: EmbeddedTriton, address: str, model: str, callers: int) -> Figures:
    """One run, with the share of the time in which the GPU was busy, from within it."""
    with ThreadPoolExecutor(1) as beside:
        load = beside.submit(_load, program, address, model, callers)
        time.sleep(LOOK_AFTER_S)
        before, before_ns = _busy_ns(triton, model), time.monotonic_ns()
        time.sleep(LOOK_FOR_S)
        after, after_ns = _busy_ns(triton, model), time.monotonic_ns()
        return {**load.result(), "busy": (after - before) / (after_ns - before_ns)}


def _busy_ns(triton: EmbeddedTriton, model: str) -> int:
    """How long the model's executions have taken so far."""
    with tritonclient.grpc.InferenceServerClient(triton.grpc_address) as client:
        (statistics,) = client.get_inference_statistics(model).model_stats
    steps = [
        step
        for batch in statistics.batch_stats
        for step in (batch.compute_input, batch.compute_infer, batch.compute_output)
    ]
    return sum(int(step.ns) for step in steps)


def _load(program: Path | None, address: str, model: str, callers: int) -> Figures:
    if program is None:
        return closed_loop(address, model, callers, DURATION_S, warmup_s=WARMUP_S)
    windows = ("-p", str(round(DURATION_S * 500)), "-r", "4")  # two after two to warm up
    return perf_analyzer(program, address, model, callers, *windows)


def _show(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    columns = ("target", "callers", "requests/s", "of direct", "p50 ms", "added ms", "p99 ms", "busy")
    cells = [
        (
            row["target"],
            row["callers"],
            f"{row['rps']:,.0f}",
            f"{row['rps_of_direct']:.3f}",
            f"{row['p50_ms']:.2f}",
            f"{row['p50_added_ms']:+.2f}",
            f"{row['p99_ms']:.2f}",
            f"{row['busy']:.1%}",
        )
        for row in rows
    ]
    print_table(console, f"Saturated, a batch takes {title}: medians of interleaved runs", columns, cells)
    for row in rows:
        if row["target"] != DIRECT and row["rps_of_direct"] < AIM:
            console.print(f"Missed {AIM:g}: {row['target']}: {row['rps_of_direct']:.3f} of direct")
