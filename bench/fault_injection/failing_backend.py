"""Hazard: a backend that fails requests, and what metrics count."""

import re
from collections import Counter

import grpc

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.models import Model
from bench.fault_injection.rig import Rig, over_http, request

REQUESTS = 20


def run(rig: Rig) -> Result:
    """Send requests one after the other, each with a row that fails, and read the metrics."""
    proxy = rig.tidegate(rig.triton(Model("told", slo_ms=1000)))
    client = rig.client(proxy.grpc)
    told = Counter(client.call(request("told", [[1, 1]]))[0] for _ in range(REQUESTS))
    page = over_http(proxy.metrics, "/metrics")[1].decode()
    found = re.findall(r'tidegate_requests_total\{.*outcome="(\w+)".*\} (\S+)', page)
    counts = Counter[str]()
    for outcome, count in found:
        counts[outcome] += round(float(count))
    return Result(
        f"counted as {counts['on_time']} in time, {counts['late']} late, {counts['failed']} failed; clients were told "
        + ", ".join(f"{count} {code.name}" for code, count in told.items()),
        (counts["failed"], counts["on_time"], counts["late"], told[grpc.StatusCode.OK]) == (REQUESTS, 0, 0, 0),
        dict(counts),
    )


HAZARD = Hazard(
    "failing_backend",
    f"{REQUESTS} requests that their backend fails",
    "all counted as failed",
    run,
)
