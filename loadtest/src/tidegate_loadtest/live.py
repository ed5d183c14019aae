"""Sender of a scenario's requests at the same arrivals as in the simulator."""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.workload import RequestSequence, Scenario
from tidegate.workload.arrivals import NS_PER_S
from tidegate_loadtest.connection import Connection, LoadTestError
from tidegate_loadtest.open_loop import Progress, run_open_loop
from tidegate_loadtest.result import RunResult
from tidegate_loadtest.scenario_requests import ScenarioRequests
from tidegate_loadtest.server_stats import ServerUsage, measure_usage
from tidegate_loadtest.shapes import Shapes
from tidegate_loadtest.tenant_headers import TenantHeaders


@dataclass(frozen=True)
class SendingOptions:
    """Options that control how requests are sent."""

    shapes: Shapes
    channels: int = 1
    """Number of TCP connections for the requests."""
    timeout_s: float = 30.0
    """Time in seconds after which the client abandons a request."""
    lateness_limit_ms: float = 5.0
    """Limit in ms of the 99th percentile of lateness; above it the generator fell behind."""
    inputs: Mapping[str, Path] = field(default_factory=dict)
    """Folder of real inputs (input_files), by model; the other models get random tensors."""
    tls: Mapping[str, Path | str] | None = None
    """TLS files and server name, as in `Connection`; None for plaintext."""


@dataclass(frozen=True)
class LiveObservations:
    """Observations of the clients, and statistics of the server."""

    run: RunResult
    """Results; row i is request number `first + i`."""
    first: int
    """Number of the first request in the measured window."""
    usage: Mapping[str, ServerUsage]
    """Server's usage, by model; empty if the server keeps no statistics."""


async def send_scenario(
    target: str,
    scenario: Scenario,
    requests: RequestSequence,
    sending: SendingOptions,
    *,
    seed: int,
    progress: Callable[[Progress], None] | None = None,
) -> LiveObservations:
    """Send the requests of the warm-up and of the window; return when the last is answered or has failed.

    Raises LoadTestError, before any of them is sent, if the server is unreachable, a model is missing or takes fewer
    rows, or its shapes cannot be drawn. `target`: HOST:PORT of the server; `seed`: seed of the tensors; `progress`:
    progress callback.
    """
    warmup_ns, window_ns = (round(seconds * NS_PER_S) for seconds in (scenario.warmup_s, scenario.duration_s))
    async with Connection(target, channels=sending.channels, tls=sending.tls) as connection:
        request_of = await ScenarioRequests.drawn(
            connection, requests, shapes=sending.shapes, seed=seed, inputs=sending.inputs
        )
        headers_of = TenantHeaders(requests, scenario.folder)
        streaming_models = {model.name for model in scenario.models if model.streaming}
        streaming = [name in streaming_models for name in requests.models]
        usage = asyncio.create_task(_usage(connection, scenario))
        try:
            run = await run_open_loop(
                connection,
                requests.at_ns,
                request_of,
                window_ns=window_ns,
                warmup_ns=warmup_ns,
                timeout_s=sending.timeout_s,
                lateness_limit_ms=sending.lateness_limit_ms,
                progress=progress,
                is_stream=lambda index: streaming[requests.model[index]],
                headers_of=headers_of,
            )
            return LiveObservations(run, bisect_left(requests.at_ns, warmup_ns), await usage)
        finally:
            usage.cancel()


async def _usage(connection: Connection, scenario: Scenario) -> dict[str, ServerUsage]:
    names = [model.name for model in scenario.models]
    spans = {"warmup_s": scenario.warmup_s, "window_s": scenario.duration_s}
    try:
        usages = await asyncio.gather(*(measure_usage(connection, name, **spans) for name in names))
    except LoadTestError:
        return {}  # what the clients saw is still worth a report
    return dict(zip(names, usages, strict=True))
