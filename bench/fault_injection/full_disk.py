"""The event log goes to a disk that is full."""

from collections import Counter

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.models import Model
from bench.fault_injection.rig import OK, Rig, request, side_by_side


def run(rig: Rig) -> Result:
    """Some hundred requests with `event_log: /dev/full`."""
    proxy = rig.tidegate(rig.triton(Model("told")), event_log="/dev/full")
    client = rig.client(proxy.grpc)
    answers = Counter(side_by_side(4, 300, lambda _: client.call(request("told", [[0, 0]]), timeout_s=10)[0] is OK))
    told = proxy.log.count("observer Recorder broke")
    return Result(
        f"{answers[True]} of 300 answered; the log says so {told} time(s)", answers[True] == 300 and told == 1
    )


HAZARD = Hazard(
    "full_disk",
    "--event-log on a full disk",
    "every call runs to its deadline for ever; live and ready say 200",
    "all answered, the recorder removed and reported",
    run,
)
