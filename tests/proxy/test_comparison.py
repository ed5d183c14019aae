"""What is scheduled against what passes: intervals hold what they promise; where little is known nothing is said."""

import random

import pytest

from tidegate_proxy.comparison import BLOCK_NS, MOST_BLOCKS, SETTLING_BLOCKS, Comparison

SLO_NS = 10_000_000
LATE_NS, SOON_NS = 2 * SLO_NS, SLO_NS // 2


def compare(
    rng: random.Random, scheduled: float, passed: float, share: float, luck: float, requests: int
) -> Comparison:
    """20 blocks of requests of which such shares are in time, but for what the luck of a block adds or takes."""
    comparison = Comparison()
    for number in range(20):
        lucky = rng.uniform(-luck, luck)
        for _ in range(requests // 20):
            drawn = rng.random() < share
            at_ns = number * BLOCK_NS + rng.randrange(BLOCK_NS)
            in_time = rng.random() < (scheduled if drawn else passed) + lucky
            comparison.drew(at_ns, "m", scheduled=drawn)
            comparison.answered(at_ns, "m", SOON_NS if in_time else LATE_NS, SLO_NS, scheduled=drawn)
    return comparison


NOW_NS = (20 + SETTLING_BLOCKS) * BLOCK_NS


@pytest.mark.parametrize(
    ("scheduled", "passed", "share", "luck"), [(0.9, 0.7, 0.2, 0.0), (0.99, 0.97, 0.1, 0.0), (0.8, 0.8, 0.5, 0.15)]
)
def test_the_interval_holds_the_truth_as_often_as_it_says(
    scheduled: float, passed: float, share: float, luck: float
) -> None:
    rng, held, rounds = random.Random(1), 0, 150
    for _ in range(rounds):
        (compared,) = compare(rng, scheduled, passed, share, luck, 2500).report(NOW_NS, {"m": SLO_NS})
        assert compared.gain is not None
        low, high = compared.gain
        held += low <= scheduled - passed <= high
        assert high - low < 0.25
    assert held >= 0.92 * rounds


def test_all_in_time_on_both_sides_is_no_certainty() -> None:
    (compared,) = compare(random.Random(2), 1.0, 1.0, 0.1, 0.0, 3000).report(NOW_NS, {"m": SLO_NS})
    assert compared.gain is not None
    low, high = compared.gain
    assert low < -0.005 < 0 < high
    assert (compared.scheduled.attainment, compared.passed.attainment) == (1.0, 1.0)
    assert compared.passed.p50_ms == pytest.approx(5, rel=0.02)


def test_a_request_without_an_answer_is_not_in_time() -> None:
    comparison = compare(random.Random(3), 1.0, 1.0, 0.5, 0.0, 4000)
    for number in range(20):
        for _ in range(100):
            comparison.drew(number * BLOCK_NS, "m", scheduled=True)
    (compared,) = comparison.report(NOW_NS, {"m": SLO_NS})
    assert compared.scheduled.attainment == pytest.approx(0.5, abs=0.03)
    assert compared.gain is not None
    assert compared.gain[1] < -0.4


def test_what_is_not_known_is_not_said() -> None:
    comparison = compare(random.Random(4), 1.0, 0.5, 0.02, 0.0, 2500)
    (few,) = comparison.report(NOW_NS, {"m": SLO_NS})
    assert few.gain is None
    assert "are too few" in few.why
    (without,) = comparison.report(NOW_NS, {"m": None})
    assert (without.gain, without.why, without.scheduled.attainment) == (None, "the model has no SLO", None)
    for _ in range(5000):
        comparison.answered(0, "m", SOON_NS, SLO_NS, scheduled=False)
    (stray,) = comparison.report(NOW_NS, {"m": SLO_NS})
    assert stray.why.startswith("more was answered than could have been scheduled")
    assert comparison.report(NOW_NS, {}) == [], "it is not served any more"


def test_what_is_old_is_forgotten_and_what_is_new_not_yet_counted() -> None:
    comparison = compare(random.Random(5), 1.0, 0.5, 0.5, 0.0, 2500)
    later_ns = NOW_NS + (MOST_BLOCKS + 1) * BLOCK_NS
    comparison.drew(later_ns, "m", scheduled=True)
    assert comparison.report(later_ns, {"m": SLO_NS}) == []
    (compared,) = comparison.report(later_ns + SETTLING_BLOCKS * BLOCK_NS, {"m": SLO_NS})
    assert (compared.scheduled.requests, compared.passed.requests) == (1, 0)
