"""A reload with a layout that cannot be read, then a good one."""

import signal

import yaml

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.models import Model
from bench.fault_injection.rig import OK, Rig, request, until

REFUSED = "configuration not applied, nothing has changed"


def run(rig: Rig) -> Result:
    """SIGHUP twice; requests in between."""
    configuration = rig.configuration(rig.triton(Model("told")))
    proxy, path = rig.configured(configuration)
    client = rig.client(proxy.grpc)
    layout = rig.folder() / "layout.json"
    layout.write_text("{nonsense")

    def reload(words: str, **fields: object) -> bool:
        path.write_text(yaml.safe_dump(configuration | fields))
        proxy.send(signal.SIGHUP)
        return until(lambda: words in proxy.log, 20) is not None

    refused = reload(REFUSED, layout=str(layout))
    answered = [client.call(request("told", [[0, 0]]))[0] is OK]
    taken_up = reload("configuration applied (changed=log.level", log={"level": "debug"})
    answered.append(client.call(request("told", [[0, 0]]))[0] is OK)
    return Result(
        f"{'refused and said so' if refused else 'not a word'}; the next one "
        f"{'taken up' if taken_up else 'not taken up'}; {sum(answered)} of 2 requests answered",
        refused and taken_up and all(answered),
    )


HAZARD = Hazard(
    "unreadable_layout",
    "SIGHUP with an unreadable layout, then a good one",
    "reloading is dead for good, without a word",
    "the bad one is refused aloud, the good one taken up",
    run,
)
