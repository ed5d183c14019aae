"""Whether the models of a Triton take turns because they slow each other down, though it would run them side by side.

Where a GPU is sliced among all that run, two batches at once are both done when the second would have been done alone:
one after the other the first is done sooner, and both take what they were planned to take. But where a model cannot
wait for another one's batch all run side by side, and so they do where nothing is known yet: as without Tidegate
(docs/decisions/0077-models-take-turns-where-they-are-in-each-others-way.md).
"""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from tidegate.api import Model
from tidegate.engine.estimates.lateness import LARGEST_SHARE
from tidegate_proxy.tritons.interference import Slowdown

WORTH: Final = 0.7
"""The slowdown from which on models take turns: below, what they can do side by side is worth more."""
TOLERATED: Final = 1.25
"""Turns go on while batches that somebody waits for take up to so many times as long as they might to begin with."""
HOLD_NS: Final = 600_000_000_000
"""How long models take turns before it is looked again whether they have to: nobody slows anybody down meanwhile."""
REST_NS: Final = 60_000_000_000
"""How long they run side by side after turns that did not do them good; twice as long after each more of them."""
LONGEST_REST_NS: Final = 64 * REST_NS
COUNTED: Final = 100
"""How many requests of a model tell how many are in time."""
LOSS: Final = 0.02
"""What taking turns may cost a model, as a share of its requests; beside it chance, which is much where few came."""
DEVIATIONS: Final = 2.0
"""So many standard deviations of the share are chance."""


class Ended(NamedTuple):
    """What became of a model's requests since Tidegate began."""

    in_time: int
    all: int


class TurnTaking:
    """One Triton's."""

    def __init__(self) -> None:
        self.slowdown = Slowdown()
        self._group: frozenset[str] = frozenset()
        self._changed_ns = 0
        """When the group became what it is."""
        self._rest_ns = 0
        """How long nobody takes turns from then on."""
        self._ended: Mapping[str, Ended] = {}
        """What had become of requests until then."""
        self._side_by_side: dict[str, float] = {}
        """The share of each model's requests that was in time before they began with turns."""
        self.why = ""
        """Why the group is what it is, for a log."""

    @property
    def group(self) -> frozenset[str]:
        """The models that take turns with each other; nobody does where there are none."""
        return self._group

    def decide(self, now_ns: int, models: Mapping[str, Model], ended: Mapping[str, Ended]) -> bool:
        """Look again at who takes turns, of these models; whether that has changed."""
        active = self.slowdown.active & models.keys()
        if not self._group:
            value = self.slowdown.value
            rested = now_ns >= self._changed_ns + self._rest_ns
            if not rested or value is None or value < WORTH or not self._bear(active, models, 1.0):
                return False
            self._side_by_side = self._shares(ended)
            self._become(
                now_ns, active, ended, f"beside each other batches take {value:.2f} times longer per other one"
            )
            return True
        if self._group < active and self._bear(active, models, 1.0):
            self._become(now_ns, active, ended, "there are more of them")
        elif self._group != active or not self._bear(active, models, TOLERATED):
            self.rest(now_ns, ended, "one of them cannot wait for another one's batches")
        elif lost := self._lost(ended):
            self.rest(now_ns, ended, f"fewer requests of {lost} were in time")
        elif now_ns >= self._changed_ns + HOLD_NS:
            self._rest_ns = 0
            self._become(now_ns, frozenset(), ended, "to see whether they are still in each other's way")
        else:
            return False
        return True

    def rest(self, now_ns: int, ended: Mapping[str, Ended], why: str) -> None:
        """Nobody takes turns for a while."""
        self._rest_ns = min(LONGEST_REST_NS, max(REST_NS, 2 * self._rest_ns))
        self._become(now_ns, frozenset(), ended, why)

    def _become(self, now_ns: int, group: frozenset[str], ended: Mapping[str, Ended], why: str) -> None:
        self._group, self._changed_ns, self._ended, self.why = group, now_ns, dict(ended), why
        if not group:
            self.slowdown.forget()

    def _shares(self, ended: Mapping[str, Ended]) -> dict[str, float]:
        """Which share of each model's requests was in time since the group became what it is; of enough requests."""
        shares = {}
        for name, (in_time, count) in ended.items():
            before = self._ended.get(name, Ended(0, 0))
            if count - before.all >= COUNTED:
                shares[name] = (in_time - before.in_time) / (count - before.all)
        return shares

    def _lost(self, ended: Mapping[str, Ended]) -> str:
        """A model of the group that is worse off than side by side; empty where none is known to be."""
        for name, share in self._shares(ended).items():
            count = ended[name].all - self._ended.get(name, Ended(0, 0)).all
            chance = DEVIATIONS * math.sqrt(share * (1 - share) / count)
            if name in self._group and share < self._side_by_side.get(name, 1.0) - LOSS - chance:
                return name
        return ""

    def _bear(self, group: frozenset[str], models: Mapping[str, Model], tolerated: float) -> bool:
        """Whether there is a group in which each can wait for a batch of any other, so many times as long as it has."""
        took = {name: times for name in group if (times := self.slowdown.took_ns(name))}
        if len(took) < len(group) or len(group) < 2:
            return False
        for name, (mine_ns, _) in took.items():
            longest_ns = max(nine_of_ten_ns for other, (_, nine_of_ten_ns) in took.items() if other != name)
            slo_ns = models[name].slo_ns
            # Without an SLO nobody is late, but nobody is to wait for longer than two at a time would take.
            left_ns = 2 * mine_ns if slo_ns is None else slo_ns * (1 - LARGEST_SHARE) - mine_ns
            if longest_ns > tolerated * left_ns:
                return False
        return True
