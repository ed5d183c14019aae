"""Where the hop's CPU time goes: a live Tidegate under perf_analyzer, sampled by py-spy, native frames with Python's.

Of each load a flame graph is drawn, and the share of each part of the program is told. Shares hold on a busy machine;
rates and latencies would not, and are not told.
"""

import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.flame_svg import Stack, flame_svg
from bench.no_op import no_op_models
from bench.proxy_process import ProxyProcess, proxy_process
from tidegate_proxy.tritons.embedded import EmbeddedTriton

PY_SPY = str(Path(sys.executable).with_name("py-spy"))
LOADS = {"1": (1, "64 B", 16), "128": (128, "64 B", 16), "8_large": (8, "600 KB", 150_000)}
"""By the name of its file: the callers, the size of a tensor as it is told, and its number of floats."""
SETTLE_S, SAMPLE_S, SAMPLES_PER_S = 3, 10, 500
PARTS = {
    "kernel": "#d9d9d9",
    "event loop": "#bdbdbd",
    "libnghttp2": "#fdae6b",
    "transport/http2": "#fdd0a2",
    "proxy": "#9ecae1",
    "observability": "#dadaeb",
    "engine": "#a1d99b",
    "policy": "#e5f5a0",
    "garbage collector": "#fb9a99",
}
"""The parts that are told, with their colors. The proxy is frontend, envelope, gather, scatter, stages and driver."""
RULES = tuple(
    (re.compile(pattern), part)
    for pattern, part in (
        (r"^(read|readv|recv\w*|write|writev|send\w*|epoll_\w+) \(libc", "kernel"),
        (r"^gc_collect", "garbage collector"),
        (r"\((ngh2/|.*nghttp2)", "libnghttp2"),
        (r"\(tidegate_proxy/transport/", "transport/http2"),
        (r"\(tidegate_proxy/observability/", "observability"),
        (r"\(tidegate_proxy/", "proxy"),
        (r"\(tidegate/(engine|api)/", "engine"),
        (r"\(tidegate(_\w+)?/", "policy"),
        (r"\((uvloop/|loop\.c|loop-watcher\.c|linux\.c|core\.c|stream\.c)", "event loop"),
    )
)
"""Which part a frame belongs to: that of the first that fits. A frame that fits none is its caller's."""
NOISE = re.compile(r"^(0x[0-9a-f]+|Py_X?(DEC|INC)REF|__Pyx\w*) ")
"""Frames that say nothing: addresses without a name, macros, and what Cython's compiler adds."""


def draw_flame_graphs(console: Console, perf_analyzer: Path, folder: Path) -> dict[str, dict[str, float]]:
    """Draw `hop_flame_NAME.svg` of each load into the folder, and print the shares: by load, by part.

    Args:
        perf_analyzer: NVIDIA's load generator.
        folder: where the graphs go; it is made where there is none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shares: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name, ExitStack() as stack:
        work = Path(name)
        triton = stack.enter_context(EmbeddedTriton([no_op_models(work)]))
        given = ("--triton", triton.grpc_address, "--listen", "127.0.0.1:0", "--policy", "fifs")
        proxy = stack.enter_context(proxy_process(work, *given))
        for load, (callers, size, floats) in track(LOADS.items(), console=console, transient=True):
            with _load(perf_analyzer, proxy.grpc, callers, floats):
                time.sleep(SETTLE_S)  # connections are made, and forms of requests learned
                stacks = readable(_sampled(proxy, work / "stacks"))
            title = f"Tidegate, {callers} at a time, {size}: CPU time by function, {sum(stacks.values())} samples"
            (folder / f"hop_flame_{load}.svg").write_text(flame_svg(stacks, title, part_of, PARTS))
            shares[f"{callers}, {size}"] = shares_of(stacks)
    _show(console, shares)
    return shares


@contextmanager
def _load(program: Path, address: str, callers: int, floats: int) -> Iterator[None]:
    """Calls from as many callers until the end of the block."""
    command = [str(program), "-m", "noop", "-u", address, "-i", "grpc", "--async"]
    command += ["--shape", f"INPUT:{floats}", "--concurrency-range", str(callers)]
    command += ["-p", "600000"]  # one window of ten minutes: it is killed before
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
        if process.poll() is not None:
            raise SystemExit(f"perf_analyzer ended by itself with status {process.returncode}: {' '.join(command)}")
    finally:
        process.kill()
        process.wait()


def _sampled(proxy: ProxyProcess, output: Path) -> Iterator[tuple[Stack, int]]:
    """The stacks of the process's threads that ran, each with its number of samples."""
    command = [PY_SPY, "record", "--pid", str(proxy.pid), "--native", "--function", "--format", "raw"]
    command += ["--duration", str(SAMPLE_S), "--rate", str(SAMPLES_PER_S), "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"py-spy failed (another's process takes root, or ptrace_scope 0):\n{done.stderr}")
    for line in output.read_text().splitlines():
        frames, _, samples = line.rpartition(" ")
        yield tuple(frames.split(";")), int(samples)


def readable(samples: Iterable[tuple[Stack, int]]) -> Mapping[Stack, int]:
    """The stacks without what stands under the event loop, without line numbers, noise and frames that repeat."""
    stacks: Counter[Stack] = Counter()
    for stack, number in samples:
        start = next((place for place, frame in enumerate(stack) if frame.startswith("uv_run ")), 0)
        kept: list[str] = []
        for frame in stack[start:]:
            name = re.sub(r":\d+\)$", ")", frame)
            if not NOISE.match(name) and kept[-1:] != [name]:
                kept.append(name)
        stacks[tuple(kept)] += number
    return stacks


def part_of(frame: str) -> str | None:
    """The part that a frame belongs to; None where it is its caller's: the interpreter, and what is called in C."""
    return next((part for rule, part in RULES if rule.search(frame)), None)


def shares_of(stacks: Mapping[Stack, int]) -> dict[str, float]:
    """The share of the samples that each part took itself, what it called in other parts left out."""
    taken: Counter[str] = Counter()
    for stack, samples in stacks.items():
        parts = (part_of(frame) for frame in reversed(stack))
        taken[next((part for part in parts if part), "other")] += samples
    total = taken.total()
    return {part: taken[part] / total for part in (*PARTS, "other")}


def _show(console: Console, shares: Mapping[str, Mapping[str, float]]) -> None:
    table = Table("share of the CPU time", *shares, title="What the hop's CPU time goes to, by callers and size")
    for part in (*PARTS, "other"):
        table.add_row(part, *(f"{of[part]:.1%}" for of in shares.values()))
    console.print(table)
