"""The adaptive concurrency limit finds the knee of emulated token models, in virtual time."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import pairwise
from random import Random

import pytest

from tidegate.control.concurrency_limit import (
    INITIAL_LIMIT,
    MAX_AGE_WINDOWS,
    MIN_WINDOW_RESPONSES,
    ConcurrencyLimit,
)

GAP_NS = 20_000_000
PREFILL_GAPS = 5
TOKENS = 60
Slowdown = Callable[[int], float]


def _linear(fraction: float) -> Slowdown:
    """Each further stream slows all others down alike: the knee is where the gap has doubled."""
    return lambda streams: 1 + fraction * (streams - 1)


def _saturating(streams: int) -> Slowdown:
    """Streams cost nothing up to the capacity of the device, and share it from there on."""
    return lambda running: max(1.0, running / streams)


def _run(
    limit: ConcurrencyLimit,
    slowdown: Slowdown,
    *,
    waiting: int,
    tokens: int,
    seed: int = 1,
    later: Slowdown | None = None,
) -> list[int]:
    """Emulate a server with so many streams that wait or run at any time; the limits after each of its tokens.

    `waiting`: number of clients, each of which sends its next request as soon as the last one is answered. `later`: the
    slowdown in the second half.
    """
    rng, now_ns, running, number = Random(seed), 0, 0, 0
    agenda: list[tuple[int, int, int]] = []
    limits: list[int] = []

    def gap_ns() -> int:
        present = later if later and len(limits) > tokens // 2 else slowdown
        return round(GAP_NS * present(running) * rng.lognormvariate(-0.02, 0.2))

    while len(limits) < tokens:
        while running < min(limit.limit, waiting):
            limit.begin(now_ns)
            running += 1
            number += 1
            heappush(agenda, (now_ns + PREFILL_GAPS * gap_ns(), number, max(1, round(rng.expovariate(1 / TOKENS)))))
        now_ns, who, left = heappop(agenda)
        limit.respond(now_ns)
        limits.append(limit.limit)
        if left > 1:
            heappush(agenda, (now_ns + gap_ns(), who, left - 1))
        else:
            limit.end(now_ns)
            running -= 1
    return limits


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("slowdown", "knee"),
    [(_linear(0.05), 19), (_linear(0.02), 49), (_linear(0.2), 4), (_saturating(16), 16), (_saturating(64), 64)],
    ids=["5 %", "2 %", "20 %", "16 at once", "64 at once"],
)
def test_the_limit_is_found_and_kept(slowdown: Slowdown, knee: int, seed: int) -> None:
    limits = _run(ConcurrencyLimit(), slowdown, waiting=1000, tokens=150_000, seed=seed)
    settled = limits[len(limits) // 2 :]
    mean = sum(settled) / len(settled)
    assert knee / 1.3 <= mean <= knee * 1.3, "levels are 25 % apart, and whole numbers"
    assert sum(one != other for one, other in pairwise(settled)) <= 3, "it does not oscillate"


def test_a_limit_for_the_time_between_responses_is_kept() -> None:
    slo_ns = round(1.6 * GAP_NS)
    limits = _run(ConcurrencyLimit(slo_ns), _linear(0.05), waiting=1000, tokens=60_000)
    # First responses take five gaps: of 60 responses, 64 times (1 + 0.05 (n - 1)) gaps, which is 1.6 at n = 11.
    assert set(limits[len(limits) // 2 :]) == {10}


def test_at_light_load_it_is_no_limit() -> None:
    """As many run at once as with a fixed limit, and nothing is tried."""
    for waiting in range(1, INITIAL_LIMIT):
        assert set(_run(ConcurrencyLimit(), _linear(0.2), waiting=waiting, tokens=5_000)) == {INITIAL_LIMIT}


def test_a_server_that_becomes_slower_is_measured_again() -> None:
    limits = _run(ConcurrencyLimit(), _saturating(64), later=_saturating(16), waiting=1000, tokens=400_000)
    assert (limits[len(limits) // 2], limits[-1]) == (60, 15)


def test_a_limit_that_was_not_observed_for_long_is_kept_until_it_is_observed_again() -> None:
    """Surplus streams, from before the limit was lowered, are at it and observed at a level above."""
    limit, now_ns, busy = ConcurrencyLimit(), 0, 0

    def window(streams: int, gap_ns: int = GAP_NS) -> int:
        """Run so many streams for a window; the limit after it."""
        nonlocal now_ns, busy
        for _ in range(busy, streams):
            limit.begin(now_ns)
        for _ in range(streams, busy):
            limit.end(now_ns)
        busy = streams
        for _ in range(MIN_WINDOW_RESPONSES):
            now_ns += gap_ns // streams
            limit.respond(now_ns)
        return limit.limit

    assert window(8) == 10
    assert window(10, 10 * GAP_NS) == 8
    assert window(8) == 6
    assert window(6, 10 * GAP_NS) == 8
    assert {window(1) for _ in range(MAX_AGE_WINDOWS + 1)} == {8}
    assert window(10) == 8
    assert window(8) in (6, 8, 10)
