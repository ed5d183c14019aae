"""Closed loop: N clients that each send the next request after the last response. Measures a server's capacity.

It slows down with the server, so it does not measure SLO attainment at a given load: use the open loop for that.
"""

import asyncio
from collections.abc import Callable
from itertools import count

from tidegate_loadtest.connection import Connection
from tidegate_loadtest.recorder import Progress, Recorder, RequestFactory
from tidegate_loadtest.result import RunResult


async def run_closed_loop(
    connection: Connection,
    request_of: RequestFactory,
    *,
    concurrency: int,
    window_ns: int,
    warmup_ns: int = 0,
    timeout_s: float = 30.0,
    progress: Callable[[Progress], None] | None = None,
) -> RunResult:
    """Keep `concurrency` requests in flight for `warmup_ns + window_ns`.

    A request is scheduled when the previous one of its client was answered or failed; it is abandoned after
    `timeout_s`. Requests of the warm-up leave no row in the result. Raises LoadTestError if none was sent in the
    window.
    """
    recorder = Recorder(warmup_ns=warmup_ns, timeout_s=timeout_s)
    indices = count()

    async def call(caller: int) -> None:
        stub = connection.stubs[caller % len(connection.stubs)]
        while (now_ns := recorder.now_ns()) < window_ns:
            index = next(indices)
            await recorder.send(stub, request_of(index), index, now_ns)

    async with recorder.reporting(progress), asyncio.TaskGroup() as callers:
        for caller in range(concurrency):
            callers.create_task(call(caller))
    return recorder.result(window_ns)
