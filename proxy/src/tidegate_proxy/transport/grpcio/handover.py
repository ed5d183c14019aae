"""How the threads that gRPC's core needs hand over what they were told: everything else happens in the event loop."""

import asyncio
from collections import deque
from typing import Any

from tidegate_proxy.faults import faults


class HandOver:
    """Has the event loop that it was made in run the tags of events, which are callbacks, in their order.

    All events that come while the loop is busy cost one wake-up of it.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: deque[Any] = deque()
        self._awake = False
        """Whether the loop knows that there is something."""

    def give(self, event: Any) -> None:  # noqa: ANN401 - cygrpc is untyped
        """One more event. For the thread."""
        self._events.append(event)
        if not self._awake:
            self._awake = True
            self._loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        self._awake = False  # first: what is given from here on wakes the loop again, or is seen below
        events = self._events
        for _ in range(len(events)):
            event = events.popleft()
            try:
                event.tag(event)
            except Exception as error:  # one call's fault must not end the service for all others
                faults.report("the end of a call", error)
            del event  # its call is not freed while it is referred to, and the queue spins until it is
