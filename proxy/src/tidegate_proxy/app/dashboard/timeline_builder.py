"""Builder of a request's timeline from the latest stimuli, in small steps that do not block the event loop."""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tidegate.api import Model, RequestArrived, Worker
from tidegate_proxy.app.dashboard.event_buffer import BufferedEvent
from tidegate_proxy.app.dashboard.latency_explanation import LatencyExplanation, explain
from tidegate_proxy.app.dashboard.request_facts import RequestFacts, names_of

LEAD_NS: Final = 3_000_000_000
"""Time before the arrival from which stimuli are read, to know which workers were busy."""
AT_ONCE: Final = 50
"""Number of stimuli processed per step: half a millisecond."""
LOOKED_AT_ONCE: Final = 5_000
"""Number of stimuli searched for the arrival per step."""


def build_timeline_steps(
    request_id: int,
    moments: Sequence[BufferedEvent],
    models: Sequence[Model],
    workers: Sequence[Worker],
    ms: Callable[[int], float],
) -> Iterator[LatencyExplanation | None]:
    """Build a timeline in small steps; the last item is the timeline, or None if no stimulus contains the arrival.

    `request_id`: the request; `moments`: buffered stimuli. `models`, `workers`: those of the engine; `ms`: converts
    instants to dashboard time.
    """
    arrival = None
    for number in range(len(moments) - 1, -1, -1):
        event = moments[number].event
        if type(event) is RequestArrived:
            if event.request.id == request_id:
                arrival = number
            elif event.request.id < request_id:  # they are numbered in the order of arrival
                break
        if arrival is not None:
            break
        if number % LOOKED_AT_ONCE == 0:
            yield None
    if arrival is None:
        yield None
        return
    from_ns = moments[arrival].event.now_ns - LEAD_NS
    first = bisect_left(moments, from_ns, key=lambda moment: moment.event.now_ns)
    facts = RequestFacts(request_id, models, workers)
    for number in range(first, len(moments), AT_ONCE):
        facts.feed(moments[number : min(number + AT_ONCE, len(moments))])
        if facts.outcome:
            break
        yield None
    yield explain(facts, names_of(workers), ms)


async def build_timeline(steps: Iterator[LatencyExplanation | None]) -> LatencyExplanation | None:
    """Run the steps, yielding to other tasks in between; return the timeline."""
    timeline = None
    for found in steps:
        timeline = found
        await asyncio.sleep(0)
    return timeline
