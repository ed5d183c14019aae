"""The server's own statistics, from made-up counters and from a real Triton."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import uvloop
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as pb

from tests.python_models import write_model
from tidegate_loadtest.connection import Connection
from tidegate_loadtest.model_inputs import infer_request
from tidegate_loadtest.open_loop import run_open_loop
from tidegate_loadtest.server_stats import ServerUsage, StatsSnapshot, count_instances, read_statistics

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.loadtest.conftest import FakeTriton
    from tidegate_proxy.tritons.embedded import EmbeddedTriton

MS = 1_000_000


def test_usage_is_the_difference_of_two_snapshots() -> None:
    before = StatsSnapshot(
        requests=5,
        executions=5,
        busy_ns=7 * MS,
        executions_of={2: 5},
        requests_ns=MS,
        executing_ns=MS,
    )
    after = StatsSnapshot(
        requests=25,
        executions=15,
        busy_ns=107 * MS,
        executions_of={8: 2, 2: 5, 3: 8},
        requests_ns=201 * MS,
        executing_ns=81 * MS,
    )
    assert ServerUsage.between(before, after, instances=2) == ServerUsage(
        executions=10,
        mean_request_ms=10.0,
        mean_executing_ms=4.0,
        busy_ns=100 * MS,
        executions_of={3: 8, 8: 2},
        instances=2,
    )


def test_a_model_that_did_not_run_has_no_batch_size() -> None:
    idle = StatsSnapshot(requests=5, executions=5, busy_ns=7, executions_of={2: 5}, requests_ns=9, executing_ns=4)
    assert ServerUsage.between(idle, idle, instances=1) == ServerUsage(
        executions=0,
        mean_request_ms=None,
        mean_executing_ms=None,
        busy_ns=0,
        executions_of={},
        instances=1,
    )


def test_counters_are_summed_over_versions_and_batch_sizes(triton: "FakeTriton") -> None:
    for version in ("1", "2"):
        statistics = triton.statistics.model_stats.add(version=version, inference_count=30, execution_count=4)
        statistics.inference_stats.success.count = 20
        statistics.inference_stats.success.ns = 50
        statistics.inference_stats.compute_infer.ns = 10**12  # once per request: must not be used
        for batch_size in (2, 8):
            batches = statistics.batch_stats.add(batch_size=batch_size)
            batches.compute_input.ns, batches.compute_infer.ns, batches.compute_output.ns = 1, 100, 10
            batches.compute_infer.count = 2

    async def read() -> StatsSnapshot:
        async with Connection(triton.target) as connection:
            return await read_statistics(connection, "echo")

    snapshot = uvloop.run(read())
    assert (snapshot.requests, snapshot.executions, snapshot.busy_ns) == (40, 8, 444)
    assert snapshot.executions_of == {2: 4, 8: 4}
    assert snapshot.requests_ns == 100


def test_instances_are_counted_per_gpu() -> None:
    group = model_config_pb2.ModelInstanceGroup
    assert count_instances([group(count=2), group(count=3, gpus=[0, 1]), group(count=5, passive=True)]) == 8


SLEEPER = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.05)
        return [pb_utils.InferenceResponse([pb_utils.get_input_tensor_by_name(r, "X")]) for r in requests]
"""
SLEEPER_CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { count: 2 kind: KIND_CPU }
dynamic_batching { }
"""


def test_a_real_triton_counts_the_executions_of_batches_once(
    start_triton: "Callable[..., EmbeddedTriton]", tmp_path: Path
) -> None:
    write_model(tmp_path, "sleeper", SLEEPER, SLEEPER_CONFIG)
    server = start_triton([tmp_path])

    def in_batches(snapshot: StatsSnapshot) -> int:
        return sum(rows * count for rows, count in snapshot.executions_of.items())

    def request_of(_index: int) -> pb.ModelInferRequest:
        return infer_request("sleeper", {"X": np.zeros((1, 1), np.float32)})

    async def run() -> tuple[StatsSnapshot, StatsSnapshot, int]:
        async with Connection(server.grpc_address) as connection:
            before = await read_statistics(connection, "sleeper")
            result = await run_open_loop(connection, [0] * 100, request_of, window_ns=500 * MS)
            async with asyncio.timeout(30):
                # Triton answers the requests of a batch first, then counts them, and then the batch.
                while in_batches(after := await read_statistics(connection, "sleeper")) < len(result.ok):
                    await asyncio.sleep(0.01)
            return before, after, len(result.ok)

    before, after, answered = uvloop.run(run())
    usage = ServerUsage.between(before, after, instances=2)
    assert after.requests - before.requests == answered
    assert usage.executions < answered
    assert sum(usage.executions_of.values()) == usage.executions
    assert in_batches(after) - in_batches(before) == answered
    # Each execution sleeps 50 ms, whatever is in it: counted once per execution, not once per request. A busy machine
    # makes executions longer, never shorter.
    assert after.busy_ns - before.busy_ns >= usage.executions * 50 * MS
