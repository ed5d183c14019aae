"""Process that runs one what-if simulation at the lowest priority and exits.

Run as `python -m tidegate_proxy.app.dashboard.what_if_process`.

It reads a line with the question, without its requests, then lines with some requests each, up to the end of the input;
it writes a line with the results.
"""

import sys
import time
from typing import Final

import msgspec
from msgspec.structs import replace

from tidegate.api import Request
from tidegate.host import Plugins
from tidegate.sim.background_priority import step_aside
from tidegate.sim.what_if import WhatIfQuestion, answers, usual_alternatives

WITHIN_S: Final = 45.0
"""Time limit in seconds for all alternatives together; those not done by then are left out."""


def main() -> None:
    """Read the question, simulate, write the results."""
    step_aside()
    told, sys.stdout = sys.stdout.buffer, sys.stderr  # what a policy prints is no answer
    give_up = time.monotonic() + WITHIN_S
    lines = iter(sys.stdin.buffer)
    question = msgspec.json.decode(next(lines), type=WhatIfQuestion)
    decoder = msgspec.json.Decoder(list[Request])
    question = replace(question, requests=[request for line in lines for request in decoder.decode(line)])
    plugins = Plugins.installed()
    found = answers(question, usual_alternatives(question, plugins), plugins, enough=lambda: time.monotonic() > give_up)
    told.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
