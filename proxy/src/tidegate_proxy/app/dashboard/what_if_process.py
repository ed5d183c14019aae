"""Process that runs what-if simulations at the lowest priority.

Run as `python -m tidegate_proxy.app.dashboard.what_if_process SECONDS`, the time limit for all alternatives together;
those not done by then are left out. `simulation_process` has the messages.
"""

import sys
import time

import msgspec
from msgspec.structs import replace

from tidegate.host import Plugins
from tidegate.sim.background_priority import step_aside
from tidegate.sim.what_if import WhatIfQuestion, answers, usual_alternatives
from tidegate_proxy.app import simulation_process


def main() -> None:
    """Read each question, simulate, write the results."""
    step_aside()
    answers_out, sys.stdout = sys.stdout.buffer, sys.stderr  # what a policy prints is no answer
    lines, limit_s = iter(sys.stdin.buffer), float(sys.argv[1])
    plugins = Plugins.installed()
    for line in lines:
        give_up = time.monotonic() + limit_s
        question = msgspec.json.decode(line, type=WhatIfQuestion)
        question = replace(question, requests=simulation_process.requests_of(lines))
        alternatives = usual_alternatives(question, plugins)
        found = answers(question, alternatives, plugins, enough=lambda: time.monotonic() > give_up)  # noqa: B023
        simulation_process.answer(answers_out, found)


if __name__ == "__main__":
    main()
