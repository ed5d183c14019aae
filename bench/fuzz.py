"""Fuzzing: a hundred thousand malformed inputs over gRPC and HTTP to `tidegate serve` before a real Triton.

    python -m bench.fuzz [--inputs N] [--seed N] [--only INDEX] [--json FILE]

Inputs are requests, calls, streams, HTTP messages and raw bytes, with forged names of regions and parameters, metadata,
slow senders and decompression bombs. Each is generated from the seed and its number, so that `--only INDEX` repeats it.
Fails if the proxy or Triton exits, an input is neither answered nor closed in time, the log has an internal error, a
well-formed request between the inputs fails, or the proxy leaks memory, threads or descriptors.
"""

import asyncio
import itertools
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from rich.console import Console
from rich.progress import Progress
from tritonclient.grpc import service_pb2

from bench.common import console_of, parser_of, write_json
from bench.fuzz_inputs import INFLATED, MODEL, WORDS, Input, good_request, make_input
from bench.proxy_process import ProxyProcess, proxy_before
from tidegate_proxy.tritons.embedded import EmbeddedTriton

CALLERS = 48
ANSWER_WITHIN_S = 60.0
PATIENCE_S = 1.0
"""Seconds that an unanswered connection waits before its sending side is closed."""
GOOD_EVERY = 200
"""Number of inputs between two well-formed requests."""
WARM_UP = 2000
"""Number of inputs before the first measurement of memory, while caches and pools fill."""
MOST_GROWTH_MIB = 24.0
MOST_NEW_DESCRIPTORS = 8
SETTLES_WITHIN_S = 60.0
"""Seconds for descriptors to return to normal; idle connections to Triton are kept for 15 s."""
PIECE_PAUSE_S = 0.02
LIMITS = f"""
version: 1
tritons: [localhost:8001]
limits: {{max_message_bytes: {INFLATED // 4}}}
"""
"""Configuration of the proxy; flags replace the address. Bombs inflate to more than its limit."""
FAILURES = re.compile(r"Traceback|failed\b.*\b(Error|Exception)|internal error|CRITICAL")
CONFIG = """
backend: "python"
max_batch_size: 8
input {{ name: "X" data_type: TYPE_{0} dims: [ {1} ] }}
output {{ name: "Y" data_type: TYPE_{0} dims: [ {1} ] }}
parameters {{ key: "tidegate_scheduling" value: {{ string_value: "batched" }} }}
"""
ECHO = """
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb.get_input_tensor_by_name(request, "X") for request in requests]
        return [pb.InferenceResponse([pb.Tensor("Y", tensor.as_numpy())]) for tensor in inputs]
"""


@dataclass
class Findings:
    """Results of a run."""

    outcomes: Counter[str] = field(default_factory=Counter)
    """Number of inputs by transport and status."""
    hung: list[int] = field(default_factory=list)
    """Numbers of inputs neither answered nor closed in time."""
    wrong: list[str] = field(default_factory=list)
    """Violations, each as a message."""


def echo_models(repository: Path, models: Mapping[str, tuple[str, str]]) -> None:
    """Write models that return X as Y, with the type and dimensions of both."""
    for name, kind_and_dims in models.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(CONFIG.format(*kind_and_dims))
        (version / "model.py").write_text(ECHO)


@contextmanager
def victim(folder: Path) -> Iterator[tuple[EmbeddedTriton, ProxyProcess]]:
    """Start a Triton with the models under attack, and a proxy before it; yield both until the block ends."""
    echo_models(folder / "models", {MODEL: ("FP32", "-1"), WORDS: ("STRING", "1")})
    config = folder / "tidegate.yaml"
    config.write_text(LIMITS)
    with (
        EmbeddedTriton([folder / "models"]) as triton,
        proxy_before(triton, folder, "--config", str(config)) as proxy,
    ):
        yield triton, proxy


async def attack(
    proxy: ProxyProcess, seed: int, numbers: Iterator[int], findings: Findings, done: Callable[[], None]
) -> None:
    """Send the inputs with these numbers, many concurrently.

    `proxy`: the target; `seed`: of the inputs; `numbers`: of the inputs; `findings`: where results are added; `done`:
    progress.
    """
    async with grpc.aio.insecure_channel(proxy.grpc, options=[("grpc.max_send_message_length", -1)]) as channel:

        async def caller() -> None:
            for number in numbers:
                attempt = make_input(seed, number)
                try:
                    async with asyncio.timeout(ANSWER_WITHIN_S):
                        findings.outcomes[f"{attempt.way} {await send(proxy, channel, attempt)}"] += 1
                except TimeoutError:
                    findings.hung.append(number)
                if number % GOOD_EVERY == 0:
                    await _check_good(channel, number, findings)
                done()

        async with asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(caller())


async def send(proxy: ProxyProcess, channel: grpc.aio.Channel, attempt: Input) -> str:
    """Send an input and return its outcome. Raises TimeoutError if there is none in time."""
    if attempt.way in ("http", "tcp"):
        assert isinstance(attempt.content, bytes)
        return await _over_a_socket(proxy.http if attempt.way == "http" else proxy.grpc, attempt)
    compression = grpc.Compression.Gzip if attempt.compressed else None
    how: dict[str, Any] = {
        "timeout": ANSWER_WITHIN_S, "metadata": attempt.metadata or None, "compression": compression
    }  # fmt: skip
    method = f"/inference.GRPCInferenceService/{attempt.method or 'ModelStreamInfer'}"
    try:
        if attempt.way == "unary":
            await channel.unary_unary(method)(attempt.content, **how)
        else:
            async for _ in channel.stream_stream(method)(iter(attempt.content), **how):
                pass
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and "Deadline" in (error.details() or ""):
            raise TimeoutError from error
        return str(error.code()).removeprefix("StatusCode.")
    return "OK"


async def _over_a_socket(address: str, attempt: Input) -> str:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    received = b""
    try:
        assert isinstance(attempt.content, bytes)
        size = -(-len(attempt.content) // attempt.pieces) or 1
        for at in range(0, len(attempt.content), size):
            writer.write(attempt.content[at : at + size])
            await writer.drain()
            if attempt.pieces > 1:
                await asyncio.sleep(PIECE_PAUSE_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                received = await reader.read(1 << 16)
        writer.write_eof()  # what waits for more learns that no more comes
        received += await reader.read()
    except OSError:
        pass  # it was cut off
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
    found = re.match(rb"HTTP/1\.[01] (\d{3})", received)
    return found[1].decode() if found else "closed"


async def _check_good(channel: grpc.aio.Channel, number: int, findings: Findings) -> None:
    request = good_request((MODEL, WORDS)[number // GOOD_EVERY % 2], 2)
    try:
        answer = await channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(
            request.SerializeToString(), timeout=ANSWER_WITHIN_S
        )
    except grpc.aio.AioRpcError as error:
        findings.wrong.append(f"after input {number} a good request got {error.code()}: {error.details()}")
        return
    if service_pb2.ModelInferResponse.FromString(answer).raw_output_contents[0] != request.raw_input_contents[0]:
        findings.wrong.append(f"after input {number} a good request got a wrong answer")


def fuzz(inputs: int, seed: int, console: Console, only: int | None = None) -> Findings:
    """Send inputs to a proxy and judge the results.

    `inputs`: number of inputs; `seed`: of the inputs; `only`: number of the only input to send; None: all.
    """
    findings = Findings()
    with tempfile.TemporaryDirectory(prefix="tidegate-fuzz-") as work, victim(Path(work)) as (triton, proxy):
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            done = partial(progress.advance, progress.add_task("malformed input", total=inputs))
            numbers = iter(range(inputs)) if only is None else iter([only])
            asyncio.run(attack(proxy, seed, itertools.islice(numbers, WARM_UP), findings, done))
            before = proxy.usage()
            asyncio.run(attack(proxy, seed, numbers, findings, done))
        _judge(findings, triton, proxy, before, compare=inputs > WARM_UP)
    return findings


def _judge(
    findings: Findings, triton: EmbeddedTriton, proxy: ProxyProcess, before: dict[str, float], *, compare: bool
) -> None:
    if findings.hung:
        findings.wrong.append(f"inputs {findings.hung[:20]} were neither answered nor closed in {ANSWER_WITHIN_S:g} s")
    if not proxy.running:
        findings.wrong.append(f"the proxy died:\n{proxy.log[-3000:]}")
        return
    if not triton.running:
        findings.wrong.append(f"Triton died:\n{triton.log_text[-3000:]}")
    if found := FAILURES.search(proxy.log):
        findings.wrong.append(f"the proxy's log: {proxy.log[max(0, found.start() - 500) : found.end() + 1500]}")
    give_up = time.monotonic() + SETTLES_WITHIN_S
    while proxy.usage()["descriptors"] > before["descriptors"] + MOST_NEW_DESCRIPTORS and time.monotonic() < give_up:
        time.sleep(0.1)
    after = proxy.usage()
    findings.outcomes["memory before, MiB"], findings.outcomes["memory after, MiB"] = (
        round(usage["memory_mib"]) for usage in (before, after)
    )
    if not compare:
        return
    if after["memory_mib"] > before["memory_mib"] + MOST_GROWTH_MIB:
        findings.wrong.append(f"memory grew: {before} -> {after}")
    if after["descriptors"] > before["descriptors"] + MOST_NEW_DESCRIPTORS:
        findings.wrong.append(f"descriptors were kept: {before} -> {after}")
    if after["threads"] > before["threads"] + 4:
        findings.wrong.append(f"threads were kept: {before} -> {after}")


def main() -> None:
    """Run the fuzzer and print the results."""
    parser = parser_of("bench.fuzz", __doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="other inputs (default: %(default)s)")
    parser.add_argument("--only", type=int, metavar="INDEX", help="send the input of this number alone")
    arguments = parser.parse_args()
    console = console_of(120)
    started_s = time.monotonic()
    findings = fuzz(arguments.inputs, arguments.seed, console, arguments.only)
    for outcome, count in sorted(findings.outcomes.items()):
        console.print(f"{outcome:32}{count:>9,}")
    console.print(f"{time.monotonic() - started_s:.0f} s, seed {arguments.seed}")
    write_json(arguments.json, {"outcomes": findings.outcomes, "wrong": findings.wrong})
    for words in findings.wrong:
        console.print(f"[red]{words}", markup=False)
    raise SystemExit(1 if findings.wrong else 0)


if __name__ == "__main__":
    main()
