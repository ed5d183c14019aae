"""Hazard: the proxy is shut down while clients over gRPC and HTTP wait for executions that take too long."""

import signal
import threading
import time
from collections import Counter

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.models import Model
from bench.fault_injection.rig import Rig, json_request, outcome, over_http, request, until

DRAIN_S = 3.0
SPARE_S = 1.5
"""Seconds that a process takes to exit beyond its drain timeout."""


def run(rig: Rig) -> Result:
    """Shut down during calls of a minute, to a scheduled and a bypassed model."""
    triton = rig.triton(Model("scheduled"), Model("passed", scheduling="bypass"))
    proxy = rig.tidegate(triton, drain_timeout_s=DRAIN_S)
    client = rig.client(proxy.grpc)
    http_ends: Counter[str] = Counter()

    def ask(model: str) -> None:
        try:
            status, _ = over_http(proxy.http, f"/v2/models/{model}/infer", json_request([[60_000.0, 0.0]]))
            http_ends[str(status)] += 1
        except OSError:
            http_ends["cut off"] += 1

    models = ("scheduled", "passed")
    threads = [threading.Thread(target=ask, args=(model,)) for model in models]
    calls = [client.start(request(model, [[60_000, 0]]), timeout_s=90) for model in models]
    for thread in threads:
        thread.start()
    until(lambda: b"tidegate_in_flight_bytes 0.0" not in over_http(proxy.metrics, "/metrics")[1], 20)
    time.sleep(0.5)  # the others are on their way, too
    began = time.monotonic()
    proxy.send(signal.SIGTERM)
    proxy.wait(60)
    took_s = time.monotonic() - began
    ended = Counter(outcome(call)[0].name for call in calls)
    for thread in threads:
        thread.join()
    return Result(
        f"ended after {took_s:.1f} s of {DRAIN_S:g}; gRPC: {dict(ended)}, HTTP: {dict(http_ends)}",
        DRAIN_S - 0.5 <= took_s <= DRAIN_S + SPARE_S,
        {"took_s": took_s},
    )


HAZARD = Hazard(
    "drain_budget",
    f"SIGTERM while calls of a minute are in flight over gRPC and HTTP, drain_timeout_s {DRAIN_S:g}",
    f"ends within drain_timeout_s and {SPARE_S:g} s",
    run,
)
