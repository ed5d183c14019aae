"""NVIDIA's own load generator: one run, and what it says of it."""

import csv
import subprocess
import tempfile
from pathlib import Path


def perf_analyzer(path: Path, address: str, model: str, callers: int, *flags: str) -> dict[str, float]:
    """The last window of a run over gRPC: requests per second as rps, and latencies in ms as p50_ms and p99_ms.

    Args:
        path: the program.
        address: HOST:PORT of whom it calls.
        model: the model that it asks for.
        callers: how many calls are under way at a time.
        flags: further ones, such as the windows and the shapes.
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
