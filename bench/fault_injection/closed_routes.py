"""A closed API, asked for by request targets that two servers could read as two paths."""

import socket
from collections import Counter

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.models import Model
from bench.fault_injection.rig import Rig, over_http

UNLOAD = "/v2/repository/models/told/unload"
TARGETS = (
    UNLOAD, f"http://x{UNLOAD}", f"http://x{UNLOAD}?a#b", f"HTTP://x{UNLOAD}?#", f"/{UNLOAD}", f"//x{UNLOAD}?#",
    f"{UNLOAD}#", "/v2/./repository/models/told/unload", "/v2/x/../repository/models/told/unload",
    "/v2/x/%2e%2e/repository/models/told/unload", "/v2/repository%2Fmodels/told/unload",
    "/v2/%72epository/models/told/unload", "/v2\\repository/models/told/unload", f"http://x#{UNLOAD}?#", f"*{UNLOAD}",
)  # fmt: skip


def run(rig: Rig) -> Result:
    """Each target once, on a connection of its own; then the model is asked for."""
    triton = rig.triton(Model("told"), options=["--model-control-mode=explicit", "--load-model=told"])
    proxy = rig.tidegate(triton, restricted=[{"apis": ["model-repository"], "closed": True}])
    host, _, port = proxy.http.rpartition(":")
    statuses: Counter[str] = Counter()
    for target in TARGETS:
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            head = f"POST {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{{}}"
            connection.sendall(head.encode())
            answer = connection.makefile("rb").readline().split()
            statuses[answer[1].decode() if answer else "closed"] += 1
    ready = over_http(triton.http_address, "/v2/models/told/ready")[0]
    return Result(
        f"{dict(statuses)}; afterwards the model is {'ready' if ready == 200 else 'unloaded'}",
        ready == 200 and set(statuses) <= {"400", "403", "closed"},
    )


HAZARD = Hazard(
    "closed_routes",
    f"a model unloaded by {len(TARGETS)} request targets, `restricted` closing the repository",
    "an absolute target with a fragment unloads it",
    "each is refused, and the model stays loaded",
    run,
)
