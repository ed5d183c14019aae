"""What-if simulation in another process, so that the event loop is not blocked."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from tidegate.api import Request
from tidegate.observation import Reducer
from tidegate.sim.recent_traffic import RecentTraffic, corrected
from tidegate.sim.what_if import WhatIfAnswer, WhatIfQuestion
from tidegate_proxy.app.dashboard.event_buffer import BufferedEvent
from tidegate_proxy.app.simulation_process import SimulationProcess

AT_ONCE: Final = 50
"""Number of stimuli processed per step: a tenth of a millisecond."""
GIVE_UP_S: Final = 60.0
SIMULATION_FRACTION: Final = 0.75
"""Fraction of `GIVE_UP_S` in which to simulate; changes that are not simulated by then are left out."""
MIN_REQUESTS: Final = 10
"""Smallest number of requests for a result."""


class WhatIf(msgspec.Struct, frozen=True):
    """Result of a what-if analysis for the page."""

    requests: int
    seconds: float
    """Time span of the requests in seconds."""
    took_s: float
    actual: float | None
    """Fraction that was answered on time."""
    answers: list[WhatIfAnswer]


async def what_if(question: WhatIfQuestion, moments: Sequence[BufferedEvent], *, learned: bool) -> WhatIf:
    """Simulate the requests of these stimuli; `question` has everything else. Raises ValueError with a message.

    `learned`: its profiles were learned online; otherwise they are corrected by the stages of these stimuli.
    """
    began = time.monotonic()
    traffic = RecentTraffic()
    reducer = Reducer(traffic)
    for number, moment in enumerate(moments):
        reducer.handled(moment.event, moment.effects)
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
    ended = traffic.requests()
    requests = [request for request, _ in ended]
    if len(requests) < MIN_REQUESTS:
        raise ValueError(f"only {len(requests)} requests have ended in what was seen: it takes {MIN_REQUESTS}")
    if not question.setup.workers:
        raise ValueError("no worker is there")
    setup = question.setup
    factors = traffic.factors(setup.profiles, setup.workers)
    if learned:
        question = replace(question, factors=[factor for of_key in factors.values() for factor in of_key])
    else:
        profiles, ratios = corrected(setup.profiles, factors)
        question = replace(question, setup=replace(setup, profiles=tuple(profiles)), factors=ratios)
    answers = await _simulated(question, requests)
    seconds = (requests[-1].arrival_ns - requests[0].arrival_ns) / 1e9
    return WhatIf(
        len(requests), seconds, round(time.monotonic() - began, 2), sum(well for _, well in ended) / len(ended), answers
    )


async def _simulated(question: WhatIfQuestion, requests: Sequence[Request]) -> list[WhatIfAnswer]:
    process = SimulationProcess("tidegate_proxy.app.dashboard.what_if_process", str(SIMULATION_FRACTION * GIVE_UP_S))
    try:
        return msgspec.json.decode(await process.ask(question, requests, GIVE_UP_S), type=list[WhatIfAnswer])
    finally:
        await process.close()
