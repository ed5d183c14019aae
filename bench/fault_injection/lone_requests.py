"""Hazard: a lone request on an idle worker of a busy machine, which must not be dropped."""

import subprocess
import sys
import time

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.models import Model
from bench.fault_injection.rig import OK, Rig, request

MODEL = "scripted"
SLO_MS, STAGE_MS = 100.0, 5.0
REQUESTS, BUSY = 40, 3


def run(rig: Rig) -> Result:
    """Send one request at a time beside processes that keep the CPUs busy."""
    triton = rig.triton(Model(MODEL, slo_ms=SLO_MS))
    message = request(MODEL, [[STAGE_MS, 0]])
    dropped = {}
    for policy in ("symphony", "fifs"):
        rig.tell(policy)
        client = rig.client(rig.tidegate(triton, policy=policy).grpc)
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
        try:
            dropped[policy] = 0
            for _ in range(REQUESTS):
                dropped[policy] += client.call(message)[0] is not OK
                time.sleep(0.02)
        finally:
            for process in busy:
                process.kill()
                process.wait()
    return Result(
        ", ".join(f"{policy} drops {count} of {REQUESTS}" for policy, count in dropped.items()),
        not any(dropped.values()),
        dropped,
    )


HAZARD = Hazard(
    "lone_requests",
    f"lone requests on an idle worker, SLO {SLO_MS:g} ms, stages of {STAGE_MS:g} ms, {BUSY} busy processes beside",
    "neither drops any",
    run,
)
