"""Whether the models of a Triton pass as they are, because that was seen to be better than to schedule them.

Beside others that slow it down a batch takes up to twice as long, and nobody knows when it will end. So a policy plans
with times that are not true, and an instance idles for the way of the next batch, or has one that was decided too
early; the Triton's own batcher has neither trouble. Near the limit of a GPU that is worth some points. What has too
much to do is better scheduled all the same, for a Triton drops nothing. So both are tried, in blocks of time, as a
canary does, and what was better is gone on with (docs/decisions/0080-models-pass-where-that-is-better.md).
"""

from enum import StrEnum
from random import Random
from typing import Final

from tidegate_proxy.comparison import Compared, Comparison

SHORTEST_BLOCK_NS: Final = 1_000_000_000
LONGEST_BLOCK_NS: Final = 8_000_000_000
SLOS_A_BLOCK: Final = 4
"""A block is at least so many times as long as the longest SLO, within these bounds: what is left of it is short."""
SETTLING_BLOCKS: Final = 2
"""The block before the present one may have answers to come."""
FINE, WANTING = 0.99, 0.98
"""Passing ends where such a share of what is scheduled is in time; something better is looked for where less is."""
TOO_MUCH: Final = 0.5
"""Where less is in time a Triton has more to do than it can: what passes would wait for longer and longer."""
HOPELESS: Final = 0.1
"""The margin by which less may be in time of what passes in the first blocks of a comparison, or than was of what was
scheduled when they began to pass: four blocks are so far off by chance only now and then, and at overload at once."""
FEW_BLOCKS: Final = 3
"""So many say how it goes, where it goes far otherwise than it should."""
WATCHED: Final = 4
"""So many say whether to begin with a comparison, or to end with passing."""
ENOUGH: Final = 100
"""With as many requests among them."""
JUDGED: Final = 10
"""After so many blocks of either what was better is gone on with, sure or not: whoever passes is not worse off than
without Tidegate, so it is not passing that has to be beyond doubt."""
LONGEST_NS: Final = 120_000_000_000
"""How long both are compared where too little comes to say anything."""
REST_NS: Final = 60_000_000_000
"""How long all is scheduled after passing was not better; twice as long after each more of these."""
LONGEST_REST_NS: Final = 64 * REST_NS
HOLD_NS: Final = 600_000_000_000
"""How long they pass before both are compared in equal parts again."""
PAUSE_NS: Final = 10_000_000_000
"""How long all is scheduled after passing was better once and is not any more."""

_ALL: Final = ""
"""What all requests are counted under."""


class Way(StrEnum):
    """What becomes of requests that could be scheduled."""

    SCHEDULED = "scheduled"
    COMPARED = "scheduled or passed in turn, to see which is better"
    PASSED = "passed as they are"


_ONE_IN: Final = {Way.SCHEDULED: 1, Way.COMPARED: 2, Way.PASSED: 16}
"""So many blocks have one among them that is scheduled: which of them is drawn."""


class PassOrSchedule:
    """One Triton's. Holds no clock."""

    def __init__(self, seed: int) -> None:
        """`seed` decides which blocks are scheduled."""
        self._seed = seed
        self.way = Way.SCHEDULED
        self.why = ""
        """Why it is that way, for a log."""
        self._comparison: Comparison | None = None
        """None: nobody is in anybody's way, and nothing is counted."""
        self._block_ns = SHORTEST_BLOCK_NS
        self._drawn = -1, Way.SCHEDULED, True
        """The present block, the way that its draw was for, and whether it is scheduled: one value, for threads."""
        self._since_ns = 0
        """Since when it is that way."""
        self._until_ns = 0
        """Until when it stays scheduled."""
        self._rest_ns = 0
        self._bar = 0.0
        """The share of what was scheduled that was in time when passing was better."""

    @property
    def is_watched(self) -> bool:
        """Whether requests and their answers are to be counted."""
        return self._comparison is not None

    @property
    def passing(self) -> float:
        """The share of the time in which requests pass, 0 to 1."""
        return 1 - 1 / _ONE_IN[self.way]

    @property
    def compared(self) -> Compared | None:
        """How what was scheduled compares with what passed since it became this way; None while nothing passes."""
        if self._comparison is None or self.way is Way.SCHEDULED:
            return None
        return self._comparison.of(_ALL, has_slo=True)

    def schedules(self, now_ns: int) -> bool:
        """Whether a request that comes now is scheduled; may be called in any thread."""
        way = self.way
        if way is Way.SCHEDULED:
            return True
        block = now_ns // self._block_ns
        drawn_for, drawn_way, scheduled = self._drawn
        if (drawn_for, drawn_way) != (block, way):
            period, place = divmod(block, _ONE_IN[way])
            scheduled = place == Random(f"{self._seed}/{way}/{period}").randrange(_ONE_IN[way])
            self._drawn = block, way, scheduled
        return scheduled

    def drew(self, at_ns: int, *, scheduled: bool) -> None:
        """A request of a model with an SLO came, and it was decided whether it is scheduled."""
        if self._comparison:
            self._comparison.drew(at_ns, _ALL, scheduled=scheduled)

    def answered(self, at_ns: int, took_ns: int, slo_ns: int, *, scheduled: bool) -> None:
        """A request that came at an instant has its answer."""
        if self._comparison:
            self._comparison.answered(at_ns, _ALL, took_ns, slo_ns, scheduled=scheduled)

    def decide(self, now_ns: int, slo_ns: int) -> bool:
        """Look again which way is better of a Triton whose models are in each other's way; whether that has changed.

        `slo_ns`: the longest of their SLOs.
        """
        if self._comparison is None:
            self._block_ns = min(LONGEST_BLOCK_NS, max(SHORTEST_BLOCK_NS, SLOS_A_BLOCK * slo_ns))
            self._begin(now_ns)
            return False
        if not self._comparison.settle(now_ns):
            return False
        match self.way:
            case Way.SCHEDULED:
                self._while_scheduled(now_ns, self._comparison)
            case Way.COMPARED:
                self._while_compared(now_ns, self._comparison)
            case Way.PASSED:
                self._while_passed(now_ns, self._comparison)
        return self._since_ns == now_ns

    def leave_off(self, now_ns: int, why: str) -> bool:
        """All is scheduled and nothing is counted, since the models are not in each other's way, say.

        Whether anything passed until now.
        """
        passed = self.way is not Way.SCHEDULED
        if passed:
            self._become(now_ns, Way.SCHEDULED, why)
        self._comparison = None
        return passed

    def _while_scheduled(self, now_ns: int, comparison: Comparison) -> None:
        latest = comparison.latest(_ALL, WATCHED, scheduled=True)
        if now_ns < self._until_ns or latest is None or latest.requests < ENOUGH:
            return
        share = latest.share_in_time
        if TOO_MUCH <= share < WANTING:
            self._become(now_ns, Way.COMPARED, f"{100 * share:.1f} % of what is scheduled are in time")

    def _while_compared(self, now_ns: int, comparison: Comparison) -> None:
        compared = comparison.of(_ALL, has_slo=True)
        scheduled, passed = (comparison.latest(_ALL, FEW_BLOCKS, scheduled=which) for which in (True, False))
        if compared.gain is not None:
            low, high = compared.gain
            bounds = f"to schedule them gained {100 * low:+.1f} to {100 * high:+.1f} points"
            if low > 0:
                self._rest(now_ns, bounds)
            elif high < 0 or all(comparison.latest(_ALL, JUDGED, scheduled=which) for which in (True, False)):
                self._choose(now_ns, compared, bounds)
        elif (
            scheduled
            and passed
            and min(scheduled.requests, passed.requests) >= ENOUGH
            and passed.share_in_time < scheduled.share_in_time - HOPELESS
        ):
            shares = f"{100 * passed.share_in_time:.0f} % in time for {100 * scheduled.share_in_time:.0f} %"
            self._rest(now_ns, f"of what passed far less was in time: {shares}")
        elif now_ns >= self._since_ns + LONGEST_NS:
            self._rest(now_ns, compared.why)

    def _choose(self, now_ns: int, compared: Compared, bounds: str) -> None:
        """What had the larger share in time; to schedule them where it is the same."""
        scheduled, passed = compared.scheduled.attainment or 0.0, compared.passed.attainment or 0.0
        if passed > scheduled:
            self._bar, self._rest_ns = scheduled, 0
            self._become(now_ns, Way.PASSED, bounds)
        else:
            self._rest(now_ns, bounds)

    def _while_passed(self, now_ns: int, comparison: Comparison) -> None:
        if now_ns >= self._since_ns + HOLD_NS:
            self._become(now_ns, Way.COMPARED, "to see whether that is better still")
            return
        gain = comparison.of(_ALL, has_slo=True).gain
        if gain and gain[0] > 0:
            self._rest(now_ns, f"to schedule them gained {100 * gain[0]:+.1f} to {100 * gain[1]:+.1f} points")
            return
        passed, scheduled = (comparison.latest(_ALL, WATCHED, scheduled=which) for which in (False, True))
        if passed and passed.requests >= ENOUGH and passed.share_in_time < self._bar - HOPELESS:
            words = f"only {100 * passed.share_in_time:.1f} % of what passes are in time"
            self._until_ns = now_ns + PAUSE_NS
            self._become(now_ns, Way.SCHEDULED, f"{words}, and it was better for {100 * self._bar:.1f} %")
        elif scheduled and scheduled.requests >= ENOUGH and scheduled.share_in_time >= FINE:
            self._become(now_ns, Way.SCHEDULED, "what is scheduled is in time")

    def _rest(self, now_ns: int, why: str) -> None:
        self._rest_ns = min(LONGEST_REST_NS, max(REST_NS, 2 * self._rest_ns))
        self._until_ns = now_ns + self._rest_ns
        self._become(now_ns, Way.SCHEDULED, why)

    def _become(self, now_ns: int, way: Way, why: str) -> None:
        self.way, self._since_ns, self.why = way, now_ns, why
        self._begin(now_ns)

    def _begin(self, now_ns: int) -> None:
        """Count anew, from the next block on."""
        self._comparison = Comparison(now_ns, block_ns=self._block_ns, settling_blocks=SETTLING_BLOCKS)
