"""CPU time of one gRPC request by layer, and what relays cost that decide nothing: the bounds of any design.

`python -m bench.cpu_layers` starts `tidegate serve` twice before one Triton with a no-op model, one of them with clocks
at the borders of its layers, which read the CPU time of the event loop's thread; their own cost is calibrated and taken
out. A relay on the same transport and the installed relays in C show the bounds. All are loaded one after the other.
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from statistics import median
from typing import Any, Final

import ngh2
import uvloop
from rich.console import Console

from bench.added_latency import Target, measure_run
from bench.closed_loop import closed_loop
from bench.common import parser_of, print_table, write_json
from bench.proxy_process import instrumented_process, no_op_models, proxy_process, report_figures
from bench.relays import Relay, relays_before
from tidegate_proxy.tritons.embedded import EmbeddedTriton

LOADS = {"1 caller": (16, 1), "8 callers": (16, 8), "128 callers": (16, 128)}
LOADS |= {"8, 600 KB": (150_000, 8), "8, 5 MB": (1_250_000, 8)}
"""FP32 values of a tensor, and concurrent callers, by the name of a column."""
BASE: Final = "event loop, reads and writes"
OPENING: Final = "opening the message"
"""Layer that each request enters once."""
CALIBRATIONS: Final = 20_000
PYTHON_RELAY: Final = "relay in Python, same transport"


class LayerClock:
    """Exclusive CPU time of a thread by layer, while functions at their borders are wrapped."""

    def __init__(self) -> None:
        self.spent_ns: Counter[str] = Counter()
        self.entered: Counter[str] = Counter()
        """Number of entries into each layer."""
        self.left: Counter[str] = Counter()
        """Number of entries from each layer into another."""
        self._layers = [BASE]
        self._since_ns = time.thread_time_ns()

    def reset(self) -> None:
        """Forget what was counted."""
        for counts in (self.spent_ns, self.entered, self.left):
            counts.clear()

    def wrap(self, owner: Any, name: str, layer: str) -> None:  # noqa: ANN401 - any class
        """Count the CPU time in a method of a class as this layer's, except in methods of other layers."""
        setattr(owner, name, self.timed(getattr(owner, name), layer))

    def timed(self, function: Callable[..., Any], layer: str) -> Callable[..., Any]:
        """Return a function that counts the CPU time of another one as this layer's."""
        clock, layers, spent_ns = time.thread_time_ns, self._layers, self.spent_ns

        @wraps(function)
        def counted(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as wrapped
            above = layers[-1]
            if above == layer:
                return function(*arguments, **options)
            self.entered[layer] += 1
            self.left[above] += 1
            layers.append(layer)
            now_ns = clock()
            spent_ns[above] += now_ns - self._since_ns
            self._since_ns = now_ns
            try:
                return function(*arguments, **options)
            finally:
                now_ns = clock()
                spent_ns[layer] += now_ns - self._since_ns
                self._since_ns = now_ns
                layers.pop()

        return counted

    def border_costs_ns(self) -> tuple[float, float]:
        """Return what an entry adds to the layer that is entered and to the one that is left, measured here."""
        nothing = self.timed(lambda: None, "calibration")
        self.reset()
        began_ns = time.thread_time_ns()
        for _ in range(CALIBRATIONS):
            nothing()
        both = (time.thread_time_ns() - began_ns) / CALIBRATIONS
        inside = self.spent_ns["calibration"] / CALIBRATIONS
        self.reset()
        return inside, both - inside


def install_borders(clock: LayerClock) -> None:
    """Wrap the functions at the borders of the proxy's layers."""
    from tidegate.engine import Engine  # noqa: PLC0415 - not before this process is one with clocks
    from tidegate.observation import Reducer  # noqa: PLC0415
    from tidegate_proxy.observability.metrics import Metrics, Observability  # noqa: PLC0415
    from tidegate_proxy.scheduling.in_flight import BatchPayload  # noqa: PLC0415
    from tidegate_proxy.scheduling.stages import RunningBatches  # noqa: PLC0415
    from tidegate_proxy.servers.grpc import GrpcService  # noqa: PLC0415
    from tidegate_proxy.service.inference import Inference  # noqa: PLC0415
    from tidegate_proxy.transport.http2.client import Channel, ClientConnection  # noqa: PLC0415
    from tidegate_proxy.transport.http2.connection import Http2Connection  # noqa: PLC0415
    from tidegate_proxy.transport.http2.server import ServerConnection  # noqa: PLC0415
    from tidegate_proxy.transport.http2.server_call import Http2Call  # noqa: PLC0415

    timed_connection = type("TimedConnection", (ngh2.Connection,), {})  # its methods cannot be replaced
    setattr(ngh2, "Connection", timed_connection)  # noqa: B010 - it is a type
    borders: dict[str, dict[Any, tuple[str, ...]]] = {
        "transport: gRPC and HTTP/2 in Python": {
            Http2Connection: ("buffer_updated", "_go_on", "push"),
            ServerConnection: ("flush",),
            ClientConnection: ("flush",),
            Channel: ("unary",),
            Http2Call: ("answer", "receive", "add_disconnect_callback"),
        },
        "libnghttp2 and its bindings": {
            timed_connection: (
                *("receive_data", "events", "data_to_send", "send_request", "send_response", "send_data"),
                *("send_trailers", "acknowledge_received_data", "queued_body_size"),
            )
        },
        "server, driver and stages": {
            GrpcService: ("accept", "_infer"),
            RunningBatches: ("_over", "_handed_over"),
        },
        OPENING: {Inference: ("open",)},
        "engine": {Engine: ("handle",)},
        "gather and scatter": {BatchPayload: ("__init__", "request", "outcomes", "close")},
        "accounting": {
            Metrics: ("handled",),
            Reducer: ("handled",),
            Observability: ("batch_started", "answered"),
        },
    }
    for layer, classes in borders.items():
        for owner, names in classes.items():
            for name in names:
                clock.wrap(owner, name, layer)
    begin = Engine.__init__

    def begun(self: Engine, policy: Any, **options: Any) -> None:  # noqa: ANN401 - as in the engine
        clock.wrap(type(policy), "handle", "policy")
        begin(self, policy, **options)

    Engine.__init__ = begun  # type: ignore[method-assign]


def instrumented_command() -> None:
    """Run the command line with clocks at the borders; SIGUSR1 begins a report, SIGUSR2 ends and writes it."""
    from tidegate.cli import main  # noqa: PLC0415 - after the clocks are there

    clock = LayerClock()
    costs = clock.border_costs_ns()
    install_borders(clock)

    def begin(_number: int, _frame: object) -> None:
        clock.reset()

    def end(_number: int, _frame: object) -> None:
        inside, outside = costs
        requests = clock.entered[OPENING]
        spent_us = {
            layer: max(0.0, ns - inside * clock.entered[layer] - outside * clock.left[layer]) / 1e3 / requests
            for layer, ns in clock.spent_ns.items()
        }
        report_figures(spent_us)

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    main()


async def _relay(triton: str) -> None:
    """Relay ModelInfer unread on Tidegate's own transport; prints HOST:PORT."""
    from tidegate_proxy.configuration.limits import LimitsConfig  # noqa: PLC0415 - in the relay's process
    from tidegate_proxy.transport.client_bounds import ClientBounds  # noqa: PLC0415
    from tidegate_proxy.transport.http2 import Channel, Http2Server  # noqa: PLC0415

    channel = Channel(triton)

    def accept(call: Any) -> None:  # noqa: ANN401 - Http2Call
        def answered(answer: bytes | None, code: Any, details: str) -> None:  # noqa: ANN401 - a status
            call.end(code, details) if answer is None else call.answer(answer)

        call.receive(lambda message: channel.unary(call.method, message, answered))

    server = Http2Server(accept, LimitsConfig(), ClientBounds())
    print(f"127.0.0.1:{await server.listen('127.0.0.1:0')}", flush=True)
    await asyncio.Event().wait()


@contextmanager
def python_relay(triton: str) -> Iterator[Relay]:
    """Start a relay on Tidegate's own transport and yield it until the block ends; `triton`: HOST:PORT."""
    command = [sys.executable, "-m", "bench.cpu_layers", "--relay", triton]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield Relay(process.pid, process.stdout.readline().strip())
    finally:
        process.terminate()
        process.wait()


def bench_cpu_layers(console: Console, rounds: int, seconds: float, policy: str) -> dict[str, dict[str, float]]:
    """Measure and print; return CPU us of a request by row and column, medians over rounds."""
    with tempfile.TemporaryDirectory(prefix="tidegate-layers-") as folder, ExitStack() as stack:
        work = Path(folder)
        triton = stack.enter_context(EmbeddedTriton([no_op_models(work)]))
        flags = ("--triton", triton.grpc_address, "--listen", "127.0.0.1:0", "--policy", policy)
        (aside := work / "clocks").mkdir()
        clocked, reported = stack.enter_context(instrumented_process(aside, "bench.cpu_layers", *flags))
        targets = {"Tidegate": Target(stack.enter_context(proxy_process(work, *flags)))}
        targets[PYTHON_RELAY] = Target(stack.enter_context(python_relay(triton.grpc_address)))
        for name, relay in stack.enter_context(relays_before(triton.grpc_address, work, console)).items():
            targets[f"relay in C: {name}"] = Target(relay)

        def load(address: str, floats: int, callers: int, _flags: object) -> dict[str, float]:
            return closed_loop(address, "noop", callers, seconds, f"INPUT:{floats}", warmup_s=0.5)

        rows: dict[str, dict[str, list[float]]] = {}
        for column, (floats, callers) in LOADS.items():
            for _ in range(rounds):
                clocked.send(signal.SIGUSR1)
                load(clocked.grpc, floats, callers, ())
                clocked.send(signal.SIGUSR2)
                found = {f"  {layer}": spent_us for layer, spent_us in json.loads(reported()).items()}
                found["Tidegate by layer, sum"] = sum(found.values())
                for name, target in targets.items():
                    found[name] = measure_run(triton, target, load, floats, callers)["cpu_us"]
                for name, spent_us in found.items():
                    rows.setdefault(name, {}).setdefault(column, []).append(spent_us)
    medians = {name: {column: median(runs) for column, runs in row.items()} for name, row in rows.items()}
    lines = (
        (name, *(f"{row[column]:.0f}" if column in row else "" for column in LOADS)) for name, row in medians.items()
    )
    title = f"A no-op model over gRPC, {policy}: medians, interleaved"
    print_table(console, title, ("CPU us of a request", *LOADS), lines)
    return medians


def main() -> None:
    """Run the benchmark."""
    parser = parser_of("bench.cpu_layers", __doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a run")
    parser.add_argument("--policy", default="fifs", metavar="NAME")
    parser.add_argument("--relay", metavar="TRITON", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.relay:
        uvloop.run(_relay(arguments.relay))
    figures = bench_cpu_layers(Console(width=120), arguments.rounds, arguments.seconds, arguments.policy)
    write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
