"""Who spoils batches for others: a request that makes its Triton refuse the whole batch.

The batch is halved until the request at fault is alone. Of a sender that was at fault the next requests for that model
run alone: a few, so that one mistake of many clients behind one connection costs little; more and more while they fail.
"""

import threading
from collections import OrderedDict
from typing import Final

FIRST_ALONE: Final = 8
MOST_ALONE: Final = 256
"""Requests of a sender that run alone after one that spoiled a batch."""
MOST_SENDERS: Final = 1024
"""How many are remembered: those longest ago are forgotten first."""

Sender = tuple[str, str]
"""Whom requests come from, and their model."""


class Spoilers:
    """Those who spoiled batches lately. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._alone: OrderedDict[Sender, tuple[int, int]] = OrderedDict()
        """How many more requests run alone, and how many there were to be."""
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._alone)

    def spoiled(self, sender: Sender) -> None:
        """A request spoiled a batch, or failed alone as others of its sender had spoiled theirs."""
        if not sender[0]:
            return
        with self._lock:
            _, before = self._alone.pop(sender, (0, FIRST_ALONE // 2))
            alone = min(MOST_ALONE, 2 * before)
            self._alone[sender] = (alone, alone)
            if len(self._alone) > MOST_SENDERS:
                self._alone.popitem(last=False)

    def runs_alone(self, sender: Sender) -> bool:
        """Whether a request that has come is to run alone; it is one of those that are counted."""
        with self._lock:
            left, alone = self._alone.get(sender, (0, 0))
            if left > 1:
                self._alone[sender] = (left - 1, alone)
            elif left:
                del self._alone[sender]
            return left > 0


class Refusal:
    """What a batch that was refused is found to have been refused for. Methods may be called from any thread.

    As long as none of its requests has an answer it may be the Triton that fails, and nobody is to blame.
    """

    def __init__(self, spoilers: Spoilers) -> None:
        self._spoilers = spoilers
        self._suspects: list[Sender] = []
        self._answered = False
        self._lock = threading.Lock()

    def answered(self) -> None:
        """One of the requests was answered after all."""
        if self._answered:
            return
        with self._lock:
            self._answered = True
            suspects, self._suspects = self._suspects, []
        for sender in suspects:
            self._spoilers.spoiled(sender)

    def failed(self, sender: Sender) -> None:
        """One of them failed alone, too."""
        with self._lock:
            if not self._answered:
                self._suspects.append(sender)
                return
        self._spoilers.spoiled(sender)


class RetryBudget:
    """How many requests of refused batches may be tried again: a share of all requests, and some to begin with."""

    FLOOR: Final = 100
    CEILING: Final = 1000
    """What may be spent at once after a long time without refusals."""

    def __init__(self) -> None:
        self._spent = 0.0

    def spend(self, requests: int, share: float, total: int) -> bool:
        """Whether so many may be tried again, `total` requests having come so far; then they are counted."""
        earned = self.FLOOR + share * total
        self._spent = max(self._spent, earned - self.CEILING)
        if self._spent + requests > earned:
            return False
        self._spent += requests
        return True
