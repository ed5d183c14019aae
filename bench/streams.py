"""First-response attainment of streams: an emulated token model on one and two Tritons, under three loads.

    python -m bench.streams [--seconds S] [--tritons N ...] [--loads F ...] [--seed N] [--json FILE]

The model runs up to `SLOTS` streams at a time and queues the others without end, as a generative engine does. A stream
takes a prefill by the length of its prompt, then a time per token; each further stream slows all. Its clients are an
open loop. Compared: clients that go round the Tritons, Tidegate that bypasses to the least busy Triton, and Tidegate
with slots; the latter is simulated as well, over the same requests, with times stretched by how much slower than
configured the live model's tokens came: a busy machine wakes it up late. Keep the machine otherwise idle.
"""

import asyncio
import json
import random
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from rich.console import Console
from tritonclient.grpc import service_pb2

from bench.common import parser_of, print_table, write_json
from bench.proxy_process import proxy_process
from tidegate.api import NEVER_NS, ms_to_ns
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, RequestSequence, Scenario
from tidegate_proxy.tritons.backend import SERVICE_PREFIX
from tidegate_proxy.tritons.embedded import EmbeddedTriton

MODEL = "tokens"
SLOTS = 8
PREFILL_MS, PREFILL_PER_TOKEN_MS = 30.0, 0.2
PROMPT_TOKENS = (50, 400)
MEAN_TOKENS, TOKENS_CV = 24, 0.6
GAP_MS, SLOWDOWN = 25.0, 0.05
SLO_FIRST_MS = 500.0
WARMUP_S = 3.0
LOADS = (0.7, 1.0, 1.5)
ROUND_ROBIN, BYPASS, WITH_SLOTS, SIMULATED = "round robin", "least outstanding", "slots", "slots, simulated"
CONFIG = """
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [ { name: "PROMPT" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "TOKENS" data_type: TYPE_INT32 dims: [ 1 ] } ]
output { name: "TOKEN" data_type: TYPE_INT32 dims: [ 1 ] }
instance_group { count: 1 kind: KIND_CPU }
"""
SOURCE = f"""
import asyncio, threading
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.slots, self.running = asyncio.Semaphore({SLOTS}), 0

    def execute(self, requests):
        for request in requests:
            prompt, tokens = (pb_utils.get_input_tensor_by_name(request, n).as_numpy() for n in ("PROMPT", "TOKENS"))
            answer = self.answer(request, request.get_response_sender(), len(prompt), int(tokens[0]))
            asyncio.run_coroutine_threadsafe(answer, self.loop)

    async def answer(self, request, sender, prompt, tokens):
        async with self.slots:
            self.running += 1
            work_ms = {PREFILL_MS} + {PREFILL_PER_TOKEN_MS} * prompt
            for number in range(tokens):
                if request.is_cancelled():
                    break
                await asyncio.sleep(work_ms / 1000 * (1 + {SLOWDOWN} * (self.running - 1)))
                token = pb_utils.Tensor("TOKEN", np.array([number], np.int32))
                sender.send(pb_utils.InferenceResponse([token]))
                work_ms = {GAP_MS}
            self.running -= 1
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@dataclass(frozen=True)
class StreamRequest:
    """Request of the workload."""

    at_s: float
    prompt: int
    tokens: int


@dataclass
class StreamOutcome:
    """Responses to one request; times in seconds since its scheduled arrival."""

    first_s: float | None = None
    last_s: float = 0.0
    responses: int = 0
    error: str = ""


def capacity_rps(tritons: int) -> float:
    """Return the streams per second that the slots sustain, all busy."""
    prefill_ms = PREFILL_MS + PREFILL_PER_TOKEN_MS * sum(PROMPT_TOKENS) / 2
    stream_s = (1 + SLOWDOWN * (SLOTS - 1)) * (prefill_ms + GAP_MS * (MEAN_TOKENS - 1)) / 1000
    return tritons * SLOTS / stream_s


def workload(rate_rps: float, seconds: float, seed: int) -> list[StreamRequest]:
    """Return Poisson arrivals of this rate, with prompts and lengths; the same for all that are compared."""
    rng = random.Random(seed)
    sigma = np.sqrt(np.log1p(TOKENS_CV**2))
    mu = np.log(MEAN_TOKENS) - sigma**2 / 2
    requests, at_s = [], rng.expovariate(rate_rps)
    while at_s < WARMUP_S + seconds:
        tokens = max(2, round(rng.lognormvariate(float(mu), float(sigma))))
        requests.append(StreamRequest(at_s, rng.randint(*PROMPT_TOKENS), tokens))
        at_s += rng.expovariate(rate_rps)
    return requests


async def send(addresses: Sequence[str], requests: Sequence[StreamRequest]) -> list[StreamOutcome]:
    """Send each request at its time as a stream of its own, to the servers one after the other."""
    channels = [grpc.aio.insecure_channel(address) for address in addresses]
    methods = [channel.stream_stream(SERVICE_PREFIX + "ModelStreamInfer") for channel in channels]
    began_s = time.monotonic() + 0.2
    outcomes = await asyncio.gather(
        *(_one(methods[number % len(methods)], request, began_s) for number, request in enumerate(requests))
    )
    for channel in channels:
        await channel.close()
    return outcomes


async def _one(method: Any, request: StreamRequest, began_s: float) -> StreamOutcome:  # noqa: ANN401 - of grpc.aio
    message = service_pb2.ModelInferRequest(model_name=MODEL)
    for name, values in (("PROMPT", [0] * request.prompt), ("TOKENS", [request.tokens])):
        tensor = message.inputs.add(name=name, datatype="INT32", shape=[len(values)])
        tensor.contents.int_contents.extend(values)
    due_s = began_s + request.at_s
    await asyncio.sleep(due_s - time.monotonic())
    outcome = StreamOutcome()
    call = method()
    try:
        await call.write(message.SerializeToString())
        await call.done_writing()
        async for data in call:
            answer = service_pb2.ModelStreamInferResponse.FromString(data)
            if answer.error_message:
                outcome.error = answer.error_message
                continue
            outcome.last_s = time.monotonic() - due_s
            outcome.first_s = outcome.last_s if outcome.first_s is None else outcome.first_s
            outcome.responses += 1
    except grpc.aio.AioRpcError as error:
        outcome.error = error.details() or str(error.code())
    return outcome


def figures_of(requests: Sequence[StreamRequest], outcomes: Sequence[StreamOutcome]) -> dict[str, Any]:
    """Return the figures of the requests after the warm-up; times in ms."""
    measured = [each for request, each in zip(requests, outcomes, strict=True) if request.at_s >= WARMUP_S]
    answered = [each for each in measured if each.first_s is not None]
    firsts = [1000 * (each.first_s or 0.0) for each in answered]
    gaps = [
        (each.last_s - (each.first_s or 0.0)) * 1000 / (each.responses - 1) for each in answered if each.responses > 1
    ]
    on_time = sum(first <= SLO_FIRST_MS for first in firsts)
    first_ms, gap_ms = (np.percentile(each or [np.nan], [50, 99]).tolist() for each in (firsts, gaps))
    return {
        "streams": len(measured),
        "attainment": on_time / len(measured),
        "goodput_rps": on_time / (max(request.at_s for request in requests) - WARMUP_S),
        **dict(zip(("first_p50_ms", "first_p99_ms", "gap_p50_ms", "gap_p99_ms"), first_ms + gap_ms, strict=True)),
        "errors": Counter(each.error for each in measured if each.error),
    }


def simulated(
    tritons: int, load: float, requests: Sequence[StreamRequest], seconds: float, live_gap_ms: float | None = None
) -> dict[str, Any]:
    """Simulate slots over the requests of the live run.

    `tritons`: number of Tritons; `load`: rate as a fraction of `capacity_rps`; `requests`: the workload; `seconds`:
    measured window; `live_gap_ms`: median gap of the live run, to which times are stretched; None: as configured.
    """
    stretch = 1.0
    if live_gap_ms is not None:
        stretch = live_gap_ms / simulated(tritons, load, requests, seconds)["gap_p50_ms"]
    prefill_ms = PREFILL_MS + PREFILL_PER_TOKEN_MS * PROMPT_TOKENS[0]
    document = {
        "warmup_s": WARMUP_S,
        "duration_s": seconds,
        "workers": [{"count": tritons, "slots": SLOTS}],
        "models": [
            {
                "name": MODEL,
                "slo_ms": SLO_FIRST_MS,
                "profile": {"points_ms": {1: stretch * prefill_ms}, "max_batch": 1},
                "streaming": {"gap_ms": stretch * GAP_MS},
            }
        ],
        "arrivals": {"rate_rps": load * capacity_rps(tritons)},
        "simulation": {"slot_slowdown": SLOWDOWN},
    }
    same = RequestSequence(
        models=(MODEL,),
        slos_ns=(ms_to_ns(SLO_FIRST_MS),),
        at_ns=array("q", [round(each.at_s * 1e9) for each in requests]),
        model=array("q", bytes(8 * len(requests))),
        rows=None,
        apps=None,
        shapes=None,
        times_ms=array("d", [stretch * PREFILL_PER_TOKEN_MS * (r.prompt - PROMPT_TOKENS[0]) for r in requests]),
        responses=array("q", [each.tokens for each in requests]),
        rest_ns=array("q", [ms_to_ns(stretch * GAP_MS * (each.tokens - 1)) for each in requests]),
        slos_gap_ns=(NEVER_NS,),
    )
    run = RunSpec(Scenario.model_validate(document), PolicyChoice(name="symphony"), 1)
    total = simulate(run, requests=same).total
    return {
        "streams": total.accepted,
        "attainment": total.attainment,
        "goodput_rps": total.goodput_rps,
        "first_p50_ms": total.p50_ms,
        "first_p99_ms": total.p99_ms,
        "gap_p50_ms": total.gap_p50_ms,
        "gap_p99_ms": total.gap_p99_ms,
        "errors": total.dropped,
    }


def bench_streams(
    console: Console, *, seconds: float, tritons: Sequence[int], loads: Sequence[float], seed: int
) -> list[dict[str, Any]]:
    """Run the comparison and print it.

    `seconds`: measured window of each run; `tritons`: numbers of Tritons; `loads`: rates as fractions of
    `capacity_rps`; `seed`: seed of the workload.
    """
    found = []
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder, ExitStack() as stack:
        work = Path(folder)
        version = work / "models" / MODEL / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(SOURCE)
        (version.parent / "config.pbtxt").write_text(f'name: "{MODEL}"\n{CONFIG}')
        servers = [stack.enter_context(EmbeddedTriton([work / "models"])) for _ in range(max(tritons))]
        limits = {MODEL: {"max_concurrency": SLOTS, "slo_first_ms": SLO_FIRST_MS}}
        for count in tritons:
            addresses = [server.grpc_address for server in servers[:count]]
            for load in loads:
                requests = workload(load * capacity_rps(count), seconds, seed)
                for way, models in ((ROUND_ROBIN, None), (BYPASS, {}), (WITH_SLOTS, limits)):
                    outcomes = _run(addresses, requests, models, work)
                    found.append({"tritons": count, "load": load, "way": way, **figures_of(requests, outcomes)})
                again = simulated(count, load, requests, seconds, found[-1]["gap_p50_ms"])
                found.append({"tritons": count, "load": load, "way": SIMULATED, **again})
    print_figures(console, found)
    return found


def _run(
    addresses: Sequence[str], requests: Sequence[StreamRequest], models: dict[str, Any] | None, work: Path
) -> list[StreamOutcome]:
    """Send the workload: to the Tritons themselves, or with `models` to a Tidegate with these settings of models."""
    if models is None:
        return asyncio.run(send(addresses, requests))
    config = work / "tidegate.json"
    config.write_text(json.dumps({"tritons": list(addresses), "listen": "127.0.0.1:0", "models": models}))
    with proxy_process(work, "--config", str(config)) as proxy:
        return asyncio.run(send([proxy.grpc], requests))


def print_figures(console: Console, found: Sequence[dict[str, Any]]) -> None:
    """Print a line for each run."""
    columns = ("Tritons, load, way", "streams", "on time", "goodput /s", "first p50, p99 ms", "gap p99 ms")
    rows = (
        (
            f"{row['tritons']}, {row['load']:.0%}, {row['way']}",
            row["streams"],
            f"{row['attainment']:.1%}",
            f"{row['goodput_rps']:.1f}",
            f"{row['first_p50_ms']:,.0f}, {row['first_p99_ms']:,.0f}",
            f"{row['gap_p99_ms']:.0f}",
        )
        for row in found
    )
    print_table(console, f"first response within {SLO_FIRST_MS:g} ms", columns, rows)


def main() -> None:
    """Run the comparison."""
    parser = parser_of("bench.streams", __doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="Measured window of each run.")
    parser.add_argument("--tritons", type=int, nargs="+", default=[1, 2], help="Numbers of Tritons.")
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS, help="Rates as fractions of the capacity.")
    parser.add_argument("--seed", type=int, default=1, help="Seed of arrivals, prompts and lengths.")
    given = parser.parse_args()
    found = bench_streams(Console(), seconds=given.seconds, tritons=given.tritons, loads=given.loads, seed=given.seed)
    write_json(given.json, found)


if __name__ == "__main__":
    main()
