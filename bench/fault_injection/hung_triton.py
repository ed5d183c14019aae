"""Hazard: a Triton stopped by SIGSTOP while calls are in flight; when their clients get errors."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.models import Model
from bench.fault_injection.rig import OK, Rig, json_request, over_http, request

LIMIT_S = 10.0
"""Maximum seconds until an error: `limits.health_timeout_s` of 4 s, plus time for a busy machine."""
ROWS = [[0.0, 0.0]]


def run(rig: Rig) -> Result:
    """Stop a Triton during calls over gRPC and HTTP, to a scheduled and a bypassed model."""
    triton = rig.triton(Model("scheduled"), Model("passed", scheduling="bypass"))
    proxy = rig.tidegate(triton)
    client = rig.client(proxy.grpc)

    def over_grpc(model: str) -> bool:
        return client.call(request(model, ROWS), timeout_s=60)[0] is OK

    def http(model: str) -> bool:
        try:
            return over_http(proxy.http, f"/v2/models/{model}/infer", json_request(ROWS))[0] == 200
        except OSError:
            return False  # cut off

    ways = [(ask, model) for ask in (over_grpc, http) for model in ("scheduled", "passed")]
    if not all(ask(model) for ask, model in ways):
        raise SystemExit("not answered before the Triton was stopped")

    def told_after_s(number: int) -> float:
        ask, model = ways[number]
        began = time.monotonic()
        ask(model)
        return time.monotonic() - began

    with ThreadPoolExecutor(len(ways)) as pool:
        os.kill(triton.pid, signal.SIGSTOP)
        try:
            seconds = list(pool.map(told_after_s, range(len(ways))))
        finally:
            os.kill(triton.pid, signal.SIGCONT)
    names = [f"{'gRPC' if ask is over_grpc else 'HTTP'} {model}" for ask, model in ways]
    answered = dict(zip(names, seconds, strict=True))
    return Result(
        "answered after " + ", ".join(f"{took:.1f} s ({name})" for name, took in answered.items()),
        max(seconds) <= LIMIT_S,
        answered,
    )


HAZARD = Hazard(
    "hung_triton",
    "a Triton that hangs (SIGSTOP), calls of gRPC and HTTP in flight, scheduled and passed through",
    f"all answered within {LIMIT_S:g} s",
    run,
)
