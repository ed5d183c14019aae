"""Hazard: a client sends 24 MiB of JSON while other clients send small requests."""

import threading
import time

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.models import Model
from bench.fault_injection.rig import OK, Rig, over_http, request

MIB = 24
LIMIT_S = 1.0


def run(rig: Rig) -> Result:
    """Measure clients that call over gRPC and poll the health over HTTP meanwhile."""
    proxy = rig.tidegate(rig.triton(Model("told")))
    client = rig.client(proxy.grpc)
    count = (MIB << 20) // 6
    head = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1,%d],"data":[0.0,' % count
    body = head + b",".join([b"1.234"] * (count - 1)) + b"]}]}"
    small = request("told", [[0, 0]])
    longest: dict[str, float] = {}
    stop = threading.Event()
    answered = {
        "gRPC": lambda: client.call(small)[0] is OK,
        "HTTP": lambda: over_http(proxy.http, "/v2/health/live")[0] == 200,
    }

    def ask(name: str) -> None:
        longest[name] = 0.0
        while not stop.is_set():
            began = time.monotonic()
            well = answered[name]()
            longest[name] = max(longest[name], time.monotonic() - began if well else float("inf"))

    def pause(for_s: float, body: bytes | None) -> dict[str, float]:
        stop.clear()
        threads = [threading.Thread(target=ask, args=(name,)) for name in answered]
        for thread in threads:
            thread.start()
        if body:
            status, _ = over_http(proxy.http, "/v2/models/told/infer", body, timeout_s=300)
            if status != 200:
                raise SystemExit(f"the large request got {status}")
        else:
            time.sleep(for_s)
        stop.set()
        for thread in threads:
            thread.join()
        return dict(longest)

    alone = pause(2.0, None)
    began = time.monotonic()
    beside = pause(0, body)
    took_s = time.monotonic() - began
    return Result(
        ", ".join(f"{name} {beside[name] * 1e3:.0f} ms (before it {alone[name] * 1e3:.0f})" for name in beside)
        + f"; itself answered after {took_s:.1f} s",
        max(beside.values()) <= LIMIT_S,
        {"beside_s": beside, "alone_s": alone, "itself_s": took_s},
    )


HAZARD = Hazard(
    "large_json",
    f"{MIB} MiB of JSON: the longest that others wait",
    f"{LIMIT_S:g} s or less",
    run,
)
