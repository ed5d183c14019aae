"""Load on a Triton, or on a Tidegate in front of one, and what the clients saw of it.

An *open loop* sends on a schedule whatever the server does; a *closed loop* is N callers who wait for their answers.
Both give a `RunResult`, one row per request; its `summary(slo_ms)` judges the answers. `measure_usage` reads, from the
server's own statistics, how large its batches and how busy its instances were meanwhile.
"""

from tidegate_loadtest.closed_loop import run_closed_loop
from tidegate_loadtest.connection import Connection, LoadTestError
from tidegate_loadtest.model_inputs import RandomRequests, infer_request
from tidegate_loadtest.open_loop import run_open_loop
from tidegate_loadtest.recorder import Progress, RequestFactory
from tidegate_loadtest.result import RunResult, Summary
from tidegate_loadtest.server_stats import ServerUsage, StatsSnapshot, measure_usage, read_statistics

__all__ = [
    "Connection",
    "LoadTestError",
    "Progress",
    "RandomRequests",
    "RequestFactory",
    "RunResult",
    "ServerUsage",
    "StatsSnapshot",
    "Summary",
    "infer_request",
    "measure_usage",
    "read_statistics",
    "run_closed_loop",
    "run_open_loop",
]
