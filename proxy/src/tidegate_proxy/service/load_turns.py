"""Turns of the loads at one Triton: one at a time, and next a model of the client that has had the least load time."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager


class LoadTurns:
    """Turns of loads, so that a client that asks for many models does not delay one that asks for few.

    Start-time fair queueing of clients (P. Goyal, H. Vin, H. Cheng, SIGCOMM 1996): a client that comes begins where the
    last turn began. A model that several clients wait for has its turn with the first of them. Use it only in one event
    loop.
    """

    def __init__(
        self, clients_of: Callable[[str], Collection[str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create it without loads. `clients_of`: returns the clients that wait for a model; `clock`: in seconds."""
        self._clients_of = clients_of
        self._clock = clock
        self._waiting: dict[str, asyncio.Future[None]] = {}
        """Models that wait for their turns, in order of arrival."""
        self._had_s: dict[str, float] = {}
        """Load time that clients have had, if it is more than that of one that comes now."""
        self._start_s = 0.0
        """Load time of the client of the latest turn at its beginning: that of a client that comes now."""
        self.is_busy = False
        """Whether a model has its turn."""

    @asynccontextmanager
    async def turn(self, model: str) -> AsyncIterator[None]:
        """Wait for the turn of a model, which lasts for the block. A model waits once at a time."""
        if self.is_busy:
            turn = self._waiting[model] = asyncio.get_running_loop().create_future()
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it was given the turn at once
                    self._pass_on()
                raise
        self.is_busy = True
        start_s, client = self._due(model)
        began_s = self._clock()
        if client is not None:
            self._start_s = start_s
        try:
            yield
        finally:
            if client is not None:
                self._had_s[client] = start_s + self._clock() - began_s
            self._had_s = {each: had_s for each, had_s in self._had_s.items() if had_s > self._start_s}
            self._pass_on()

    def _due(self, model: str) -> tuple[float, str | None]:
        """When a model is due, in load time, and of which client; last, if no client waits for it."""
        found = [(max(self._start_s, self._had_s.get(client, 0.0)), client) for client in self._clients_of(model)]
        return min(found, default=(math.inf, None))

    def _pass_on(self) -> None:
        """Give the turn to the model that is due first, if one waits."""
        self._waiting = {model: turn for model, turn in self._waiting.items() if not turn.cancelled()}
        self.is_busy = bool(self._waiting)
        if self._waiting:
            model = min(self._waiting, key=lambda each: self._due(each)[0])
            self._waiting.pop(model).set_result(None)
