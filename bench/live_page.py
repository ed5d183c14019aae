"""What the live page costs: CPU and memory with it open and closed, in turn; and how soon a recording opens in it.

    python -m bench.live_page [--rate N] [--rounds N] [--window S] [--viewers N] [--minutes M] [--hours H] [--json FILE]

One no-op model behind a Tidegate is asked at a steady rate. Windows with nobody looking and windows with viewers follow
each other; what counts is the CPU time of the proxy's process per request. `--minutes` then leaves the page open for so
long and looks at the memory. `--hours` has an event log of so many hours simulated, at 100 requests/s, and opens it as
`tidegate view` does.
"""

import argparse
import asyncio
import json
import re
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import bootstrap, linregress, trim_mean

from bench.no_op import no_op_models
from bench.proxy_process import ProxyProcess, proxy_before
from demo.processes import TIDEGATE
from tidegate.api import Model, Profile, Request, RequestArrived, Setup, Worker
from tidegate.engine import Engine
from tidegate.host import Plugins
from tidegate.observation import Recorder
from tidegate.sim import Simulation
from tidegate_loadtest.connection import Connection
from tidegate_loadtest.model_inputs import RandomRequests
from tidegate_loadtest.open_loop import run_open_loop
from tidegate_proxy.tritons.embedded import EmbeddedTriton

ASKS: Final = {"x-tidegate-page": "1"}
SETTLE_S: Final = 7.0
"""The page is looked at for 5 s after its last viewer has left."""
RECORDED_RPS: Final = 100
MS: Final = 1_000_000
AIM_S, AIM_SHARE = 3.0, 0.02
CUT: Final = 0.2
"""So large a share of the rounds is left out at each end: a neighbor on the machine is no cost of the page."""


class Viewer:
    """One who has the page open, in a thread."""

    def __init__(self, metrics: str) -> None:
        self.snapshots = self.bytes = 0
        request = urllib.request.Request(f"http://{metrics}/dashboard/events", headers=ASKS)
        self._answer = urllib.request.urlopen(request, timeout=30)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._ends.is_set() and (line := self._answer.readline()):
            self.snapshots += line != b"\n"
            self.bytes += len(line)

    def close(self) -> None:
        """Leave."""
        self._ends.set()
        self._thread.join()
        self._answer.close()


@contextmanager
def looking(metrics: str, viewers: int) -> Iterator[list[Viewer]]:
    """So many have the page open until the end of the block."""
    those = [Viewer(metrics) for _ in range(viewers)]
    try:
        yield those
    finally:
        for viewer in those:
            viewer.close()


@contextmanager
def asked(address: str, rate: float, seconds: float) -> Iterator[None]:
    """Ask at a steady rate meanwhile, in a process of its own."""
    load = [str(Path(TIDEGATE).with_name("python")), "-m", "bench.live_page", "--ask", address]
    process = subprocess.Popen([*load, "--rate", str(rate), "--window", str(seconds)])
    try:
        time.sleep(3)
        yield
    finally:
        process.terminate()
        process.wait()


async def ask(address: str, rate: float, seconds: float) -> None:
    """Ask, so many times a second."""
    arrivals_ns = [round(number * 1e9 / rate) for number in range(round(rate * seconds))]
    async with Connection(address) as connection:
        inputs = await RandomRequests.for_model(connection, "noop", rows=1, shapes={"INPUT": (16,)}, seed=1)
        await run_open_loop(connection, arrivals_ns, inputs, window_ns=round(seconds * 1e9), timeout_s=5.0)


def answered(metrics: str) -> float:
    """How many requests were answered so far."""
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=30) as page:
        text = page.read().decode()
    found = re.findall(r'^tidegate_requests_total\{[^}]*outcome="(?:on_time|late)"[^}]*\} (\S+)', text, re.MULTILINE)
    return sum(map(float, found))


def us_per_request(proxy: ProxyProcess, seconds: float) -> tuple[float, float]:
    """The proxy's CPU time per request over a window, in microseconds; and the rate."""
    count, (spent_s, _), began = answered(proxy.metrics), proxy.spent(), time.monotonic()
    time.sleep(seconds)
    more = answered(proxy.metrics) - count
    took = time.monotonic() - began
    return (proxy.spent()[0] - spent_s) / max(1.0, more) * 1e6, more / took


def bench_cpu(console: Console, arguments: argparse.Namespace) -> dict[str, Any]:
    """Windows with the page open and closed, in turn; then, where that is wanted, minutes with it open."""
    closed, opened, rates, costs = [], [], [], []
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder, ExitStack() as stack:
        triton = stack.enter_context(EmbeddedTriton([no_op_models(Path(folder))]))
        proxy = stack.enter_context(proxy_before(triton, Path(folder)))
        whole_s = arguments.rounds * 2 * (arguments.window + SETTLE_S) + 60 * arguments.minutes + 60
        stack.enter_context(asked(proxy.grpc, arguments.rate, whole_s))
        for _ in track(range(arguments.rounds), "open and closed, in turn", console=console, transient=True):
            closed.append(us_per_request(proxy, arguments.window)[0])
            with looking(proxy.metrics, arguments.viewers):
                time.sleep(2)
                cost, rate = us_per_request(proxy, arguments.window)
                opened.append(cost)
                rates.append(rate)
            time.sleep(SETTLE_S)
        closed.append(us_per_request(proxy, arguments.window)[0])
        memory = []
        if arguments.minutes:
            with looking(proxy.metrics, arguments.viewers) as those:
                for _ in track(range(arguments.minutes * 6), "the page is open", console=console, transient=True):
                    time.sleep(10)
                    memory.append(proxy.usage()["memory_mib"])
                costs = [viewer.snapshots for viewer in those]
    # What the machine does by itself drifts: each window is held against those before and after it.
    more = [2 * one / sum(around) - 1 for one, around in zip(opened, pairwise(closed), strict=True)]
    low, high = interval(more)
    table = Table(title=f"one no-op model at {fmean(rates):.0f} requests/s, {arguments.viewers} viewer(s)")
    for column in ("page", "CPU us/request", "% of a core"):
        table.add_column(column, justify="right")
    for name, values in (("closed", closed), ("open", opened)):
        table.add_row(name, f"{median(values):.1f}", f"{median(values) * fmean(rates) / 1e4:.2f}")
    console.print(table)
    console.print(
        f"open costs {trim_mean(more, CUT):+.2%} of the proxy's CPU, {low:+.2%} to {high:+.2%} (mean of the rounds "
        f"without the lowest and highest {CUT:.0%}, and its 95 % interval by bootstrap; aim: under {AIM_SHARE:.0%}; "
        f"rounds: {', '.join(f'{each:+.1%}' for each in more)})"
    )
    if memory:
        console.print(f"memory with the page open, every 10 s, MiB: {', '.join(f'{each:.0f}' for each in memory)}")
        console.print(f"snapshots that each viewer was told: {costs}")
        console.print(f"growth after the third minute: {growth(memory)}")
    return {"closed_us": closed, "open_us": opened, "more": more, "rates": rates, "memory_mib": memory}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean without the lowest and highest fifth."""
    if len(values) < 3:
        return -1.0, 1.0
    found = bootstrap((values,), _middle, rng=0, vectorized=False).confidence_interval
    return float(found.low), float(found.high)


def _middle(values: Sequence[float]) -> float:
    return float(trim_mean(values, CUT))


def growth(memory_mib: Sequence[float]) -> str:
    """The slope of what was looked at every 10 s, once the ring is full, in words."""
    later = memory_mib[18:]
    if len(later) < 6:
        return "too short to say"
    fitted = linregress([number / 6 for number in range(len(later))], later)
    return f"{fitted.slope:+.3f} MiB a minute, standard error {fitted.stderr:.3f}"


def write_log(path: Path, hours: float, console: Console) -> int:
    """Simulate a run and record it; how many requests it has."""
    setup = Setup(
        (Model("resnet50", 16, slo_ns=40 * MS), Model("bert-base", 8, slo_ns=120 * MS)),
        tuple(Worker(number, f"gpu{number}", ("bert-base", "resnet50")) for number in range(2)),
        (
            Profile.linear("resnet50", alpha_ms=1, beta_ms=5, max_rows=16),
            Profile.linear("bert-base", alpha_ms=5, beta_ms=18, max_rows=8),
        ),
    )
    count = round(hours * 3600 * RECORDED_RPS)
    slos = {model.name: model.slo_ns or 0 for model in setup.models}

    def arrivals() -> Iterator[RequestArrived]:
        for number in track(range(count), "recording", console=console, transient=True):
            at_ns, name = number * 1000 * MS // RECORDED_RPS, "bert-base" if number % 4 == 0 else "resnet50"
            yield RequestArrived(at_ns, Request(number, name, 1, at_ns, at_ns + slos[name]))

    with path.open("wb") as out:
        policy = Plugins.installed().make_policy("symphony", setup, {})
        engine = Engine(policy, name="symphony", observers=[Recorder(out)])
        simulation = Simulation(engine, patience=1000)
        simulation.feed(arrivals())
        simulation.run()
        engine.close()
    return count


def bench_recording(console: Console, hours: float) -> dict[str, Any]:
    """How soon a log is there: from the start of the command to the first snapshot, and to the whole overview."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        path = Path(folder) / "events.jsonl"
        count = write_log(path, hours, console)
        began = time.monotonic()
        process = subprocess.Popen([TIDEGATE, "page", str(path), "--no-browser"], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            address, _, token = process.stdout.readline().strip().partition("#token=")
            told_s = time.monotonic() - began

            def read(what: str) -> Any:  # noqa: ANN401 - JSON
                headers = {**ASKS, "authorization": f"Bearer {token}"}
                request = urllib.request.Request(f"{address}/{what}", headers=headers)
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.load(answer)

            length_ms = read("hello")["length_ms"]
            assert read("at?ms=10000")["models"]
            first_s = time.monotonic() - began
            moved = []
            for share in (0.9, 0.5, 0.1):
                before = time.monotonic()
                read(f"at?ms={round(share * length_ms)}")
                moved.append(time.monotonic() - before)
            before = time.monotonic()
            read(f"timeline?request={count // 2}")
            timeline_s = time.monotonic() - before
            while not read("overview")["done"]:
                time.sleep(0.2)
            whole_s = time.monotonic() - began
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()
        size_mb = path.stat().st_size / 1e6
    console.print(
        f"{hours:g} h, {count:,} requests, {size_mb:.0f} MB: the command answers after {told_s:.2f} s, the first "
        f"instant is shown after {first_s:.2f} s (aim: {AIM_S:g}), another one takes {max(moved):.2f} s at most, a "
        f"timeline {timeline_s:.2f} s; the overview is whole after {whole_s:.1f} s"
    )
    return {"requests": count, "size_mb": size_mb, "first_s": first_s, "moved_s": moved, "whole_s": whole_s}


def main() -> None:
    """Run it and print what came of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.live_page", description=__doc__)
    parser.add_argument("--rate", type=float, default=1000.0, metavar="N", help="requests/s (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="(default: %(default)s; 0: none)")
    parser.add_argument("--window", type=float, default=8.0, metavar="S", help="(default: %(default)s)")
    parser.add_argument("--viewers", type=int, default=1, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--minutes", type=int, default=0, metavar="M", help="look on for so long (default: not)")
    parser.add_argument("--hours", type=float, default=0.0, metavar="H", help="of a recording (default: none)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="for machines")
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ask:
        asyncio.run(ask(arguments.ask, arguments.rate, arguments.window))
        return
    console, found = Console(), {}
    if arguments.rounds:
        found["cpu"] = bench_cpu(console, arguments)
    if arguments.hours:
        found["recording"] = bench_recording(console, arguments.hours)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
