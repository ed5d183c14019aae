"""Latency and capacity of frontends and shards: a no-op model, directly, through one process, and through both.

    python -m bench.frontends --perf-analyzer PATH [--split 0 1x1 2x1 2x2 ...] [--callers N ...] [--rounds N] [--json
    FILE]

A split is written FRONTENDSxSHARDS. With two shards the first has the model that is called, the second another one.

On two cores shared with Triton and the load generator nothing can be gained: the result is the CPU time of each process
per request, from which the requests/s of one core, and the number of processes for a cluster, follow.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import tritonclient.grpc
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.closed_loop import perf_analyzer
from bench.proxy_process import ProxyProcess, no_op_models, proxy_process
from tidegate_proxy.frontends.supervisor import FRONTEND, SHARD
from tidegate_proxy.tritons.embedded import EmbeddedTriton

CALLERS = (1, 8, 32, 128)
FLOATS = {"64 B": 16, "600 KB": 150_000}
"""Number of FP32 values in the input and the output tensor, by a name for its size."""
ROUNDS, WINDOW_MS = 3, 1500
FLEET_RPS = 100_000
"""Requests/s of the cluster whose number of processes is computed."""


ONE_PROCESS = "0"
SPLITS = (ONE_PROCESS, "1x1", "2x1", "2x2")


class Parts(NamedTuple):
    """Process ids of a Tidegate: frontends and shards."""

    shard: int
    """Process id of the first shard."""
    frontends: tuple[int, ...]


def parts_of(proxy: ProxyProcess, frontends: int) -> Parts:
    """Return the process ids of a Tidegate with this number of frontends; a shard of 0 is being restarted."""
    if not frontends:
        return Parts(proxy.pid, ())
    children = Path(f"/proc/{proxy.pid}/task/{proxy.pid}/children").read_text().split()
    named = [(int(pid), Path(f"/proc/{pid}/comm").read_text().strip()) for pid in children]
    shards = [pid for pid, name in named if name in (SHARD, f"{SHARD}-0")]
    return Parts(shards[0] if shards else 0, tuple(pid for pid, name in named if name == FRONTEND))


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bench_frontends(
    console: Console,
    program: Path,
    splits: Sequence[str] = SPLITS,
    callers: Sequence[int] = CALLERS,
    sizes: Mapping[str, int] = FLOATS,
    rounds: int = ROUNDS,
) -> list[dict[str, Any]]:
    """Measure the splits and print tables; return a row per size, number of callers and split, with medians over
    rounds.

    Args:
        console: where the tables are printed.
        program: path of perf_analyzer.
        splits: numbers of frontends and shards, as FRONTENDSxSHARDS.
        callers: numbers of concurrent callers, measured one after the other.
        sizes: number of FP32 values of a tensor, by its name.
        rounds: number of repetitions, alternating between splits.
    """
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder, ExitStack() as stack:
        work = Path(folder)
        triton = stack.enter_context(EmbeddedTriton([no_op_models(work)]))
        shards = [triton.grpc_address]
        if any(_parted(split)[1] > 1 for split in splits):
            other = no_op_models(work / "other", "other")
            shards.append(stack.enter_context(EmbeddedTriton([other])).grpc_address)
        proxies: dict[str, ProxyProcess] = {}
        for split in splits:
            (work / split).mkdir()
            flags = _flags(work / split, split, shards)
            proxies[split] = stack.enter_context(proxy_process(work / split, *flags))
        progress = stack.enter_context(Progress(console=console, transient=True))
        task = progress.add_task("", total=len(sizes) * len(callers) * rounds * (1 + len(proxies)))
        for size, floats in sizes.items():
            for calling in callers:
                runs: dict[str | None, list[dict[str, float]]] = {which: [] for which in (None, *proxies)}
                for _ in range(rounds):
                    for target, of in runs.items():
                        progress.update(task, description=f"{size}, {calling} callers, {_name(target)}")
                        of.append(_run(triton, program, target, proxies, floats, calling))
                        progress.advance(task)
                found = [_row(target, size, calling, runs) for target in runs]
                _show(console, f"{size}, {calling} callers", found)
                rows += found
    _show_fleet(console, rows)
    return rows


def _parted(split: str) -> tuple[int, int]:
    """How many frontends and shards a split has. Raises ValueError for another text."""
    frontends, _, shards = split.partition("x")
    return int(frontends), int(shards or 1)


def _flags(folder: Path, split: str, tritons: Sequence[str]) -> tuple[str, ...]:
    frontends, shards = _parted(split)
    own = ("--listen", "127.0.0.1:0", "--policy", "fifs", "--frontends", str(frontends))
    if shards == 1:
        return (*own, "--triton", tritons[0])
    file = folder / "tidegate.yaml"
    file.write_text(json.dumps({"shards": [{"tritons": [triton]} for triton in tritons[:shards]]}))
    return (str(file), *own)


def _name(split: str | None) -> str:
    if split is None or split == ONE_PROCESS:
        return "Triton" if split is None else "one process"
    frontends, shards = _parted(split)
    frontend = "1 frontend" if frontends == 1 else f"{frontends} frontends"
    return frontend if shards == 1 else f"{frontend}, {shards} shards"


def _run(
    triton: EmbeddedTriton,
    program: Path,
    split: str | None,
    proxies: Mapping[str, ProxyProcess],
    floats: int,
    callers: int,
) -> dict[str, float]:
    windows = ("--shape", f"INPUT:{floats}", "-p", str(WINDOW_MS), "-r", "3")
    if split is None:
        return {
            **perf_analyzer(program, triton.grpc_address, "noop", callers, *windows),
            "shard_us": 0,
            "frontend_us": 0,
        }
    proxy = proxies[split]
    parts = parts_of(proxy, _parted(split)[0])
    served, shard_s, frontend_s = _served(triton), cpu_s(parts.shard), sum(cpu_s(pid) for pid in parts.frontends)
    figures = perf_analyzer(program, proxy.grpc, "noop", callers, *windows)
    requests = _served(triton) - served
    return {
        **figures,
        "shard_us": (cpu_s(parts.shard) - shard_s) * 1e6 / requests,
        "frontend_us": (sum(cpu_s(pid) for pid in parts.frontends) - frontend_s) * 1e6 / requests,
    }


def _served(triton: EmbeddedTriton) -> int:
    with tritonclient.grpc.InferenceServerClient(triton.grpc_address) as client:
        statistics = client.get_inference_statistics("noop").model_stats
    return sum(int(of.inference_count) for of in statistics)


def _row(
    split: str | None, size: str, callers: int, runs: Mapping[str | None, list[dict[str, float]]]
) -> dict[str, Any]:
    mine, direct = runs[split], runs[None]
    return {
        "target": _name(split),
        "split": split,
        "size": size,
        "callers": callers,
        **{name: median(run[name] for run in mine) for name in ("rps", "p50_ms", "p99_ms", "shard_us", "frontend_us")},
        "p50_added_ms": median(run["p50_ms"] - other["p50_ms"] for run, other in zip(mine, direct, strict=True)),
    }


def _show(console: Console, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    table = Table("", "requests/s", "p50 added, ms", "p99, ms", "shard, us", "frontends, us", title=title)
    for row in rows:
        table.add_row(
            row["target"],
            f"{row['rps']:,.0f}",
            f"{row['p50_added_ms']:+.2f}",
            f"{row['p99_ms']:.2f}",
            f"{row['shard_us']:.0f}" if row["shard_us"] else "",
            f"{row['frontend_us']:.0f}" if row["frontend_us"] else "",
        )
    console.print(table)


def _show_fleet(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """What a core of each part carries, and the cores for a fleet, by size at the most callers."""
    most = max(row["callers"] for row in rows)
    for row in rows:
        if row["callers"] == most and row["frontend_us"]:
            shard, frontend = 1e6 / row["shard_us"], 1e6 / row["frontend_us"]
            console.print(
                f"{row['size']}, {row['target']}: a core carries {shard:,.0f} requests/s as a shard, "
                f"{frontend:,.0f} as a "
                f"frontend; {FLEET_RPS:,} requests/s take {FLEET_RPS / shard:.1f} shards "
                f"and {FLEET_RPS / frontend:.1f} frontends"
            )


def main() -> None:
    """Parse the command line, run the benchmark and write the figures to a file if one is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--perf-analyzer", type=Path, required=True, metavar="PATH", help="NVIDIA's load generator")
    parser.add_argument("--split", nargs="+", default=SPLITS, metavar="FxH", help="into how many frontends and shards")
    parser.add_argument("--callers", type=int, nargs="+", default=CALLERS, metavar="N", help="calling at a time")
    parser.add_argument("--sizes", nargs="+", choices=FLOATS, default=list(FLOATS), help="of the tensors")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each is measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    arguments = parser.parse_args()
    sizes = {name: FLOATS[name] for name in arguments.sizes}
    rows = bench_frontends(
        Console(), arguments.perf_analyzer, arguments.split, arguments.callers, sizes, arguments.rounds
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
