"""A closed-loop load generator in a process of its own: callers of one model, each sending again after its response.

A separate interpreter keeps its load out of the benchmark and the server: `closed_loop` starts `python -m
bench.closed_loop`. `perf_analyzer` runs NVIDIA's in its place.
"""

import argparse
import asyncio
import csv
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import uvloop

from tidegate_loadtest.connection import Connection
from tidegate_loadtest.model_inputs import RandomRequests
from tidegate_loadtest.shapes import parse_shapes


def closed_loop(
    target: str, model: str, callers: int, duration_s: float, *shapes: str, warmup_s: float
) -> dict[str, float]:
    """Run a closed loop; return responses per second (`rps`) and latencies in ms (`p50_ms`, `p99_ms`).

    `target`: HOST:PORT of the server's gRPC; `model`: the model to call, with random tensors; `callers`: number of
    concurrent callers; `duration_s`: measured window, seconds; `shapes`: shapes of the inputs, as perf_analyzer takes
    them; `warmup_s`: seconds before the window.
    """
    command = [sys.executable, "-m", "bench.closed_loop", target, model, *shapes]
    numbers = {"--callers": callers, "--seconds": duration_s, "--warmup": warmup_s}
    flags = [str(word) for pair in numbers.items() for word in pair]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the load generator failed:\n{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


async def _run(options: argparse.Namespace) -> dict[str, float]:
    latencies_s: list[float] = []
    ended_s: list[float] = []
    async with Connection(options.target) as connection:
        request_of = await RandomRequests.for_model(
            connection, options.model, rows=1, shapes=parse_shapes(options.shape), seed=0
        )
        (stub,) = connection.stubs
        gc.collect()
        gc.freeze()
        begin_s = time.monotonic() + options.warmup
        end_s = begin_s + options.seconds

        async def call(next_number: Callable[[], int]) -> None:
            while (issued_s := time.monotonic()) < end_s:
                await stub.ModelInfer(request_of(next_number()))
                if issued_s >= begin_s:
                    ended_s.append(now_s := time.monotonic())
                    latencies_s.append(now_s - issued_s)

        numbers = iter(range(sys.maxsize))
        await asyncio.gather(*(call(numbers.__next__) for _ in range(options.callers)))
    p50_ms, p99_ms = (1e3 * np.percentile(latencies_s, [50, 99])).tolist()
    rps = sum(at_s <= end_s for at_s in ended_s) / options.seconds
    return {"rps": rps, "p50_ms": p50_ms, "p99_ms": p99_ms}


def main() -> None:
    """Run the closed loop and print the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.closed_loop", description=__doc__.partition("\n")[0])
    parser.add_argument("target", help="HOST:PORT of the server's gRPC")
    parser.add_argument("model")
    parser.add_argument("shape", nargs="*", help="NAME:3,48,320: an input's dimensions without rows")
    parser.add_argument("--callers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds before, not counted")
    print(json.dumps(uvloop.run(_run(parser.parse_args()))))


def perf_analyzer(path: Path, address: str, model: str, callers: int, *flags: str) -> dict[str, float]:
    """Run perf_analyzer over gRPC; return requests per second (`rps`) and latencies in ms (`p50_ms`, `p99_ms`).

    The figures are those of the last window.

    `path`: the program; `address`: HOST:PORT of the server; `model`: the model to call; `callers`: number of concurrent
    calls; `flags`: further flags, such as windows and shapes.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        report = Path(folder) / "report.csv"
        command = [str(path), "-m", model, "-u", address, "-i", "grpc", "--async", "-s", "999", "-f", str(report)]
        command += ["--concurrency-range", str(callers), *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if not report.exists():
            raise SystemExit(f"perf_analyzer failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        (row,) = csv.DictReader(report.read_text().splitlines())
    us = {name: float(row[f"{name} latency"]) for name in ("p50", "p99")}
    return {"rps": float(row["Inferences/Second"]), "p50_ms": us["p50"] / 1000, "p99_ms": us["p99"] / 1000}


if __name__ == "__main__":
    main()
