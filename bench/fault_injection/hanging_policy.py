"""Hazard: a policy that never returns."""

import threading
import time

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.models import Model
from bench.fault_injection.rig import OK, Rig, json_request, over_http, request
from bench.proxy_process import ProxyProcess

MODULE = """
import os
import time

from tidegate.api import PolicySpec, hookimpl
from tidegate_baselines.fifs import Fifs


class Hanging(Fifs):
    def handle(self, event):
        while os.path.exists(os.environ["HANG"]):
            time.sleep(0.05)
        return super().handle(event)


@hookimpl
def tidegate_policies():
    return [PolicySpec("hanging", "Hangs", Hanging)]
"""
LIMIT_S = 5.0
PROBE_S = 1.0
"""Timeout of a probe in seconds."""


def run(rig: Rig) -> Result:
    """Trigger the policy over gRPC and over HTTP; the plugin is installed in a folder of its own."""
    folder = rig.folder()
    (folder / "hanging_policy.py").write_text(MODULE)
    information = folder / "hanging-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging\nVersion: 1\n")
    (information / "entry_points.txt").write_text("[tidegate]\nhanging = hanging_policy\n")
    hang = folder / "hang"
    environment = {"PYTHONPATH": str(folder), "HANG": str(hang)}
    triton = rig.triton(Model("told"))
    proxy = rig.tidegate(triton, policy="hanging", environment=environment)
    client = rig.client(proxy.grpc)
    message = request("told", [[0, 0]])
    seconds: dict[str, float] = {}
    for protocol in ("grpc", "http"):
        hang.touch()
        if protocol == "grpc":
            under_way = client.start(message)
            seconds[protocol] = _not_live_after(proxy.http)
            named = _is_named(proxy)
            hang.unlink()
            well = under_way.result(60) is not None
        else:
            path = "/v2/models/told/infer"
            thread = threading.Thread(target=over_http, args=(proxy.http, path, json_request([[0.0, 0.0]])))
            thread.start()
            seconds[protocol] = _not_live_after(proxy.http)
            hang.unlink()
            thread.join()
            well = well and client.call(message)[0] is OK
    return Result(
        ", ".join(f"called over {name}: not 200 after {took:.1f} s" for name, took in seconds.items())
        + ("; the log names its line" if named else "; the log does not tell what hangs")
        + ("; serves again" if well else "; does not serve again"),
        well and named and max(seconds.values()) <= LIMIT_S,
        seconds,
    )


def _is_named(proxy: ProxyProcess) -> bool:
    """Whether the log says in time which file hangs."""
    until = time.monotonic() + 2 * LIMIT_S
    while time.monotonic() < until:
        if "hanging_policy.py" in proxy.log:
            return True
        time.sleep(0.05)
    return False


def _not_live_after(address: str) -> float:
    """Seconds until a probe of liveness over HTTP is not told 200, or is told nothing."""
    began = time.monotonic()
    while time.monotonic() - began < 4 * LIMIT_S:
        try:
            if over_http(address, "/v2/health/live", timeout_s=PROBE_S)[0] != 200:
                break
        except OSError:
            break
        time.sleep(0.05)
    return time.monotonic() - began


HAZARD = Hazard(
    "hanging_policy",
    "a policy that never returns",
    f"not 200 within {LIMIT_S:g} s, and the log says what hangs",
    run,
)
