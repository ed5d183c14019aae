"""What is scheduled against what passes: intervals hold what they promise; where little is known nothing is said."""

import random
import tracemalloc

import pytest

from tests.examples import few
from tidegate_proxy.rollout.comparison import (
    BLOCK_NS,
    BURN_IN_NS,
    MAX_BLOCKS,
    SETTLING_BLOCKS,
    Comparison,
    ModelComparison,
)

SLO_NS = 10_000_000
LATE_NS, SOON_NS = 2 * SLO_NS, SLO_NS // 2


BLOCKS = 200
NOW_NS = (BLOCKS + SETTLING_BLOCKS) * BLOCK_NS


def compare(
    rng: random.Random, scheduled: float, passed: float, share: float, luck: float, requests: int
) -> Comparison:
    """Blocks of requests of which such shares are on time, but for what the luck of a block adds or takes."""
    comparison = Comparison()
    for number in range(BLOCKS):
        lucky, drawn = rng.uniform(-luck, luck), rng.random() < share
        for _ in range(requests // BLOCKS):
            at_ns = number * BLOCK_NS + rng.randrange(BURN_IN_NS, BLOCK_NS)
            on_time = rng.random() < (scheduled if drawn else passed) + lucky
            comparison.drew(at_ns, "m", scheduled=drawn)
            comparison.answered(at_ns, "m", SOON_NS if on_time else LATE_NS, SLO_NS, scheduled=drawn)
    return comparison


def report(comparison: Comparison, now_ns: int, *, has_slo: bool = True) -> list[ModelComparison]:
    """What is said of all models."""
    comparison.settle(now_ns)
    return [comparison.of(model, has_slo=has_slo) for model in comparison.models]


@pytest.mark.parametrize(
    "truth",
    few([(0.8, 0.7, 0.15, 0.15), (0.9, 0.7, 0.2, 0.0), (0.99, 0.97, 0.15, 0.0), (0.8, 0.8, 0.5, 0.15)]),
)
def test_the_interval_holds_the_truth_as_often_as_it_says(truth: tuple[float, float, float, float]) -> None:
    scheduled, passed, *_ = truth
    rng, held, rounds = random.Random(1), 0, 75
    for _ in range(rounds):
        (compared,) = report(compare(rng, *truth, 4000), NOW_NS)
        assert compared.gain is not None
        low, high = compared.gain
        held += low <= scheduled - passed <= high
        assert high - low < 0.3
    assert held >= 0.92 * rounds


def test_that_few_blocks_have_met_no_bad_one_is_no_gain() -> None:
    """Nothing differs, but that all is late in one block of twenty: twelve blocks often have none of those."""
    rng, said = random.Random(1), 0
    for _ in range(60):
        comparison = Comparison()
        for number in range(BLOCKS):
            at_ns, drawn, bad = number * BLOCK_NS + BURN_IN_NS, rng.random() < 0.06, rng.random() < 0.05
            for _ in range(10):
                comparison.drew(at_ns, "m", scheduled=drawn)
                comparison.answered(at_ns, "m", LATE_NS if bad else SOON_NS, SLO_NS, scheduled=drawn)
        (compared,) = report(comparison, NOW_NS)
        said += compared.gain is not None and not compared.gain[0] <= 0 <= compared.gain[1]
    assert said <= 3


def test_a_comparison_that_begins_while_it_serves_counts_no_answers_of_before() -> None:
    begins_ns = 10 * BLOCK_NS + BURN_IN_NS
    comparison = Comparison(begins_ns)
    for number in (9, 10, 11):
        comparison.answered(number * BLOCK_NS + BURN_IN_NS, "m", SOON_NS, SLO_NS, scheduled=True)
    comparison.drew(11 * BLOCK_NS + BURN_IN_NS, "m", scheduled=True)
    (compared,) = report(comparison, (11 + SETTLING_BLOCKS) * BLOCK_NS)
    assert (compared.scheduled.requests, compared.scheduled.answered) == (1, 1)


def test_all_on_time_on_both_sides_is_no_certainty() -> None:
    (compared,) = report(compare(random.Random(2), 1.0, 1.0, 0.1, 0.0, 6000), NOW_NS)
    assert compared.gain is not None
    low, high = compared.gain
    assert low < -0.005 < 0 < high
    assert (compared.scheduled.attainment, compared.passed.attainment) == (1.0, 1.0)
    assert compared.passed.p50_ms == pytest.approx(5, rel=0.02)


def test_a_request_without_an_answer_is_not_on_time() -> None:
    comparison = compare(random.Random(3), 1.0, 1.0, 0.5, 0.0, 4000)
    for number in range(BLOCKS):
        for _ in range(10):
            comparison.drew(number * BLOCK_NS + BURN_IN_NS, "m", scheduled=True)
    (compared,) = report(comparison, NOW_NS)
    assert compared.scheduled.attainment == pytest.approx(0.5, abs=0.03)
    assert compared.gain is not None
    assert compared.gain[1] < -0.4


def test_what_is_not_known_is_not_said() -> None:
    comparison = compare(random.Random(4), 1.0, 0.5, 0.02, 0.0, 2500)
    (few,) = report(comparison, NOW_NS)
    assert few.gain is None
    assert "too few requests" in few.why
    (without,) = report(comparison, NOW_NS, has_slo=False)
    assert (without.gain, without.why, without.scheduled.attainment) == (None, "the model has no SLO", None)


def test_responses_to_what_cannot_be_scheduled_are_counted_and_widen_the_interval() -> None:
    (without,) = report(compare(random.Random(4), 0.9, 0.6, 0.5, 0.0, 2500), NOW_NS)
    comparison = compare(random.Random(4), 0.9, 0.6, 0.5, 0.0, 2500)
    bypassed = next(
        number for number in range(BLOCKS) if (block := comparison._blocks.get(number)) and ("m", False) in block
    )
    for _ in range(100):
        comparison.answered(bypassed * BLOCK_NS + BURN_IN_NS, "m", SOON_NS, SLO_NS, scheduled=False)
    (beside,) = report(comparison, NOW_NS)
    assert without.gain is not None
    assert beside.gain is not None
    assert beside.passed.others == 100
    assert beside.gain[0] < without.gain[0], "if all of them were requests that could have been scheduled"
    assert beside.gain[1] > without.gain[1], "if none of them was"


def test_answers_in_blocks_in_which_no_request_of_their_side_came_are_not_counted() -> None:
    """One request of a hundred cannot be scheduled and passes always, on time, also in the nine blocks of ten that are
    scheduled; of those that are let pass a tenth has no answer, whose place they would take."""
    comparison = Comparison()
    for number in range(BLOCKS):
        at_ns, drawn = number * BLOCK_NS + BURN_IN_NS, number % 10 != 0
        for request in range(100):
            comparison.drew(at_ns, "m", scheduled=drawn)
            if drawn or request % 10:
                comparison.answered(at_ns, "m", SOON_NS, SLO_NS, scheduled=drawn)
        comparison.answered(at_ns, "m", SOON_NS, SLO_NS, scheduled=False)
    (compared,) = report(comparison, NOW_NS)
    assert (compared.passed.requests, compared.passed.answered, compared.passed.attainment) == (2000, 1820, 0.91)
    assert compared.gain is not None
    later_ns = NOW_NS + (MAX_BLOCKS + 1) * BLOCK_NS
    assert report(comparison, later_ns) == []


def test_a_share_that_never_has_blocks_enough_is_told_of() -> None:
    comparison = compare(random.Random(4), 1.0, 0.5, 0.01, 0.0, 2500)
    comparison.settle(NOW_NS)
    assert "ten minutes have about 3 scheduled blocks" in comparison.of("m", has_slo=True, share=0.01).why
    assert "ten minutes have about 3 bypassed blocks" in comparison.of("m", has_slo=True, share=0.99).why
    assert "ten minutes" not in comparison.of("m", has_slo=True, share=0.05).why


def test_what_is_old_is_forgotten_and_what_is_new_not_yet_counted() -> None:
    comparison = compare(random.Random(5), 1.0, 0.5, 0.5, 0.0, 2500)
    assert len(report(comparison, NOW_NS)) == 1
    assert not comparison.settle(NOW_NS + 1), "nothing is new within a block"
    later_ns = NOW_NS + MAX_BLOCKS * BLOCK_NS
    comparison.drew(later_ns, "m", scheduled=True)  # within the burn-in
    comparison.drew(later_ns + BURN_IN_NS, "m", scheduled=True)
    assert report(comparison, later_ns) == []
    comparison.answered(NOW_NS + BURN_IN_NS, "m", SOON_NS, SLO_NS, scheduled=True)  # came ten minutes late
    (compared,) = report(comparison, later_ns + SETTLING_BLOCKS * BLOCK_NS)
    assert (compared.scheduled.requests, compared.scheduled.answered, compared.passed.requests) == (1, 0, 0)


def test_sums_are_those_of_the_blocks_however_they_come_and_go() -> None:
    rng, comparison = random.Random(6), Comparison()
    for number in range(3 * MAX_BLOCKS):
        for _ in range(rng.randrange(4)):
            model, scheduled, at_ns = rng.choice("ab"), rng.random() < 0.5, number * BLOCK_NS + BURN_IN_NS
            comparison.drew(at_ns, model, scheduled=scheduled)
            if rng.random() < 0.8:
                comparison.answered(
                    number * BLOCK_NS, model, rng.choice((SOON_NS, LATE_NS)), SLO_NS, scheduled=scheduled
                )
        comparison.settle((number + rng.randrange(3)) * BLOCK_NS)
    settled = [block for number, block in comparison._blocks.items() if number < comparison._settled]
    assert len(comparison._blocks) <= MAX_BLOCKS + SETTLING_BLOCKS + 1
    for key, sums in comparison._sums.items():
        of_key = [block[key] for block in settled if key in block]
        assert sums.requests == sum(each.requests for each in of_key)
        assert sums.on_time == sum(each.on_time for each in of_key)
        assert sums.took.total() == sum(len(each.took) for each in of_key)


def test_ten_minutes_of_a_hundred_models_are_small() -> None:
    """As a histogram for each model and block they took 142 MiB: 4.7 kB each. Of the block of a model:"""
    rng, models, blocks = random.Random(7), [f"m{number}" for number in range(5)], 60
    comparison = Comparison()
    tracemalloc.start()
    for number in range(blocks):
        for model in models:
            for _ in range(112):  # 75 requests/s
                took_ns = int(SLO_NS * rng.lognormvariate(0, 0.5))
                comparison.drew(number * BLOCK_NS + BURN_IN_NS, model, scheduled=True)
                comparison.answered(number * BLOCK_NS + BURN_IN_NS, model, took_ns, SLO_NS, scheduled=True)
    comparison.settle((blocks + SETTLING_BLOCKS) * BLOCK_NS)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held / (len(models) * blocks) < 1000
