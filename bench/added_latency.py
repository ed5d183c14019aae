"""Latency that Tidegate adds: a no-op model on the same Triton, called directly and through Tidegate, in alternating
runs.

One caller measures the added latency. More callers measure the throughput, and the CPU time and context switches of the
Tidegate process per request. The load generator is ours, in Python, which takes a large share of a small machine, or
NVIDIA's perf_analyzer (`--perf-analyzer PATH`), which takes less. `--against PATH` also measures the `tidegate` of
another checkout. Relays in C are measured beside them where they are installed (nginx, HAProxy, nghttpx). To profile
the CPU time: `py-spy record --native --subprocesses --pid PID` during a run.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import tritonclient.grpc
import trustme
from rich.console import Console
from rich.progress import Progress

from bench.closed_loop import closed_loop, perf_analyzer
from bench.common import print_table
from bench.proxy_process import ProxyProcess, no_op_models, proxy_process
from bench.relays import Relay, relays_before
from demo.processes import TIDEGATE
from tidegate_proxy.tritons.embedded import EmbeddedTriton

ROUNDS, DIRECT = 5, "Triton"
DURATION_S, WARMUP_S = 3.0, 1.0
CALLERS = (1, 8, 32, 128)
FLOATS = {"64 B": 16, "600 KB": 150_000}
"""Number of FP32 values in the input and the output tensor, by a name for its size."""
Figures = dict[str, float]
Load = Callable[[str, int, int, Sequence[str]], Figures]
"""`load(address, floats, callers, flags)`: requests/s, and the 50th and 99th percentile of the latency in ms."""


class Target(NamedTuple):
    """A server to call, with its process and flags."""

    proxy: ProxyProcess | Relay | None
    """The process that is called; None if Triton is called directly."""
    flags: Sequence[str] = ()
    """Further flags of perf_analyzer."""


OURS = {
    "fifs": ("--policy", "fifs"),
    "symphony": ("--policy", "symphony"),
}
"""Flags of `tidegate serve` for each Tidegate measured, by its name in the table."""
GZIP = ("--grpc-compression-algorithm", "gzip")
"""Flags of perf_analyzer for compressed calls."""


def bench_added_latency(
    console: Console,
    program: Path | None = None,
    against: Path | None = None,
    callers: tuple[int, ...] = CALLERS,
    sizes: Mapping[str, int] = FLOATS,
    rounds: int = ROUNDS,
) -> list[dict[str, Any]]:
    """Measure the added latency and print it; return a row per target, size and number of callers, with medians over
    rounds.

    `program`: path of perf_analyzer; None: our load generator. With it compressed and encrypted calls are timed too;
    `against`: path of another checkout's `tidegate`, measured with the policy `fifs`; `callers`: numbers of concurrent
    callers, measured one after the other; `sizes`: number of FP32 values of a tensor, by its name; `rounds`: number of
    repetitions, alternating between targets.
    """
    load: Load = partial(_perf_analyzer_load, program) if program else _own_load
    commands = {f"Tidegate {name}": (TIDEGATE, flags) for name, flags in OURS.items()}
    if against:
        commands["other fifs"] = (str(against), ("--policy", "fifs"))
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder, ExitStack() as stack:
        work = Path(folder)
        triton = stack.enter_context(EmbeddedTriton([no_op_models(work)]))

        def start(name: str, command: str, *flags: str) -> ProxyProcess:
            (work / name).mkdir()
            given = ("--triton", triton.grpc_address, "--listen", "127.0.0.1:0", *flags)
            return stack.enter_context(proxy_process(work / name, *given, tidegate=command))

        targets = {DIRECT: Target(None)}
        for name, (command, flags) in commands.items():
            targets[name] = Target(start(name, command, *flags))
        for name, relay in stack.enter_context(relays_before(triton.grpc_address, work, console)).items():
            targets[name] = Target(relay)
        rows = _rows(console, triton, targets, load, callers, sizes, rounds)
        if program:
            authority, config = _encrypted(work)
            encrypted = start("Tidegate TLS", TIDEGATE, "--policy", "fifs", "--config", str(config))
            tls = ("--ssl-grpc-use-ssl", "--ssl-grpc-root-certifications-file", str(authority))
            compressed = {
                DIRECT: Target(None),
                "Tidegate": targets["Tidegate fifs"],
                "Triton gzip": Target(None, GZIP),
                "Tidegate gzip": Target(targets["Tidegate fifs"].proxy, GZIP),
                "Tidegate TLS": Target(encrypted, tls),
            }
            rows += _rows(console, triton, compressed, load, callers, sizes, rounds)
    return rows


def _encrypted(folder: Path) -> tuple[Path, Path]:
    """A certificate authority, and a configuration with a certificate of it for this machine."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    config = folder / "tls.yaml"
    config.write_text(f"tls: {{cert: {folder / 'server.pem'}, key: {folder / 'server.pem'}}}\n")
    return folder / "ca.pem", config


def _rows(
    console: Console,
    triton: EmbeddedTriton,
    targets: Mapping[str, Target],
    load: Load,
    callers: tuple[int, ...],
    sizes: Mapping[str, int],
    rounds: int,
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=rounds * len(callers) * len(sizes) * len(targets))
        for size, floats in sizes.items():
            for number in callers:
                runs: dict[str, list[Figures]] = {name: [] for name in targets}
                for _ in range(rounds):
                    for name, target in targets.items():
                        progress.update(task, description=f"{name}, {size}, {number} callers")
                        runs[name].append(measure_run(triton, target, load, floats, number))
                        progress.advance(task)
                own = {"size": size, "callers": number}
                compared = [{"target": name, **own, **medians_of(runs, name)} for name in runs]
                _show(console, f"{size}, {number} callers", compared)  # at once: all of them take half an hour
                rows += compared
    return rows


def measure_run(triton: EmbeddedTriton, target: Target, load: Load, floats: int, callers: int) -> Figures:
    """Load a target once; return its figures and what a request cost its process: `cpu_us`, `switches`."""
    proxy = target.proxy
    if proxy is None:
        return {**load(triton.grpc_address, floats, callers, target.flags), "cpu_us": 0.0, "switches": 0.0}
    served, (cpu_s, switches) = _served(triton), proxy.spent()
    figures = load(proxy.grpc, floats, callers, target.flags)
    requests, (cpu_s_after, switches_after) = _served(triton) - served, proxy.spent()
    return {
        **figures,
        "cpu_us": (cpu_s_after - cpu_s) * 1e6 / requests,
        "switches": (switches_after - switches) / requests,
    }


def _served(triton: EmbeddedTriton) -> int:
    """The rows that the Triton has served so far, which are requests here."""
    with tritonclient.grpc.InferenceServerClient(triton.grpc_address) as client:
        statistics = client.get_inference_statistics("noop").model_stats
    return sum(int(of.inference_count) for of in statistics)


def _own_load(address: str, floats: int, callers: int, _flags: Sequence[str]) -> Figures:
    return closed_loop(address, "noop", callers, DURATION_S, f"INPUT:{floats}", warmup_s=WARMUP_S)


def _perf_analyzer_load(program: Path, address: str, floats: int, callers: int, flags: Sequence[str]) -> Figures:
    windows = ("-p", str(round(DURATION_S * 500)), "-r", "3")  # two after one to warm up
    return perf_analyzer(program, address, "noop", callers, "--shape", f"INPUT:{floats}", *windows, *flags)


def medians_of(runs: Mapping[str, list[Figures]], target: str) -> Figures:
    """Return a target's medians over rounds, and those of its throughput and latency relative to Triton's."""
    mine, direct = runs[target], runs[DIRECT]
    pairs = list(zip(mine, direct, strict=True))
    return {
        **{name: median(run[name] for run in mine) for name in mine[0]},
        "rps_of_direct": median(run["rps"] / other["rps"] for run, other in pairs),
        "p50_added_ms": median(run["p50_ms"] - other["p50_ms"] for run, other in pairs),
    }


def _show(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    columns = ("target", "requests/s", "of direct", "p50 ms", "added ms", "p99 ms", "CPU us", "switches")
    cells = [
        (
            row["target"],
            f"{row['rps']:,.0f}",
            f"{row['rps_of_direct']:.2f}",
            f"{row['p50_ms']:.2f}",
            f"{row['p50_added_ms']:+.2f}",
            f"{row['p99_ms']:.2f}",
            f"{row['cpu_us']:.0f}" if row["cpu_us"] else "",
            f"{row['switches']:.1f}" if row["cpu_us"] else "",
        )
        for row in rows
    ]
    print_table(console, f"A no-op model over gRPC, {title}: medians of interleaved runs", columns, cells)
