"""Hazard: ten thousand requests cancelled at once."""

import time
from typing import Any

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.models import Model
from bench.fault_injection.rig import Rig, over_http, request, until

MODEL = "scripted"
MANY, AT_ONCE = 10_000, 500
LIMIT_S = 10.0


def run(rig: Rig) -> Result:
    """Cancel requests queued behind a running one; half as many must take about half as long, so that time is
    linear.
    """
    proxy = rig.tidegate(rig.triton(Model(MODEL)), policy="fifs", limits={"execution_timeout_s": 600})
    running = rig.client(proxy.grpc).start(request(MODEL, [[600_000, 0]]), timeout_s=600)
    until(lambda: b'tidegate_batch_rows_count{model="scripted"} 1' in over_http(proxy.metrics, "/metrics")[1], 60)
    seconds = {}
    for many in (MANY // 2, MANY):
        rig.tell(f"{many}")
        client = rig.client(proxy.grpc)
        message = request(MODEL, [[0, 0]]).SerializeToString()
        under_way: list[Any] = []
        for count in range(AT_ONCE, many + 1, AT_ONCE):
            # gRPC's core gives up calls at random while a thousand of them wait to be taken in.
            under_way += [client.start(message, timeout_s=120) for _ in range(AT_ONCE)]
            if until(lambda count=count: _queued(proxy.metrics) >= count, 60) is None:  # type: ignore[misc]
                raise SystemExit(f"{_queued(proxy.metrics):.0f} of {count} requests were queued")
        began = time.monotonic()
        for call in under_way:
            call.cancel()
        until(lambda: _queued(proxy.metrics) == 0, 60)
        seconds[str(many)] = time.monotonic() - began
    running.cancel()
    return Result(
        ", ".join(f"{took:.1f} s for {many}" for many, took in seconds.items()), seconds[str(MANY)] <= LIMIT_S, seconds
    )


def _queued(metrics: str) -> float:
    """What the metrics say."""
    page = over_http(metrics, "/metrics")[1].decode()
    lines = [line for line in page.splitlines() if line.startswith("tidegate_queue_length{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


HAZARD = Hazard(
    "cancellations",
    f"{MANY:,} requests that wait, cancelled at once: until none is left",
    f"{LIMIT_S:g} s or less, the client's own time included",
    run,
)
