"""Compatibility of perf_analyzer: NVIDIA's client, unmodified, in each of its modes, against Triton and through
Tidegate.

    python -m bench.clients --perf-analyzer PATH [--json FILE]

Fails if perf_analyzer completes directly but not through Tidegate, or if its report through Tidegate is implausible:
the server's count differs from the client's, or the server's times are missing.
"""

import argparse
import csv
import itertools
import json
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.proxy_process import proxy_before
from tidegate_proxy.tritons.embedded import EmbeddedTriton

BATCHED = """
backend: "python"
max_batch_size: 8
input {{ name: "INPUT" data_type: {0} dims: [ 16 ] }}
output {{ name: "OUTPUT" data_type: {0} dims: [ 16 ] }}
"""
MERGED = 'parameters { key: "tidegate_scheduling" value: { string_value: "batched" } }\n'
SEQUENCE = BATCHED.format("TYPE_FP32") + "sequence_batching { direct { } }\n"
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input { name: "INPUT" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 16 ] }
ensemble_scheduling { step { model_name: "floats" model_version: -1
  input_map { key: "INPUT" value: "INPUT" } output_map { key: "OUTPUT" value: "OUTPUT" } } }
"""
DECOUPLED = BATCHED.format("TYPE_FP32") + "model_transaction_policy { decoupled: true }\n"
ECHO = """
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb.InferenceResponse([pb.Tensor("OUTPUT", pb.get_input_tensor_by_name(request, "INPUT").as_numpy())])
            for request in requests
        ]
"""
THREE_TIMES = """
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            tensor = pb.Tensor("OUTPUT", pb.get_input_tensor_by_name(request, "INPUT").as_numpy())
            for _ in range(3):
                sender.send(pb.InferenceResponse([tensor]))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
MODELS = {
    "floats": (BATCHED.format("TYPE_FP32") + MERGED, ECHO),
    "words": (BATCHED.format("TYPE_STRING") + MERGED, ECHO),
    "sequence": (SEQUENCE, ECHO),
    "ensemble": (ENSEMBLE, None),
    "decoupled": (DECOUPLED, THREE_TIMES),
}
MOST_DIFFERENCE = 0.05
"""Maximum relative difference between the client's and the server's count; requests in flight at the ends of a window
cause some.
"""


@dataclass(frozen=True)
class Way:
    """A mode of perf_analyzer: protocol, model and flags."""

    name: str
    model: str
    protocol: str
    flags: tuple[str, ...]


def ways() -> list[Way]:
    """Return all modes to run."""
    found = []
    memory = {"": (), "shared memory": ("--shared-memory", "system", "--output-shared-memory-size", "1024")}
    for protocol, mode, (how, shared) in itertools.product(
        ("grpc", "http"), ("--sync", "--async", "--streaming"), memory.items()
    ):
        if (protocol, mode) != ("http", "--streaming"):
            flags = ("--async", mode) if mode == "--streaming" else (mode,)
            found.append(Way(f"{mode[2:]} {how}".strip(), "floats", protocol, (*flags, *shared)))
    for protocol in ("grpc", "http"):
        found += [
            Way("batch of 4", "floats", protocol, ("-b", "4")),
            Way("strings", "words", protocol, ("--string-length", "20")),
            Way("ensemble", "ensemble", protocol, ()),
            Way("sequences", "sequence", protocol, ("--sequence-length", "5", "--num-of-sequences", "2")),
            Way("request rate", "floats", protocol, ("--request-rate-range", "50")),
            Way("percentile", "floats", protocol, ("--percentile", "95")),
            Way("zeros", "floats", protocol, ("--input-data", "zero")),
        ]
    return [*found, Way("decoupled", "decoupled", "grpc", ("--async", "--streaming"))]


def run(perf_analyzer: Path, way: Way, address: str) -> dict[str, Any]:
    """Run perf_analyzer once and return its report; on a failure it has the key `error`.

    Args:
        perf_analyzer: path of the program.
        way: the mode.
        address: HOST:PORT of the server.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-clients-") as folder:
        report = Path(folder) / "report.csv"
        command = [str(perf_analyzer), "-m", way.model, "-u", address, "-i", way.protocol, "-f", str(report)]
        command += ["--measurement-mode", "count_windows", "--measurement-request-count", "60", "-s", "999", "-r", "3"]
        command += [*way.flags, *(() if "--request-rate-range" in way.flags else ("--concurrency-range", "4"))]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        except subprocess.TimeoutExpired:
            return {"error": "it did not end in two minutes"}
        shown = done.stdout + done.stderr
        if done.returncode or not report.exists():
            return {"error": shown[-600:]}
        (row,) = csv.DictReader(report.read_text().splitlines())
        counts = {side: int(found[-1]) for side, found in _counts(shown).items() if found}
        return {
            "rps": float(row["Inferences/Second"]),
            "p50_us": float(row["p50 latency"]),
            "server_queue_us": float(row.get("Server Queue") or -1),
            "server_infer_us": float(row.get("Server Compute Infer") or -1),
            **counts,
        }


def _counts(shown: str) -> dict[str, list[str]]:
    client, _, server = shown.rpartition("Server:")
    return {
        "client_count": re.findall(r"Request count: (\d+)", client),
        "server_count": re.findall(r"(?:Inference|Request) count: (\d+)", server),
    }


def problem(direct: dict[str, Any], through: dict[str, Any]) -> str:
    """Return what is wrong with the report of a run through Tidegate; empty if nothing, or if the direct run failed as
    well.
    """
    if "error" in direct:
        return ""
    if "error" in through:
        return str(through["error"])
    for time in ("server_queue_us", "server_infer_us"):
        if direct[time] >= 0 and through[time] < 0:
            return f"no {time}"
    if "server_count" in direct and not (through.get("client_count") and through.get("server_count")):
        return "no counts"
    # The server counts rows, the client calls.
    ratios = [
        report["server_count"] / report["client_count"] for report in (direct, through) if "server_count" in report
    ]
    if ratios and abs(ratios[-1] / ratios[0] - 1) > MOST_DIFFERENCE:
        return f"the server counts {ratios[-1]:.2f} for each call of the client, directly {ratios[0]:.2f}"
    return ""


def main() -> None:
    """Run perf_analyzer in all modes and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.clients", description=__doc__.partition("\n")[0])
    parser.add_argument("--perf-analyzer", type=Path, required=True, metavar="PATH", help="NVIDIA's perf_analyzer")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the reports to this file")
    arguments = parser.parse_args()
    console = Console(width=None if os.isatty(1) else 120)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="tidegate-clients-") as work:
        folder = Path(work)
        for name, (config, source) in MODELS.items():
            version = folder / "models" / name / "1"
            version.mkdir(parents=True)
            (version.parent / "config.pbtxt").write_text(config)
            if source:
                (version / "model.py").write_text(source)
        with (
            EmbeddedTriton([folder / "models"]) as triton,
            proxy_before(triton, folder, policy="fifs") as proxy,
            Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
        ):
            addresses = {"grpc": (triton.grpc_address, proxy.grpc), "http": (triton.http_address, proxy.http)}
            for way in progress.track(ways(), description="perf_analyzer"):
                direct, through = (run(arguments.perf_analyzer, way, address) for address in addresses[way.protocol])
                wrong = problem(direct, through)
                rows.append(
                    {"way": way.name, "protocol": way.protocol, "direct": direct, "through": through, "wrong": wrong}
                )
    _show(console, rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")
    raise SystemExit(any(row["wrong"] for row in rows))


def _show(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table("way", "protocol", "direct /s", "through /s", "queue us", "infer us", "client", "server", "judgment")
    for row in rows:
        direct, through = row["direct"], row["through"]
        table.add_row(
            row["way"],
            row["protocol"],
            *(f"{report['rps']:,.0f}" if "rps" in report else "fails" for report in (direct, through)),
            *(f"{through.get(name, -1):.0f}" for name in ("server_queue_us", "server_infer_us")),
            *(str(through.get(name, "")) for name in ("client_count", "server_count")),
            row["wrong"] or ("as directly" if "error" in direct else "well"),
        )
    console.print(table)


if __name__ == "__main__":
    main()
