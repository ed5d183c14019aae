"""Soak test: half an hour of mixed traffic at a moderate rate, to detect leaks of memory, threads or descriptors.

    python -m bench.soak [--minutes M] [--json FILE]

Unary calls, large tensors, streams, HTTP, cancelled calls, malformed input, short-lived clients, a model loaded
repeatedly, metrics and statistics. Fails if memory grows in the second half, threads or descriptors grow, or a
well-formed request is not answered correctly.
"""

import asyncio
import itertools
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tritonclient.http.aio as http_aio
from rich.console import Console
from rich.progress import Progress, TaskID
from tritonclient.grpc import service_pb2

from bench.common import console_of, parser_of, print_table, write_json
from bench.fuzz import echo_models, send
from bench.fuzz_inputs import MODEL, WORDS, good_request, make_input
from bench.proxy_process import ProxyProcess, proxy_before
from tidegate_proxy.tritons.embedded import EmbeddedTriton

SERVICE = "/inference.GRPCInferenceService/"
SPARE = "spare"
"""The model that is loaded repeatedly; no client calls it."""
LARGE_ROWS = 6
LARGE_FLOATS = 8192
SLO_S = 1.0
SAMPLE_EVERY_S = 10.0
MOST_GROWTH_MIB_PER_HOUR = 24.0
MOST_NEW_DESCRIPTORS = 8
MOST_NEW_THREADS = 4
ANSWER_WITHIN_S = 20.0
MOST_EXAMPLES = 20
FIGURES = ("memory_mib", "descriptors", "threads", "p50_ms", "p99_ms")


@dataclass
class Ledger:
    """Counts and samples of a run."""

    counts: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    """Well-formed requests without a correct response, by kind."""
    examples: list[str] = field(default_factory=list)
    """Messages of the first failures."""
    latencies_s: list[float] = field(default_factory=list)
    """Latencies in seconds of unary calls since the last sample."""
    late: int = 0
    """Unary calls longer than SLO_S since the last sample."""
    samples: list[dict[str, float]] = field(default_factory=list)

    def fail(self, kind: str, words: str) -> None:
        """Count a failure and keep its message."""
        self.failed[kind] += 1
        if len(self.examples) < MOST_EXAMPLES:
            self.examples.append(f"{kind}: {words}")


class Load:
    """All clients of the soak test; create it in an event loop."""

    def __init__(self, triton: EmbeddedTriton, proxy: ProxyProcess, ledger: Ledger) -> None:
        self._triton = triton
        self._proxy = proxy
        self._ledger = ledger
        self._channel = grpc.aio.insecure_channel(proxy.grpc)
        self._http = http_aio.InferenceServerClient(proxy.http)
        self._numbers = itertools.count()
        self._rng = random.Random(0)

    async def run(self, duration_s: float, tick: Callable[[], None]) -> None:
        """Run all clients for `duration_s` seconds; `tick` is called regularly."""
        until_s = time.monotonic() + duration_s
        every: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (0.02, self._unary), (0.25, self._large), (0.05, self._over_http), (0.2, self._cancelled),
            (0.1, self._malformed), (1.0, self._new_client), (5.0, self._look), (30.0, self._reload),
        ]  # fmt: skip
        async with asyncio.TaskGroup() as group:
            for interval_s, deed in every:
                group.create_task(self._repeat(until_s, interval_s, deed))
            group.create_task(self._streams(until_s))
            group.create_task(self._sample(until_s, tick))
        await self._http.close()
        await self._channel.close()

    def _goes_on(self, until_s: float) -> bool:
        return time.monotonic() < until_s and self._proxy.running and self._triton.running

    async def _repeat(self, until_s: float, interval_s: float, deed: Callable[[], Awaitable[None]]) -> None:
        """Poisson arrivals, whatever the server does."""
        async with asyncio.TaskGroup() as group:
            while self._goes_on(until_s):
                group.create_task(self._counted(deed))
                await asyncio.sleep(self._rng.expovariate(1 / interval_s))

    async def _counted(self, deed: Callable[[], Awaitable[None]]) -> None:
        name = deed.__name__.strip("_")
        self._ledger.counts[name] += 1
        try:
            await deed()
        except Exception as error:  # whatever it was: a client had no answer
            self._ledger.fail(name, f"{type(error).__name__}: {error}")

    async def _infer(self, request: Any, channel: grpc.aio.Channel | None = None) -> None:  # noqa: ANN401
        answer = await (channel or self._channel).unary_unary(SERVICE + "ModelInfer")(
            request.SerializeToString(), timeout=ANSWER_WITHIN_S
        )
        response = service_pb2.ModelInferResponse.FromString(answer)
        if response.raw_output_contents[0] != request.raw_input_contents[0]:
            raise ValueError("a wrong answer")

    async def _unary(self) -> None:
        started_s = time.monotonic()
        await self._infer(good_request(self._rng.choice([MODEL, WORDS]), self._rng.randint(1, 4)))
        took_s = time.monotonic() - started_s
        self._ledger.latencies_s.append(took_s)
        self._ledger.late += took_s > SLO_S

    async def _large(self) -> None:
        request = service_pb2.ModelInferRequest(model_name=MODEL)
        request.inputs.add(name="X", datatype="FP32", shape=[LARGE_ROWS, LARGE_FLOATS])
        request.raw_input_contents.append(self._rng.randbytes(4 * LARGE_ROWS * LARGE_FLOATS))
        await self._infer(request)

    async def _over_http(self) -> None:
        array = np.full((1, 4), next(self._numbers), np.float32)
        tensor = http_aio.InferInput("X", [1, 4], "FP32")
        tensor.set_data_from_numpy(array, binary_data=self._rng.random() < 0.5)
        answer = await self._http.infer(MODEL, [tensor])
        if answer.as_numpy("Y").tolist() != array.tolist():
            raise ValueError("a wrong answer")

    async def _cancelled(self) -> None:
        call = self._channel.unary_unary(SERVICE + "ModelInfer")(good_request().SerializeToString())
        await asyncio.sleep(self._rng.uniform(0, 0.003))
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call

    async def _malformed(self) -> None:
        async with asyncio.timeout(2 * ANSWER_WITHIN_S):
            await send(self._proxy, self._channel, make_input(0, next(self._numbers)))

    async def _new_client(self) -> None:
        async with grpc.aio.insecure_channel(self._proxy.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as mine:
            await self._infer(good_request(), mine)

    async def _look(self) -> None:
        await self._channel.unary_unary(SERVICE + "ModelStatistics")(b"", timeout=ANSWER_WITHIN_S)
        host, _, port = self._proxy.metrics.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        page = await reader.read()
        writer.close()
        if b"tidegate_requests_total" not in page:
            raise ValueError("a metrics page without metrics")

    async def _reload(self) -> None:
        for method in ("RepositoryModelUnload", "RepositoryModelLoad"):
            message = service_pb2.RepositoryModelLoadRequest(model_name=SPARE).SerializeToString()
            await self._channel.unary_unary(SERVICE + method)(message, timeout=ANSWER_WITHIN_S)

    async def _streams(self, until_s: float) -> None:
        """One after the other, each for a while."""
        while self._goes_on(until_s):
            await self._counted(self._stream)

    async def _stream(self) -> None:
        sent = [good_request(rows=1 + number % 3) for number in range(200)]

        async def requests() -> AsyncIterator[bytes]:
            for request in sent:
                yield request.SerializeToString()
                await asyncio.sleep(0.05)

        answered = 0
        call = self._channel.stream_stream(SERVICE + "ModelStreamInfer")(requests())
        async for message in call:
            answer = service_pb2.ModelStreamInferResponse.FromString(message)
            if answer.infer_response.raw_output_contents[0] != sent[answered].raw_input_contents[0]:
                raise ValueError(f"a wrong answer: {answer.error_message}")
            answered += 1
        if answered != len(sent):
            raise ValueError(f"{answered} of {len(sent)} answers")

    async def _sample(self, until_s: float, tick: Callable[[], None]) -> None:
        started_s = time.monotonic()
        while self._goes_on(until_s):
            await asyncio.sleep(SAMPLE_EVERY_S)
            if not self._goes_on(until_s + SAMPLE_EVERY_S):
                return
            latencies_ms = np.array(self._ledger.latencies_s or [0.0]) * 1000
            attainment = 1 - self._ledger.late / len(latencies_ms)
            self._ledger.latencies_s.clear()
            self._ledger.late = 0
            p50_ms, p99_ms = np.percentile(latencies_ms, [50, 99]).tolist()
            at_s = time.monotonic() - started_s
            times = {"p50_ms": p50_ms, "p99_ms": p99_ms, "attainment": attainment}
            self._ledger.samples.append({"at_s": at_s, **self._proxy.usage(), **times})
            tick()


def soak(minutes: float, console: Console) -> Ledger:
    """Run the soak test for this number of minutes."""
    ledger = Ledger()
    with tempfile.TemporaryDirectory(prefix="tidegate-soak-") as work:
        folder = Path(work)
        echo_models(folder / "models", {MODEL: ("FP32", "-1"), WORDS: ("STRING", "1"), SPARE: ("FP32", "-1")})
        explicit = ["--model-control-mode=explicit", "--load-model=*"]
        with (
            EmbeddedTriton([folder / "models"], options=explicit) as triton,
            proxy_before(triton, folder) as proxy,
            Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
        ):
            task = progress.add_task("soaking", total=minutes * 60)

            async def run() -> None:
                await Load(triton, proxy, ledger).run(minutes * 60, _tick(progress, task, ledger))

            asyncio.run(run())
            if not proxy.running or not triton.running:
                ledger.fail("server", f"it died:\n{proxy.log[-2000:]}\n{triton.log_text[-2000:]}")
    return ledger


def _tick(progress: Progress, task: TaskID, ledger: Ledger) -> Callable[[], None]:
    def tick() -> None:
        last = ledger.samples[-1]
        words = f"{last['memory_mib']:.0f} MiB, {last['descriptors']:.0f} descriptors, p99 {last['p99_ms']:.1f} ms"
        progress.update(task, completed=last["at_s"], description=words)

    return tick


def judge(ledger: Ledger) -> list[str]:
    """Return the violations as messages."""
    wrong = [f"failures: {dict(ledger.failed)}", *ledger.examples] if ledger.failed else []
    half = len(ledger.samples) // 2
    first, second = ledger.samples[:half], ledger.samples[half:]
    if len(second) < 3:
        return [*wrong, "too short to say anything of memory"]
    if (growth := growth_mib_per_hour(second)) > MOST_GROWTH_MIB_PER_HOUR:
        wrong.append(f"memory grows by {growth:.1f} MiB an hour")
    for what, most in (("descriptors", MOST_NEW_DESCRIPTORS), ("threads", MOST_NEW_THREADS)):
        before, after = (max(sample[what] for sample in part) for part in (first, second))
        if after > before + most:
            wrong.append(f"{what}: {before:.0f} in the first half, {after:.0f} in the second")
    return wrong


def growth_mib_per_hour(samples: list[dict[str, float]]) -> float:
    """Return the growth of the memory by least squares, in MiB per hour."""
    slope, _ = np.polyfit([s["at_s"] for s in samples], [s["memory_mib"] for s in samples], 1)
    return float(slope) * 3600


def main() -> None:
    """Run the soak test and print the results."""
    parser = parser_of("bench.soak", __doc__)
    parser.add_argument("--minutes", type=float, default=30, help="how long (default: %(default)s)")
    arguments = parser.parse_args()
    console = console_of(120)
    ledger = soak(arguments.minutes, console)
    rows = (
        (f"{each['at_s'] / 60:.1f}", *(f"{each[name]:.1f}" for name in FIGURES), f"{each['attainment']:.2%}")
        for each in ledger.samples[:: max(1, len(ledger.samples) // 15)]
    )
    columns = ("minute", "memory MiB", "descriptors", "threads", "p50 ms", "p99 ms", f"within {SLO_S:g} s")
    print_table(console, None, columns, rows)
    wrong = judge(ledger)
    console.print(f"{dict(ledger.counts)}; memory in the second half: {_slope(ledger)}")
    write_json(arguments.json, {"counts": ledger.counts, "samples": ledger.samples, "wrong": wrong})
    for words in wrong:
        console.print(f"[red]{words}", markup=False)
    raise SystemExit(1 if wrong else 0)


def _slope(ledger: Ledger) -> str:
    second = ledger.samples[len(ledger.samples) // 2 :]
    return f"{growth_mib_per_hour(second):+.1f} MiB an hour" if len(second) > 1 else "unknown"


if __name__ == "__main__":
    main()
