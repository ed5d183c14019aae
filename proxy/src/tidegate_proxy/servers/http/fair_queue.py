"""In which order those who wait get one of a few places: what costs little first, and nobody waits for ever.

Weighted fair queueing: whoever comes is due when everybody who waits, from then on, has had as much as he asks for and
has had lately. So neither large pieces of work nor many of one owner hold up a small one of another. Source: A. Demers,
S. Keshav, S. Shenker, "Analysis and Simulation of a Fair Queueing Algorithm" (SIGCOMM 1989).
"""

import asyncio
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Place = TypeVar("Place")


class FairQueue(Generic[Place]):
    """A queue of all who wait for a place. Lives in one event loop."""

    def __init__(self, places: Iterable[Place]) -> None:
        self._free = list(places)
        self._waiting: list[tuple[float, int, int, asyncio.Future[Place]]] = []
        """A heap: when each is due, its number, its cost, and what tells it."""
        self._now = 0.0
        """How much each of those who wait would have had, if all were served at once."""
        self._due: dict[str, float] = {}
        """When the last of each owner is due, where that is still to come."""
        self._count = 0

    async def take(self, owner: str, cost: int) -> Place:
        """A place, when it is the owner's turn; to be given back. `owner`: "" is one for himself each time."""
        due = max(self._now, self._due.get(owner, 0)) + cost
        if owner:
            self._due[owner] = due
        if self._free:
            self._served(cost)
            return self._free.pop()
        self._count += 1
        turn: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (due, self._count, cost, turn))
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # both at once
                self.give_back(turn.result())
            else:  # who left holds no memory
                self._waiting = [entry for entry in self._waiting if entry[3] is not turn]
                heapify(self._waiting)
            raise

    def give_back(self, place: Place) -> None:
        """It is free again, or the next one's."""
        while self._waiting:
            _, _, cost, turn = heappop(self._waiting)
            if not turn.done():
                self._served(cost)
                turn.set_result(place)
                return
        self._free.append(place)

    def _served(self, cost: int) -> None:
        self._now += cost / (len(self._waiting) + 1)
        self._due = {owner: until for owner, until in self._due.items() if until > self._now}
