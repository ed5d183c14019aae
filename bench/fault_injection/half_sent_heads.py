"""Three hundred clients that send half a head and no more."""

import socket
import time
from contextlib import ExitStack

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.models import Model
from bench.fault_injection.rig import OK, Rig, over_http, request

CONNECTIONS, CHECKS = 300, 20
LIMIT_S = 1.0
HALF = {
    "http": b"POST /v2/models/told/infer HTTP/1.1\r\nHost: x\r\nContent-Le",
    "grpc": b"PRI * HTTP/2.0\r\n\r\nSM",
    "metrics": b"GET /metrics HTTP/1.1\r\nHo",
}


def run(rig: Rig) -> Result:
    """To each of the three services as many; then health checks, and an inference, on new connections."""
    proxy = rig.tidegate(rig.triton(Model("told")))
    with ExitStack() as held:
        for service, half in HALF.items():
            host, _, port = str(getattr(proxy, service)).rpartition(":")
            for _ in range(CONNECTIONS):
                connection = held.enter_context(socket.create_connection((host, int(port)), timeout=20))
                connection.sendall(half)
        well, longest_s = 0, 0.0
        for _ in range(CHECKS):
            began = time.monotonic()
            well += over_http(proxy.http, "/v2/health/ready", timeout_s=20)[0] == 200
            well += over_http(proxy.metrics, "/metrics", timeout_s=20)[0] == 200
            with rig.client(proxy.grpc) as client:
                well += client.call(request("told", [[0, 0]]), timeout_s=20)[0] is OK
            longest_s = max(longest_s, time.monotonic() - began)
    return Result(
        f"{well} of {3 * CHECKS} checks answered, the longest round of three {longest_s * 1e3:.0f} ms",
        well == 3 * CHECKS and longest_s <= LIMIT_S,
        {"answered": well, "longest_s": longest_s},
    )


HAZARD = Hazard(
    "half_sent_heads",
    f"{CONNECTIONS} half-sent heads to each of HTTP, gRPC and metrics",
    "health checks are blocked",
    f"all checks answered, within {LIMIT_S:g} s",
    run,
)
