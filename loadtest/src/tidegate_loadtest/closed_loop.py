"""The closed loop: N callers, each sending its next request when the last was answered. Finds a server's capacity.

It slows down when the server does, so it says nothing about deadlines under a given load: that is the open loop's.
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

    A request is scheduled when its caller's last was answered, or had failed; it is given up after `timeout_s`.
    Requests of the warm-up leave no row in the result. Raises LoadTestError where none was sent in the window.
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
