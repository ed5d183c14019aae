"""A run of NVIDIA's perf_analyzer and its figures."""

import csv
import subprocess
import tempfile
from pathlib import Path


def perf_analyzer(path: Path, address: str, model: str, callers: int, *flags: str) -> dict[str, float]:
    """Run perf_analyzer over gRPC; return requests per second (`rps`) and latencies in ms (`p50_ms`, `p99_ms`).

    The figures are those of the last window.

    Args:
        path: the program.
        address: HOST:PORT of the server.
        model: the model to call.
        callers: number of concurrent calls.
        flags: further flags, such as windows and shapes.
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
