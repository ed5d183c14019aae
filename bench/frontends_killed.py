"""Frontends and their shard are killed under load, one after the other: what clients see of it, and for how long.

    python -m bench.frontends_killed [--seconds S] [--every S] [--frontends N] [--rate RPS] [--json FILE]

An emulated GPU takes 5 ms for a batch of up to eight; requests come at random, at a fixed rate, over several
connections, and clients do not retry. SIGKILL to a frontend, the shard, the other frontend, the shard, ...: it fails
where a request has no end, or ends in any other way than with its answer or UNAVAILABLE.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import grpc
import uvloop
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from tritonclient.grpc import service_pb2

from bench.frontends import parts_of
from bench.proxy_process import ProxyProcess, proxy_process
from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_triton_models import model_source

INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
CHANNELS, WITHIN_S = 16, 10.0
CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "alpha_ms" value: { string_value: "0" } }
parameters { key: "beta_ms" value: { string_value: "5" } }
parameters { key: "tidegate_scheduling" value: { string_value: "batched" } }
"""


@dataclass
class Findings:
    """What came of it."""

    ends: Counter[str] = field(default_factory=Counter)
    """By status."""
    recovered_s: dict[str, list[float]] = field(default_factory=lambda: {"frontend": [], "shard": []})
    """After each kill: until the last request failed before the next one."""
    failed: dict[str, list[int]] = field(default_factory=lambda: {"frontend": [], "shard": []})
    """How many failed for each kill."""
    unfinished: int = 0
    """Requests without an end."""

    def figures(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "ends": dict(self.ends), "recovered_s": self.recovered_s, "failed": self.failed,
            "unfinished": self.unfinished,
        }  # fmt: skip


def models(folder: Path) -> Path:
    """A repository with the emulated GPU's model."""
    version = folder / "models" / "gpu" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(model_source("emulated_gpu").read_text())
    (version.parent / "config.pbtxt").write_text(CONFIG)
    return folder / "models"


async def under_load(proxy: ProxyProcess, frontends: int, seconds: float, every_s: float, rate: float) -> Findings:
    """Send and kill; what came of it."""
    findings, rng = Findings(), random.Random(1)
    request = service_pb2.ModelInferRequest(model_name="gpu", raw_input_contents=[b"\0\0\0\0"])
    request.inputs.add(name="INPUT", datatype="FP32", shape=[1, 1])
    message = request.SerializeToString()
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 200)]
    channels = [grpc.aio.insecure_channel(proxy.grpc, options) for _ in range(CHANNELS)]
    calls = [channel.unary_unary(INFER) for channel in channels]
    failed_s: list[float] = []
    """When requests failed."""

    async def ask(number: int) -> None:
        try:
            await calls[number % CHANNELS](message, timeout=WITHIN_S)
            status = "OK"
        except grpc.aio.AioRpcError as error:
            status = error.code().name
            failed_s.append(time.monotonic())
        findings.ends[status] += 1

    kills: list[tuple[float, str]] = []

    async def kill() -> None:
        turn = 0
        while True:
            await asyncio.sleep(every_s)
            parts = parts_of(proxy, frontends)
            victim, kind = (
                (parts.shard, "shard") if turn % 2 else (parts.frontends[turn // 2 % len(parts.frontends)], "frontend")
            )
            turn += 1
            if not victim:
                continue
            kills.append((time.monotonic(), kind))
            os.kill(victim, signal.SIGKILL)

    killing = asyncio.create_task(kill())
    tasks: set[asyncio.Task[None]] = set()
    began_s, number, due_s = time.monotonic(), 0, 0.0
    while due_s < seconds:
        due_s += rng.expovariate(rate)
        if (wait_s := began_s + due_s - time.monotonic()) > 0:
            await asyncio.sleep(wait_s)
        task = asyncio.create_task(ask(number))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        number += 1
    killing.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=2 * WITHIN_S)
    findings.unfinished = number - sum(findings.ends.values())
    for (at_s, kind), (until_s, _) in zip(kills, [*kills[1:], (float("inf"), "")], strict=True):
        after_s = [failed - at_s for failed in failed_s if at_s <= failed < until_s]
        findings.failed[kind].append(len(after_s))
        findings.recovered_s[kind].append(max(after_s, default=0.0))
    for channel in channels:
        await channel.close()
    return findings


def main() -> None:
    """Parse the command line, run, and show it; exit status 1 where something ended otherwise than it may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--every", type=float, default=10.0, metavar="S", help="between two kills")
    parser.add_argument("--frontends", type=int, default=2)
    parser.add_argument("--rate", type=float, default=200.0, metavar="RPS")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    arguments = parser.parse_args()
    console = Console()
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder,
        EmbeddedTriton([models(Path(folder))]) as triton,
    ):
        flags = ("--triton", triton.grpc_address, "--listen", "127.0.0.1:0", "--frontends", str(arguments.frontends))
        with proxy_process(Path(folder), *flags) as proxy, Progress(console=console, transient=True) as progress:
            progress.add_task(f"{arguments.seconds:g} s of kills", total=None)
            work = under_load(proxy, arguments.frontends, arguments.seconds, arguments.every, arguments.rate)
            findings = uvloop.run(work)
    table = Table("killed", "times", "requests failed, median", "most", "until the last of them, s, median", "longest")
    for kind in ("frontend", "shard"):
        failed, recovered = findings.failed[kind], findings.recovered_s[kind]
        if failed:
            table.add_row(
                kind, str(len(failed)), f"{median(failed):.0f}", str(max(failed)), f"{median(recovered):.2f}",
                f"{max(recovered):.2f}",
            )  # fmt: skip
    console.print(table, f"ends: {dict(findings.ends)}; without an end: {findings.unfinished}")
    if arguments.json:
        arguments.json.write_text(json.dumps(findings.figures(), indent=2))
    sys.exit(bool(findings.unfinished or set(findings.ends) - {"OK", "UNAVAILABLE"}))


if __name__ == "__main__":
    main()
