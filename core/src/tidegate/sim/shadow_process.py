"""The process of shadow mode beside a proxy, `python -m tidegate.sim.shadow_process`: JSON lines in, reports out.

It has the lowest CPU priority, and the proxy does not wait for it: its failure does not affect requests.
"""

import sys

import msgspec

from tidegate.host import Plugins
from tidegate.sim.background_priority import step_aside
from tidegate.sim.shadow import ShadowWindow
from tidegate.sim.shadow_messages import BypassedTraffic, ShadowSetup


def main() -> None:
    """Answer each message that requests a report with one line, until the input ends."""
    step_aside()
    reports, sys.stdout = sys.stdout.buffer, sys.stderr  # what a policy prints is no report
    plugins = Plugins.installed()
    messages = msgspec.json.Decoder(ShadowSetup | BypassedTraffic)
    shadow: ShadowWindow | None = None
    for line in sys.stdin.buffer:
        message = messages.decode(line)
        if isinstance(message, ShadowSetup):
            shadow = ShadowWindow(message, plugins)
        elif shadow is not None:
            shadow.take(message)
            if message.report:
                reports.write(msgspec.json.encode(shadow.report(message.now_ns)) + b"\n")
                reports.flush()


if __name__ == "__main__":
    main()
