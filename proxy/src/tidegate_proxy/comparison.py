"""What is scheduled against what passes as it is, of the same traffic at the same time: shares in time, with doubt."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

BLOCK_NS: Final = 5_000_000_000
"""Requests that arrive within so long of each other share their luck: the interval counts blocks, not requests."""
MOST_BLOCKS: Final = 120
"""What is compared: the latest ten minutes."""
SETTLING_BLOCKS: Final = 2
"""The latest blocks are left out: their answers may not have been seen yet."""
ENOUGH_BLOCKS: Final = 12
ENOUGH_REQUESTS: Final = 200
"""What either share has to have before anything is said."""
Z: Final = 1.96
"""95 % of a normal distribution lie so many deviations about its middle."""
STEP: Final = 1.02
"""Latencies are counted in classes, each so much longer than the one before."""


class Side(msgspec.Struct, frozen=True):
    """One share of a model's requests."""

    requests: int
    answered: int
    attainment: float | None
    """Share of the requests that was answered within the SLO; None: the model has none, or nothing came."""
    p50_ms: float | None
    p99_ms: float | None


class Compared(msgspec.Struct, frozen=True):
    """What is said of one model."""

    model: str
    scheduled: Side
    passed: Side
    gain: tuple[float, float] | None
    """95 % interval of what scheduling adds to the attainment, 0.01 for a point; None: nothing is said."""
    why: str
    """Why nothing is said; else empty."""


class _Counts:
    """One share of a model's requests within a block, or in all."""

    __slots__ = ("in_time", "requests", "took")

    def __init__(self) -> None:
        self.requests = self.in_time = 0
        self.took: Counter[int] = Counter()
        """Answers by their class of latency."""

    def add(self, other: "_Counts") -> None:
        """Count what another one has, too."""
        self.requests += other.requests
        self.in_time += other.in_time
        self.took.update(other.took)

    def take(self, other: "_Counts") -> bool:
        """Count what another one has no more; whether nothing is left."""
        self.requests -= other.requests
        self.in_time -= other.in_time
        self.took -= other.took  # which keeps what is positive
        return not (self.requests or self.took)


_Block = dict[tuple[str, bool], _Counts]
"""Counts by model, and by whether they were scheduled."""


class Comparison:
    """The latest ten minutes, in blocks. Holds no clock.

    Blocks settle, are compared for ten minutes, and are forgotten: sums over all of them are kept as they come and go.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        """Blocks by number, counted from the start of the clock, those that have not settled among them."""
        self._settled = 0
        """The number of the first block that has not settled."""
        self._sums: _Block = {}
        """What the blocks that have settled have together."""

    def drew(self, at_ns: int, model: str, *, scheduled: bool) -> None:
        """A request came, and it was decided whether it is scheduled."""
        if counts := self._counts(at_ns, model, scheduled):
            counts.requests += 1

    def answered(self, at_ns: int, model: str, took_ns: int, slo_ns: int | None, *, scheduled: bool) -> None:
        """A request that came at an instant has its answer; what takes longer than a block to settle is not counted."""
        if counts := self._counts(at_ns, model, scheduled):
            counts.in_time += slo_ns is not None and took_ns <= slo_ns
            counts.took[round(math.log(max(1, took_ns), STEP))] += 1

    def settle(self, now_ns: int) -> bool:
        """Let blocks settle and be forgotten; whether anything else than before is to be compared."""
        until = now_ns // BLOCK_NS - SETTLING_BLOCKS + 1
        if until <= self._settled:
            return False
        before = self._settled
        self._settled = until
        for number in sorted(self._blocks):
            if before <= number < until:
                for key, counts in self._blocks[number].items():
                    self._sums.setdefault(key, _Counts()).add(counts)
        for number in [number for number in self._blocks if number < until - MOST_BLOCKS]:
            for key, counts in self._blocks.pop(number).items():
                if self._sums[key].take(counts):
                    del self._sums[key]
        return True

    @property
    def models(self) -> list[str]:
        """The models of which anything is known, by name."""
        return sorted({model for model, _ in self._sums})

    def of(self, model: str, *, has_slo: bool) -> Compared:
        """What is said of a model, by the blocks that have settled."""
        nothing = _Counts()
        rows = [
            (block.get((model, True), nothing), block.get((model, False), nothing))
            for number, block in self._blocks.items()
            if number < self._settled
        ]
        scheduled, passed = (_side(self._sums.get((model, which), nothing), has_slo) for which in (True, False))
        why = _why_not(has_slo, scheduled, passed, sum(any(side.requests for side in row) for row in rows))
        return Compared(model, scheduled, passed, None if why else difference_of(rows), why)

    def _counts(self, at_ns: int, model: str, scheduled: bool) -> _Counts | None:
        number = at_ns // BLOCK_NS
        if number < self._settled:
            return None
        block = self._blocks.setdefault(number, {})
        return block.get((model, scheduled)) or block.setdefault((model, scheduled), _Counts())


def _why_not(has_slo: bool, scheduled: Side, passed: Side, blocks: int) -> str:
    if not has_slo:
        return "the model has no SLO"
    if passed.answered > passed.requests:
        return "more was answered than could have been scheduled: sequences, shared memory or the like pass, too"
    if min(scheduled.requests, passed.requests) < ENOUGH_REQUESTS or blocks < ENOUGH_BLOCKS:
        return (
            f"{scheduled.requests} scheduled and {passed.requests} passed in {blocks} blocks of "
            f"{BLOCK_NS // 1_000_000_000} s are too few"
        )
    return ""


def _side(counts: _Counts, has_slo: bool) -> Side:
    return Side(
        counts.requests,
        counts.took.total(),
        round(counts.in_time / counts.requests, 4) if has_slo and counts.requests else None,
        _quantile_ms(counts.took, 0.5),
        _quantile_ms(counts.took, 0.99),
    )


def _quantile_ms(took: Counter[int], share: float) -> float | None:
    wanted, seen = math.ceil(share * took.total()), 0
    for length in sorted(took):
        seen += took[length]
        if seen >= wanted:
            return round(STEP**length / 1e6, 3)
    return None


def difference_of(blocks: Sequence[tuple[_Counts, _Counts]]) -> tuple[float, float]:
    """95 % interval of the share in time of the first of each pair, less that of the second.

    The wider one of two, on each side: Newcombe's (1998, method 10), which holds for few requests and for shares near
    0 and 1, and that of the linearised ratio over blocks, which holds where requests of one block share their luck.
    """
    one, other = (
        (sum(row[side].requests for row in blocks), sum(row[side].in_time for row in blocks)) for side in (0, 1)
    )
    p, q = one[1] / one[0], other[1] / other[0]
    (p_low, p_high), (q_low, q_high) = _wilson(*one), _wilson(*other)
    count = sum(any(side.requests for side in row) for row in blocks)
    residuals = [(a.in_time - p * a.requests) / one[0] - (b.in_time - q * b.requests) / other[0] for a, b in blocks]
    spread = Z * math.sqrt(count / (count - 1) * sum(residual**2 for residual in residuals))
    low = p - q - max(spread, math.hypot(p - p_low, q_high - q))
    high = p - q + max(spread, math.hypot(p_high - p, q - q_low))
    return round(low, 4), round(high, 4)


def _wilson(requests: int, in_time: int) -> tuple[float, float]:
    share, z2 = in_time / requests, Z * Z
    middle = (share + z2 / (2 * requests)) / (1 + z2 / requests)
    half = Z * math.sqrt(share * (1 - share) / requests + z2 / (4 * requests**2)) / (1 + z2 / requests)
    return middle - half, middle + half
