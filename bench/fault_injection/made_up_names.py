"""A client that makes up names of applications, before others with names of their own."""

import signal
from collections import Counter

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.models import Model
from bench.fault_injection.rig import Rig, request
from tidegate.api import RequestArrived
from tidegate.observation import read_log

NAMES, ROUNDS = 150, 20


def run(rig: Rig) -> Result:
    """Requests of made-up names, one each, then two applications in turn; the recording says whose each is."""
    path = rig.folder() / "run.jsonl"
    proxy = rig.tidegate(rig.triton(Model("told")), app={"parameter": "app"}, event_log=str(path))
    client = rig.client(proxy.grpc)
    for number in range(NAMES):
        client.call(request("told", [[0, 0]], app=f"made up {number}"))
    for _ in range(ROUNDS):
        for name in ("quick", "slow"):
            client.call(request("told", [[0, 0]], app=name))
    proxy.send(signal.SIGTERM)  # the end of a recording is written then
    proxy.wait(20)
    with path.open("rb") as log:
        events = [entry.event for entry in read_log(log)[1]]
    known = Counter(event.request.app for event in events if isinstance(event, RequestArrived))
    return Result(
        f"{known['quick']} and {known['slow']} of {ROUNDS} requests each are known as such",
        min(known["quick"], known["slow"]) >= ROUNDS // 2,
        {name: known[name] for name in ("quick", "slow", "other")},
    )


HAZARD = Hazard(
    "made_up_names",
    f"{NAMES} made-up names of applications, then two real ones",
    "the real ones are `other` until a restart",
    "most of their requests are known as theirs",
    run,
)
