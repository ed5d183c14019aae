"""Batching settings of the servers of a comparison, as they report them."""

from collections.abc import Iterable
from dataclasses import dataclass

from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as pb

from tidegate_loadtest.connection import ANSWER_WITHIN_S, Connection, LoadTestError
from tidegate_loadtest.server_stats import count_instances


@dataclass(frozen=True)
class BatchingSettings:
    """Batching settings of one server."""

    server: str
    """Name and version of the server."""
    models: dict[str, str]
    """Batching of each model, as text."""


async def read_settings(connection: Connection, models: Iterable[str]) -> BatchingSettings:
    """Query the settings of a server. Raises LoadTestError for an unknown model."""
    found = {name: in_words(await connection.model_config(name)) for name in models}
    request = pb.ServerMetadataRequest()
    try:
        server = await connection.ask(connection.stubs[0].ServerMetadata(request, timeout=ANSWER_WITHIN_S))
    except LoadTestError:  # it does not tell everybody: no reason not to measure it
        return BatchingSettings("unknown", found)
    return BatchingSettings(f"{server.name} {server.version}".strip(), found)


def in_words(config: model_config_pb2.ModelConfig) -> str:
    """Describe a model's batching: `up to 16 rows, dynamic_batching (delay 10 ms), 2 instances`."""
    size = f"up to {config.max_batch_size} rows" if config.max_batch_size > 0 else "unbatched"
    if config.HasField("dynamic_batching"):
        batching = config.dynamic_batching
        details = [f"delay {batching.max_queue_delay_microseconds / 1000:g} ms"]
        if batching.preferred_batch_size:
            details.append(f"preferred {', '.join(map(str, batching.preferred_batch_size))}")
        policy = batching.default_queue_policy
        if policy.default_timeout_microseconds:
            details.append(f"timeout {policy.default_timeout_microseconds / 1000:g} ms")
        if policy.max_queue_size:
            details.append(f"queue of at most {policy.max_queue_size}")
        how = f"dynamic_batching ({', '.join(details)})"
    else:
        how = "no dynamic_batching"
    instances = count_instances(config.instance_group)
    return f"{size}, {how}, {instances} instance{'s' * (instances > 1)}"
