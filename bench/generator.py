"""The load generators themselves: requests/s that one core of each issues, and how late.

    python -m bench.generator [--rates 1000,2000,3000,4000] [--rounds 3] [--triton] [--json FILE]

Locust (gevent) beside the asyncio sender of `tidegate loadtest`, both bound to the first core; the server has the
others. It is a bare grpc.aio server that answers at once and empty, since a Triton with a no-op model takes the core of
a small machine that it has by itself; `--triton` measures against that. Of the rounds the quietest counts, the one
with the least lateness: other programs on the machine can only make a generator later.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import uvloop
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as pb

from bench.no_op import no_op_models
from tidegate_proxy.tritons.embedded import EmbeddedTriton

RATES = (1000, 2000, 3000, 4000)
ROUNDS = 3
DURATION_S, WARMUP_S = 5.0, 1.0
AIM_RPS, AIM_LATE_MS = 3000, 1.0
FLOATS = 16
SENDERS = ("Locust", "asyncio")


class EmptyTriton(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Knows one model; its answers are serialized once."""

    def __init__(self) -> None:
        config = model_config_pb2.ModelConfig(name="noop", max_batch_size=32)
        config.instance_group.add(count=1)
        metadata = pb.ModelMetadataResponse(name="noop", platform="bench")
        metadata.inputs.add(name="INPUT", datatype="FP32", shape=[-1, FLOATS])
        statistics = pb.ModelStatisticsResponse()
        statistics.model_stats.add(name="noop")
        answers = {
            "ServerLive": pb.ServerLiveResponse(live=True),
            "ModelConfig": pb.ModelConfigResponse(config=config),
            "ModelMetadata": metadata,
            "ModelStatistics": statistics,
            "ModelInfer": pb.ModelInferResponse(model_name="noop"),
        }
        self._answers: dict[str, bytes] = {
            f"/inference.GRPCInferenceService/{call}": a.SerializeToString() for call, a in answers.items()
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Answers without looking at the request."""
        answer = self._answers.get(handler_call_details.method)

        async def answered(request: bytes, context: object) -> bytes:
            assert answer is not None
            return answer

        return None if answer is None else grpc.unary_unary_rpc_method_handler(answered)


async def serve() -> None:
    """Until it is terminated; says where it is."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([EmptyTriton()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


@contextmanager
def empty_triton(cores: set[int]) -> Iterator[str]:
    """The bare server, on these cores."""
    command = ["taskset", "-c", _list(cores), sys.executable, "-m", "bench.generator", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@contextmanager
def no_op_triton(cores: set[int], folder: Path) -> Iterator[str]:
    """The real one, on these cores."""
    models = no_op_models(folder)
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # what it starts inherits them
    try:
        triton = EmbeddedTriton([models]).start()
    finally:
        os.sched_setaffinity(0, own)
    try:
        yield triton.grpc_address
    finally:
        triton.stop()


def run(sender: str, target: str, rate: int, core: int, folder: Path) -> dict[str, Any]:
    """One run; its summary."""
    command = ["taskset", "-c", str(core)]
    options = ["--model", "noop", "--slo-ms", "100", "--shape", f"INPUT:{FLOATS}", "--rate", str(rate)]
    options += ["--duration-s", str(DURATION_S), "--warmup-s", str(WARMUP_S)]
    report = folder / "report.json"
    if sender == "Locust":
        command += [str(Path(sys.executable).parent / "tidegate-locust"), "--headless", "--only-summary"]
        command += ["--host", target, "--results-json", str(report), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        text = report.read_text() if report.exists() else ""
    else:
        command += [sys.executable, "-m", "tidegate_loadtest", "--target", target, "--json", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        text = done.stdout
    if not re.match(r"\s*\{", text):
        raise SystemExit(f"{sender} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    report.unlink(missing_ok=True)
    summary: dict[str, Any] = json.loads(text)["summary"]
    return summary


def bench_generator(
    console: Console, *, rates: tuple[int, ...] = RATES, rounds: int = ROUNDS, triton: bool = False
) -> list[dict[str, Any]]:
    """Run and print; a row per (sender, rate), the quietest round of each."""
    first, *others = sorted(os.sched_getaffinity(0))
    cores = {*others} or {first}
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name,
        no_op_triton(cores, Path(name)) if triton else empty_triton(cores) as target,
        Progress(console=console, transient=True) as progress,
    ):
        task = progress.add_task("", total=rounds * len(rates) * len(SENDERS))
        for _ in range(rounds):
            for rate in rates:
                for sender in SENDERS:
                    progress.update(task, description=f"{sender}, {rate} requests/s")
                    runs.setdefault((sender, rate), []).append(run(sender, target, rate, first, Path(name)))
                    progress.advance(task)
    rows: list[dict[str, Any]] = []
    for sender in SENDERS:
        for rate in rates:
            quietest = min(runs[sender, rate], key=_lateness)
            rows.append({"sender": sender, "rate_rps": rate, "rounds": rounds, **quietest})
    _show(console, rows, "Triton with a no-op model" if triton else "a bare grpc.aio server")
    return rows


def _lateness(summary: dict[str, Any]) -> tuple[float, float]:
    return summary["lateness_p99_ms"], summary["lateness_p50_ms"]


def _list(cores: set[int]) -> str:
    return ",".join(map(str, sorted(cores)))


def _show(console: Console, rows: list[dict[str, Any]], server: str) -> None:
    table = Table(
        "sender", "asked /s", "issued /s", "answered", "late p50 ms", "late p99 ms", "latency p50 ms", "p99 ms",
        title=f"One core of generator, {DURATION_S:g} s, against {server}: the quietest of {rows[0]['rounds']} runs",
    )  # fmt: skip
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(
            row["sender"],
            f"{row['rate_rps']:,}",
            f"{row['offered_rps']:,.0f}",
            f"{row['completed'] / row['issued']:.1%}",
            *(f"{row[name]:.2f}" for name in ("lateness_p50_ms", "lateness_p99_ms", "p50_ms", "p99_ms")),
        )
    console.print(table)
    for row in rows:
        if row["sender"] == "Locust" and row["rate_rps"] >= AIM_RPS and not row["lateness_p50_ms"] < AIM_LATE_MS:
            console.print(f"[bold red]Locust is late at {row['rate_rps']} requests/s[/]: something else runs here?")


def main() -> None:
    """Run it alone."""
    parser = argparse.ArgumentParser(prog="python -m bench.generator", description=__doc__.partition("\n")[0])
    parser.add_argument("--rates", default=",".join(map(str, RATES)), help="requests per second, with commas")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--triton", action="store_true", help="against a Triton with a no-op model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        uvloop.run(serve())
        return
    console = Console(width=None if os.isatty(1) else 120)
    rates = tuple(int(rate) for rate in arguments.rates.split(","))
    rows = bench_generator(console, rates=rates, rounds=arguments.rounds, triton=arguments.triton)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
