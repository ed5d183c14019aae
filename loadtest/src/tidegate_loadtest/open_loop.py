"""Open loop: requests leave on schedule whatever the server does, like those of many independent clients."""

import asyncio
import gc
from collections.abc import Callable, Sequence

from tidegate_loadtest.connection import Connection
from tidegate_loadtest.recorder import Progress, Recorder, RequestFactory
from tidegate_loadtest.result import RunResult


async def run_open_loop(
    connection: Connection,
    arrivals_ns: Sequence[int],
    request_of: RequestFactory,
    *,
    window_ns: int,
    warmup_ns: int = 0,
    timeout_s: float = 30.0,
    lateness_limit_ms: float = 5.0,
    progress: Callable[[Progress], None] | None = None,
) -> RunResult:
    """Send the i-th request `arrivals_ns[i]` nanoseconds from now; return when the last is answered or has failed.

    The arrivals, in order, span `warmup_ns + window_ns`; those of the warm-up are sent but leave no row in the result.
    A request is abandoned `timeout_s` after it was sent. Raises LoadTestError if no arrival falls into the window.
    `lateness_limit_ms`: see `RunResult`; `progress`: progress callback.
    """
    stubs = connection.stubs
    # What is imported and drawn stays: a collection that walked it would make whoever is due late by tens of ms.
    gc.collect()
    gc.freeze()
    recorder = Recorder(warmup_ns=warmup_ns, timeout_s=timeout_s)
    async with recorder.reporting(progress), asyncio.TaskGroup() as sending:
        for index, at_ns in enumerate(arrivals_ns):
            due_ns = at_ns - warmup_ns
            if due_ns <= recorder.now_ns():
                await asyncio.sleep(0)  # behind schedule: what was issued must still leave, what was answered come in
            # uvloop rounds a sleep to whole milliseconds: it may wake early, and then spins for the last half.
            while (early_ns := due_ns - recorder.now_ns()) > 0:
                await asyncio.sleep(early_ns * 1e-9)
            sending.create_task(recorder.send(stubs[index % len(stubs)], request_of(index), index, due_ns))
    return recorder.result(window_ns, lateness_limit_ms=lateness_limit_ms)
