"""Command line of the load generator: a process of its own, so that it shares no interpreter with a server."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from random import Random
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from tidegate.commands.common import console_for_tables
from tidegate.workload import Arrivals, Gamma, Poisson, Uniform
from tidegate.workload.arrivals import NS_PER_S
from tidegate_loadtest.closed_loop import run_closed_loop
from tidegate_loadtest.connection import Connection, LoadTestError
from tidegate_loadtest.model_inputs import RandomRequests
from tidegate_loadtest.open_loop import run_open_loop
from tidegate_loadtest.progress_bar import progress_bar
from tidegate_loadtest.recorder import Progress
from tidegate_loadtest.report import print_report
from tidegate_loadtest.result import RunResult
from tidegate_loadtest.server_stats import ServerUsage, measure_usage
from tidegate_loadtest.shapes import Shapes, parse_shapes

app = typer.Typer(add_completion=False)


class Process(StrEnum):
    """Arrival process of an open loop."""

    poisson = "poisson"
    gamma = "gamma"
    uniform = "uniform"


@dataclass(frozen=True)
class _Job:
    """Parsed command line of the load generator."""

    target: str
    model: str
    arrivals: Arrivals | None
    """None: a closed loop."""
    concurrency: int
    duration_s: float
    warmup_s: float
    timeout_s: float
    lateness_limit_ms: float
    channels: int
    rows: int
    shapes: Shapes
    seed: int


@app.command()
def main(
    *,
    target: Annotated[str, typer.Option(help="HOST:PORT of the server's gRPC.")],
    model: Annotated[str, typer.Option(help="The model to ask.")],
    slo_ms: Annotated[float, typer.Option(min=0, help="An answer later than this after its schedule is a miss.")],
    rate: Annotated[float | None, typer.Option(min=0, help="Open loop: requests per second.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Closed loop: callers, instead of --rate.")] = None,
    process: Annotated[Process, typer.Option(help="Open loop: how arrivals are spaced.")] = Process.poisson,
    gamma_shape: Annotated[float, typer.Option(help="Of --process gamma: below 1 bursty, above 1 steady.")] = 0.25,
    duration_s: Annotated[float, typer.Option(min=0.001, help="Length of the measured window.")] = 10.0,
    warmup_s: Annotated[float, typer.Option(min=0, help="Load before the window, sent but not measured.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the arrivals and the tensors.")] = 0,
    rows: Annotated[int, typer.Option(min=1, help="Rows per request, along the batch dimension.")] = 1,
    shape: Annotated[
        list[str] | None, typer.Option(help="NAME:3,48,320: an input's dimensions without rows. Repeatable.")
    ] = None,
    timeout_s: Annotated[float, typer.Option(min=0.001, help="Seconds until a request is given up.")] = 30.0,
    lateness_limit_ms: Annotated[
        float, typer.Option(min=0, help="Highest p99 lateness of the load generator, in ms, at which a run counts.")
    ] = 5.0,
    channels: Annotated[int, typer.Option(min=1, help="TCP connections to spread the requests over.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, and no table.")] = False,
) -> None:
    """Send load to a model behind Triton or Tidegate, and report the latency and outcomes that clients see."""
    if (rate is None) == (concurrency is None):
        raise typer.BadParameter("give either --rate (open loop) or --concurrency (closed loop)")
    job = _Job(
        target=target,
        model=model,
        arrivals=None if rate is None else _arrivals(process, rate, gamma_shape),
        concurrency=concurrency or 0,
        duration_s=duration_s,
        warmup_s=warmup_s,
        timeout_s=timeout_s,
        lateness_limit_ms=lateness_limit_ms,
        channels=channels,
        rows=rows,
        shapes=parse_shapes(shape or ()),
        seed=seed,
    )
    errors = Console(stderr=True)
    try:
        with progress_bar(errors, warmup_s + duration_s) as show:
            result, usage = uvloop.run(_run(job, lambda progress: show(progress.elapsed_ns / NS_PER_S, str(progress))))
    except LoadTestError as error:
        errors.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error
    summary = result.summary(slo_ms)
    if as_json:
        asked = {"target": target, "model": model, "seed": seed, "rows": rows, "messages": dict(result.messages)}
        typer.echo(json.dumps(asked | {"summary": asdict(summary), "server": usage and asdict(usage)}))
    else:
        print_report(console_for_tables(), summary, usage, result.messages)


async def _run(job: _Job, progress: Callable[[Progress], None]) -> tuple[RunResult, ServerUsage | None]:
    window_ns, warmup_ns = round(job.duration_s * NS_PER_S), round(job.warmup_s * NS_PER_S)
    async with Connection(job.target, channels=job.channels) as connection:
        request_of = await RandomRequests.for_model(
            connection, job.model, rows=job.rows, shapes=job.shapes, seed=job.seed
        )
        if job.arrivals is None:
            run = run_closed_loop(
                connection,
                request_of,
                concurrency=job.concurrency,
                window_ns=window_ns,
                warmup_ns=warmup_ns,
                timeout_s=job.timeout_s,
                progress=progress,
            )
        else:
            run = run_open_loop(
                connection,
                list(job.arrivals.instants_ns(warmup_ns + window_ns, Random(job.seed))),
                request_of,
                window_ns=window_ns,
                warmup_ns=warmup_ns,
                timeout_s=job.timeout_s,
                lateness_limit_ms=job.lateness_limit_ms,
                progress=progress,
            )
        usage = asyncio.create_task(_usage(connection, job))
        try:
            return await run, await usage
        finally:
            usage.cancel()


async def _usage(connection: Connection, job: _Job) -> ServerUsage | None:
    """None where the server keeps no statistics, or is gone: what the clients saw is still worth a report."""
    try:
        return await measure_usage(connection, job.model, warmup_s=job.warmup_s, window_s=job.duration_s)
    except LoadTestError:
        return None


def _arrivals(process: Process, rate_rps: float, gamma_shape: float) -> Arrivals:
    try:
        match process:
            case Process.poisson:
                return Poisson(rate_rps)
            case Process.gamma:
                return Gamma(rate_rps, gamma_shape)
            case Process.uniform:
                return Uniform(rate_rps)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
