"""What happened since somebody looked last: legs that ran, requests that ended: noted on the hot path."""

from collections import deque
from collections.abc import Sequence
from typing import Final, Literal

from tidegate.api import Batch, Request
from tidegate.observation import Reader, StartLeg

MOST: Final = 50_000
"""So many of each sort are kept, should nobody look for long."""
Lost = Literal["dropped", "failed", "cancelled"]


class Recent(Reader):
    """Notes what it is told and looks at nothing: an event costs one append."""

    def __init__(self) -> None:
        self.legs: deque[tuple[StartLeg, int, int]] = deque(maxlen=MOST)
        """Legs that are over, with when they began and ended."""
        self.answered_batches: deque[tuple[Batch, Sequence[Request], int]] = deque(maxlen=MOST)
        """Batches, those of their requests that waited still, and when they ended."""
        self.lost: deque[tuple[int, Request, Lost, str]] = deque(maxlen=MOST)
        """Requests without an answer: when they ended, how, and why."""

    def leg_ran(self, effect: StartLeg, started_ns: int, ended_ns: int) -> None:
        """A leg is over."""
        self.legs.append((effect, started_ns, ended_ns))

    def answered(self, batch: Batch, requests: Sequence[Request], ended_ns: int) -> None:
        """A batch is answered."""
        self.answered_batches.append((batch, requests, ended_ns))

    def dropped(self, now_ns: int, request: Request, reason: str) -> None:
        """A request was given up."""
        self.lost.append((now_ns, request, "dropped", reason))

    def failed(self, now_ns: int, request: Request, reason: str) -> None:
        """A request has no answer."""
        self.lost.append((now_ns, request, "failed", reason))

    def cancelled(self, now_ns: int, request: Request) -> None:
        """A client left."""
        self.lost.append((now_ns, request, "cancelled", ""))

    def clear(self) -> None:
        """Forget all of it: it was read."""
        self.legs.clear()
        self.answered_batches.clear()
        self.lost.clear()
