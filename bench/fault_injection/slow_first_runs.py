"""Hazard: two slow executions among the first eight, and the time until Tidegate accepts requests again."""

import time
from typing import Any

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.models import Model
from bench.fault_injection.rig import OK, Rig, request

MODEL = "scripted"
SLO_MS, STAGE_MS = 100.0, 5.0
EVERY_S, PATIENCE_S = 0.025, 40.0
LIMIT_S = 1.0


def run(rig: Rig) -> Result:
    """Start a new Tidegate for each duration of the slow executions, then send requests at a steady rate."""
    triton = rig.triton(Model(MODEL, slo_ms=SLO_MS))
    seconds: dict[str, float] = {}
    for slow_ms in (1000,) if rig.quick else (350, 1000, 3000):
        rig.tell(f"{slow_ms} ms")
        proxy = rig.tidegate(triton, policy="symphony")
        client = rig.client(proxy.grpc)
        for number in range(8):
            client.call(request(MODEL, [[slow_ms if number in (3, 5) else STAGE_MS, 0]]))
        began = time.monotonic()
        answered: list[float] = []

        def note(call: Any, answered: list[float] = answered) -> None:  # noqa: ANN401 - grpc is untyped
            if call.code() is OK:
                answered.append(time.monotonic())

        while not answered and time.monotonic() - began < PATIENCE_S:
            client.start(request(MODEL, [[STAGE_MS, 0]])).add_done_callback(note)
            time.sleep(EVERY_S)
        seconds[f"{slow_ms} ms"] = (answered[0] if answered else time.monotonic()) - began
    return Result(
        ", ".join(f"{took:.2f} s after stages of {slow}" for slow, took in seconds.items()),
        max(seconds.values()) <= LIMIT_S,
        seconds,
    )


HAZARD = Hazard(
    "slow_first_runs",
    f"two slow stages among the first eight, SLO {SLO_MS:g} ms: how long no answer is given",
    f"answers again within {LIMIT_S:g} s",
    run,
)
