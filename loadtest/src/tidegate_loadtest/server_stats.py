"""Statistics of a server over a span of time: batch sizes and utilization of its instances.

Triton's `inference_stats` adds the duration of an execution once per *request* in it: a batch of eight counts eight
times. Only `batch_stats` counts executions once, so utilization uses those. `inference_count` counts rows.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as pb

from tidegate.api import NS_PER_MS
from tidegate_loadtest.connection import ANSWER_WITHIN_S, Connection


@dataclass(frozen=True)
class StatsSnapshot:
    """Counters of a model since its server started, over all its versions."""

    requests: int
    """Number of successful requests."""
    executions: int
    busy_ns: int
    """Compute time in ns, inputs and outputs included, of all executions on all instances."""
    executions_of: Mapping[int, int]
    """Number of executions by their rows."""
    requests_ns: int
    """Total time in ns that successful requests spent in the server, queueing included."""
    executing_ns: int
    """Total execution time in ns, counted once for each request."""


@dataclass(frozen=True)
class ServerUsage:
    """Usage of a model between two snapshots of the server's statistics; the figures are None if the model did
    not run.
    """

    executions: int
    mean_request_ms: float | None
    """Mean time of a request in the server in ms, queueing included."""
    mean_executing_ms: float | None
    """Mean duration in ms of the execution that a request was part of."""
    busy_ns: int
    """Compute time in ns."""
    executions_of: Mapping[int, int]
    """Number of executions by their rows, for the sizes that occurred."""
    instances: int
    """Number of concurrent executions of the model."""

    @classmethod
    def between(cls, before: StatsSnapshot, after: StatsSnapshot, *, instances: int) -> "ServerUsage":
        """Return the difference of two snapshots for a model with this many instances."""
        executions = after.executions - before.executions
        requests = after.requests - before.requests
        grown = {rows: count - before.executions_of.get(rows, 0) for rows, count in after.executions_of.items()}
        return cls(
            executions=executions,
            mean_request_ms=(after.requests_ns - before.requests_ns) / NS_PER_MS / requests if requests else None,
            mean_executing_ms=(after.executing_ns - before.executing_ns) / NS_PER_MS / requests if requests else None,
            busy_ns=after.busy_ns - before.busy_ns,
            executions_of={rows: count for rows, count in sorted(grown.items()) if count},
            instances=instances,
        )


async def read_statistics(connection: Connection, model: str) -> StatsSnapshot:
    """Read a model's counters now. Raises LoadTestError for an unknown model."""
    call = connection.stubs[0].ModelStatistics(pb.ModelStatisticsRequest(name=model), timeout=ANSWER_WITHIN_S)
    versions = (await connection.ask(call)).model_stats
    executions_of: Counter[int] = Counter()
    for version in versions:
        executions_of.update({batches.batch_size: batches.compute_infer.count for batches in version.batch_stats})
    return StatsSnapshot(
        requests=sum(version.inference_stats.success.count for version in versions),
        executions=sum(version.execution_count for version in versions),
        busy_ns=sum(
            batches.compute_input.ns + batches.compute_infer.ns + batches.compute_output.ns
            for version in versions
            for batches in version.batch_stats
        ),
        executions_of=executions_of,
        requests_ns=sum(version.inference_stats.success.ns for version in versions),
        executing_ns=sum(
            version.inference_stats.compute_input.ns
            + version.inference_stats.compute_infer.ns
            + version.inference_stats.compute_output.ns
            for version in versions
        ),
    )


async def measure_usage(connection: Connection, model: str, *, warmup_s: float, window_s: float) -> ServerUsage:
    """Read the counters `warmup_s` from now and `window_s` later: beside a run, exactly its measured window.

    An execution counts when it ends, so short windows over long executions are off by up to one per instance.
    """
    instances = count_instances((await connection.model_config(model)).instance_group)
    await asyncio.sleep(warmup_s)
    before = await read_statistics(connection, model)
    await asyncio.sleep(window_s)
    after = await read_statistics(connection, model)
    return ServerUsage.between(before, after, instances=instances)


def count_instances(groups: Iterable[model_config_pb2.ModelInstanceGroup]) -> int:
    """Return the number of concurrent executions of a model. A group's `count` is per GPU."""
    return sum(group.count * max(len(group.gpus), 1) for group in groups if not group.passive) or 1
