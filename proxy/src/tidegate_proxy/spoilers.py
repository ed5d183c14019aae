"""Who spoils batches for others: a request that makes its Triton refuse the whole batch.

The batch is halved until the request at fault is alone. Where there is no time for that, its senders are halved: until
one is answered again it shares batches only with suspects of its half, which do not wait for more, so that there is
time. Of a sender that was at fault the next requests for that model run alone: a few, so that one mistake of many
clients behind one connection costs little; more and more while they fail.
"""

import itertools
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

FIRST_ALONE: Final = 8
MOST_ALONE: Final = 256
"""Requests of a sender that run alone after one that spoiled a batch."""
MOST_SENDERS: Final = 1024
"""How many are remembered of either sort: those longest ago are forgotten first."""

Sender = tuple[str, str]
"""Whom requests come from, and their model."""


class Refusal:
    """What a batch that was refused is found to have been refused for.

    As long as none of its requests has an answer it may be the Triton that fails, and nobody is to blame.
    """

    def __init__(self, spoilers: "Spoilers") -> None:
        self._spoilers = spoilers
        self._failed: list[Sender] = []
        self.somebody_answered = False
        """Whether a sender of the batch has had an answer since, to a request of it or to a later one."""

    def answered(self) -> None:
        """One of the requests was answered after all."""
        if self.somebody_answered and not self._failed:
            return
        self.somebody_answered = True
        failed, self._failed = self._failed, []
        for sender in failed:
            self._spoilers.spoiled(sender)

    def failed(self, sender: Sender) -> None:
        """One of them failed alone, too."""
        if self.somebody_answered:
            self._spoilers.spoiled(sender)
        else:
            self._failed.append(sender)


class Spoilers:
    """The owners who spoiled batches lately, and those who may have."""

    def __init__(self) -> None:
        self._alone: OrderedDict[Sender, tuple[int, int]] = OrderedDict()
        """How many more requests run alone, and how many there were to be."""
        self._suspects: OrderedDict[Sender, tuple[int, Refusal]] = OrderedDict()
        """The number of the half, and the refusal that it is suspected for."""
        self._halves = itertools.count()

    def __bool__(self) -> bool:
        return bool(self._alone) or bool(self._suspects)

    def company(self, sender: Sender, request_id: int) -> str:
        """Whom a request that has come shares a batch with, as a part of its merge key; empty: with anybody."""
        left, alone = self._alone.get(sender, (0, 0))
        if left > 1:
            self._alone[sender] = (left - 1, alone)
        elif left:
            del self._alone[sender]
        if left:
            return f"/alone {request_id}"
        half, _ = self._suspects.get(sender, (None, None))
        return "" if half is None else f"/suspects {half}"

    def suspect(self, senders: Iterable[Sender], refusal: Refusal) -> None:
        """A batch with requests of these was refused."""
        known = list(dict.fromkeys(sender for sender in senders if sender[0]))
        middle = len(known) // 2
        for part in (known[:middle], known[middle:]):
            half = next(self._halves)
            for sender in part:
                self._suspects.pop(sender, None)
                self._suspects[sender] = half, refusal
        while len(self._suspects) > MOST_SENDERS:
            self._suspects.popitem(last=False)

    def answered(self, sender: Sender) -> None:
        """A request was answered whose batch not everybody could share: its sender is not suspected any more."""
        _, refusal = self._suspects.pop(sender, (None, None))
        if refusal:
            refusal.somebody_answered = True

    def failed_alone(self, sender: Sender) -> None:
        """A request failed, not for the first time, in whose batch there were no others."""
        _, refusal = self._suspects.get(sender, (None, None))
        if refusal is None or refusal.somebody_answered:
            self.spoiled(sender)
        else:  # as long as nobody is answered it may be the Triton
            self.suspect([sender], refusal)

    def spoiled(self, sender: Sender) -> None:
        """A request spoiled a batch, or failed alone as others of its sender had spoiled theirs."""
        if not sender[0]:
            return
        self._suspects.pop(sender, None)
        _, before = self._alone.pop(sender, (0, FIRST_ALONE // 2))
        alone = min(MOST_ALONE, 2 * before)
        self._alone[sender] = (alone, alone)
        if len(self._alone) > MOST_SENDERS:
            self._alone.popitem(last=False)


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
