"""Comparison of scheduled and bypassed requests in alternating blocks: attainment with confidence intervals."""

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

BLOCK_NS: Final = 2_000_000_000
"""Length of a block in ns, in which all requests are scheduled, or all bypassed.

Blocks are the units of the interval.
"""
BURN_IN_NS: Final = 500_000_000
"""Time at the start of a block, in ns, that is not compared: queues of the previous block remain."""
MAX_BLOCKS: Final = 300
"""Number of latest blocks that are compared: ten minutes."""
SETTLING_BLOCKS: Final = 5
"""Number of latest blocks that are left out, because responses may be missing."""
MIN_BLOCKS: Final = 6
MIN_REQUESTS: Final = 200
"""Minimum requests of each group before a verdict."""
Z: Final = 1.96
"""Standard deviations around the mean that contain 95 % of a normal distribution."""
LATENCY_CLASS_RATIO: Final = 1.02
"""Ratio between adjacent latency buckets."""


class TrafficGroup(msgspec.Struct, frozen=True):
    """Requests of a model in one group: scheduled or bypassed."""

    requests: int
    answered: int
    attainment: float | None
    """Fraction of the requests answered within the SLO; None without an SLO or requests."""
    p50_ms: float | None
    p99_ms: float | None

    @property
    def others(self) -> int:
        """Number of responses to requests that could not be scheduled: sequences, shared memory or the like."""
        return max(0, self.answered - self.requests)


NO_TRAFFIC: Final = TrafficGroup(0, 0, None, None, None)
"""Group of a model whose requests the canary does not see."""


class ModelComparison(msgspec.Struct, frozen=True):
    """Comparison of the two groups for one model."""

    model: str
    scheduled: TrafficGroup
    passed: TrafficGroup
    gain: tuple[float, float] | None
    """95 % interval of the attainment gained by scheduling (0.01 is one percentage point); None: no statement."""
    why: str
    """Reason for no statement; else ""."""


class GroupCounts:
    """Counts of a model's requests in one group, and of those on time."""

    __slots__ = ("on_time", "requests")

    def __init__(self) -> None:
        self.requests = self.on_time = 0

    @property
    def share_on_time(self) -> float:
        """Fraction of the requests answered on time, at most 1, because responses have a clock of their own."""
        return min(1.0, self.on_time / self.requests)


class _OfBlock(GroupCounts):
    """Counts of a block. There are many of these, so they are small."""

    __slots__ = ("took",)

    def __init__(self) -> None:
        super().__init__()
        self.took = array("H")
        """The class of latency of each answer."""


class _Sum(GroupCounts):
    """Counts of all blocks that have settled and are not forgotten."""

    __slots__ = ("_came", "_gone")

    def __init__(self) -> None:
        super().__init__()
        self._came: Counter[int] = Counter()
        """Answers by their class of latency, since this sum began."""
        self._gone: Counter[int] = Counter()
        """Answers that are forgotten since: a Counter adds in C what it would subtract in Python."""

    @property
    def took(self) -> Counter[int]:
        """Answers by their class of latency."""
        return self._came - self._gone

    def add(self, block: _OfBlock) -> None:
        """Add the counts of a block."""
        self.requests += block.requests
        self.on_time += block.on_time
        self._came.update(block.took)

    def take(self, block: _OfBlock) -> bool:
        """Subtract the counts of a block; return whether no block is left."""
        self.requests -= block.requests
        self.on_time -= block.on_time
        self._gone.update(block.took)
        return not self.requests


_Key = tuple[str, bool]
"""A model, and whether its requests were scheduled."""


class Comparison:
    """Comparison over the latest 300 blocks, ten minutes of two seconds each. It does not read the clock.

    A block settles, is compared for some time, and is dropped; sums over all blocks are updated with each.
    """

    def __init__(self, begins_ns: int = 0, *, block_ns: int | None = None, settling_blocks: int | None = None) -> None:
        """Create the comparison.

        `begins_ns`: requests before the first block that begins then or later are not compared.

        `block_ns`, `settling_blocks`: instead of `BLOCK_NS` and `SETTLING_BLOCKS`. A quarter of a block is its burn-in.
        """
        self._block_ns = BLOCK_NS if block_ns is None else block_ns
        self._burn_in_ns = BURN_IN_NS if block_ns is None else block_ns // 4
        self._settling_blocks = SETTLING_BLOCKS if settling_blocks is None else settling_blocks
        self._blocks: dict[int, dict[_Key, _OfBlock]] = {}
        """Blocks by number, counted from the start of the clock, those that have not settled among them."""
        self._settled = -(-begins_ns // self._block_ns)
        """The number of the first block that has not settled."""
        self._sums: dict[_Key, _Sum] = {}
        """Sums over settled blocks."""

    def drew(self, at_ns: int, model: str, *, scheduled: bool) -> None:
        """Record a request and its group.

        `scheduled`: its group.
        """
        if counts := self._counts(at_ns, model, scheduled):
            counts.requests += 1

    def answered(self, at_ns: int, model: str, took_ns: int, slo_ns: int | None, *, scheduled: bool) -> None:
        """Record the response to a request that arrived at an instant, unless its block has settled.

        `at_ns`: that instant; `took_ns`: its latency; `slo_ns`: the model's SLO, or None; `scheduled`: its group.
        """
        if counts := self._counts(at_ns, model, scheduled):
            counts.on_time += slo_ns is not None and took_ns <= slo_ns
            counts.took.append(round(math.log(max(1, took_ns), LATENCY_CLASS_RATIO)))

    def settle(self, now_ns: int) -> bool:
        """Settle and drop blocks up to now; return whether the comparison changed."""
        until = now_ns // self._block_ns - self._settling_blocks + 1
        if until <= self._settled:
            return False
        before = self._settled
        self._settled = until
        for number in sorted(self._blocks):
            if before <= number < until:
                # What passes always, as it cannot be scheduled, is answered in blocks too in which none was let pass.
                drawn = {key: counts for key, counts in self._blocks[number].items() if counts.requests}
                self._blocks[number] = drawn
                for key, counts in drawn.items():
                    self._sums.setdefault(key, _Sum()).add(counts)
        for number in [number for number in self._blocks if number < until - MAX_BLOCKS]:
            for key, counts in self._blocks.pop(number).items():
                if self._sums[key].take(counts):
                    del self._sums[key]
        return True

    @property
    def models(self) -> list[str]:
        """Names of the models with data, sorted."""
        return sorted({model for model, _ in self._sums})

    def of(
        self,
        model: str,
        *,
        has_slo: bool,
        share: float = 0.5,
        groups: tuple[str, str] = ("scheduled", "bypassed"),
    ) -> ModelComparison:
        """Return the comparison for a model over settled blocks. `share`: fraction of blocks that are scheduled.

        `has_slo`: whether the model has an SLO; `groups`: words for requests of both groups.
        """
        counts = {which: self._sums.get((model, which), _Sum()) for which in (True, False)}
        blocks = {which: self._settled_blocks_of((model, which)) for which in (True, False)}
        scheduled, passed = _side(counts[True], has_slo), _side(counts[False], has_slo)
        numbers = len(blocks[True]), len(blocks[False])
        why = _why_not(scheduled, passed, numbers, share, groups) if has_slo else "the model has no SLO"
        gain = None if why else difference_of(counts[True], counts[False], blocks[True], blocks[False])
        if gain is not None and passed.others:
            # Responses that belong to none of the requests may be any of those on time.
            gain = gain[0], min(1.0, round(gain[1] + passed.others / passed.requests, 4))
        return ModelComparison(model, scheduled, passed, gain, why)

    def latest(self, model: str, blocks: int, *, scheduled: bool) -> GroupCounts | None:
        """Return a model's outcomes in the latest settled blocks of one group; None before there are enough.

        `scheduled`: the group.
        """
        of_side = self._settled_blocks_of((model, scheduled))[-blocks:]
        if len(of_side) < blocks:
            return None
        counts = GroupCounts()
        counts.requests = sum(block.requests for block in of_side)
        counts.on_time = sum(block.on_time for block in of_side)
        return counts

    def _settled_blocks_of(self, key: _Key) -> list[_OfBlock]:
        """Return the settled blocks with requests, by group."""
        return [block[key] for number, block in sorted(self._blocks.items()) if number < self._settled and key in block]

    def _counts(self, at_ns: int, model: str, scheduled: bool) -> _OfBlock | None:
        number, since_ns = divmod(at_ns, self._block_ns)
        if number < self._settled or since_ns < self._burn_in_ns:
            return None
        block = self._blocks.setdefault(number, {})
        return block.get((model, scheduled)) or block.setdefault((model, scheduled), _OfBlock())


def _why_not(
    scheduled: TrafficGroup, passed: TrafficGroup, blocks: tuple[int, int], share: float, groups: tuple[str, str]
) -> str:
    if min(scheduled.requests, passed.requests) < MIN_REQUESTS or min(blocks) < MIN_BLOCKS:
        rare = MAX_BLOCKS * min(share, 1 - share)
        rare_group = groups[0] if share < 0.5 else groups[1]
        hopeless = f", and ten minutes have about {rare:.2g} {rare_group} blocks" if rare < 2 * MIN_BLOCKS else ""
        return (
            f"too few requests: {scheduled.requests} {groups[0]} in {blocks[0]} blocks, {passed.requests} {groups[1]} "
            f"in {blocks[1]}; {MIN_REQUESTS} in {MIN_BLOCKS} blocks of each are needed{hopeless}"
        )
    return ""


def _side(counts: _Sum, has_slo: bool) -> TrafficGroup:
    took = counts.took
    return TrafficGroup(
        counts.requests,
        took.total(),
        round(counts.share_on_time, 4) if has_slo and counts.requests else None,
        _quantile_ms(took, 0.5),
        _quantile_ms(took, 0.99),
    )


def _quantile_ms(took: Counter[int], share: float) -> float | None:
    wanted, seen = math.ceil(share * took.total()), 0
    for length in sorted(took):
        seen += took[length]
        if seen >= wanted:
            return round(LATENCY_CLASS_RATIO**length / 1e6, 3)
    return None


def difference_of(
    scheduled: GroupCounts, passed: GroupCounts, of_scheduled: Sequence[GroupCounts], of_passed: Sequence[GroupCounts]
) -> tuple[float, float]:
    """Return the 95 % interval of the attainment of scheduled requests minus that of bypassed ones.

    `of_scheduled`, `of_passed`: counts by block, each with requests.

    On each side it is the wider of two intervals: Newcombe's (1998, method 10), which holds for few requests and for
    fractions near 0 and 1, and that of the linearized ratio over blocks, which holds if requests of a block are
    correlated. Both groups get the larger variance between blocks of the two, because a group with few blocks may have
    met no bad ones by chance.
    """
    one, other = scheduled.share_on_time, passed.share_on_time
    (p_low, p_high), (q_low, q_high) = wilson(one, scheduled.requests), wilson(other, passed.requests)
    variance = max(_variance_of_blocks(of_scheduled), _variance_of_blocks(of_passed))
    numbers = len(of_scheduled), len(of_passed)
    spread = math.hypot(*(_student(number - 1) * math.sqrt(variance / number) for number in numbers))
    low = one - other - max(spread, math.hypot(one - p_low, q_high - other))
    high = one - other + max(spread, math.hypot(p_high - one, other - q_low))
    return round(low, 4), round(high, 4)


def _variance_of_blocks(of_side: Sequence[GroupCounts]) -> float:
    """How unlike the blocks of one side are, in the share on time of a block."""
    requests, on_time = sum(each.requests for each in of_side), sum(each.on_time for each in of_side)
    squares = sum((each.on_time - on_time / requests * each.requests) ** 2 for each in of_side)
    return squares / (len(of_side) - 1) * (len(of_side) / requests) ** 2


def _student(freedom: int) -> float:
    """Nearly the 97.5 % quantile of Student's distribution, from five degrees of freedom on."""
    return Z + 2.8 / freedom


def wilson(share: float, requests: int, z: float = Z) -> tuple[float, float]:
    """Return Wilson's interval of the fraction `share` of this many requests: 95 %, or `z` standard deviations."""
    z2 = z * z
    middle = (share + z2 / (2 * requests)) / (1 + z2 / requests)
    half = z * math.sqrt(share * (1 - share) / requests + z2 / (4 * requests**2)) / (1 + z2 / requests)
    return middle - half, middle + half
