"""Who spoils batches, how long that is remembered, and what finding it out may cost."""

from hypothesis import given
from hypothesis import strategies as some

from tidegate_proxy.spoilers import FIRST_ALONE, MOST_ALONE, MOST_SENDERS, Refusal, RetryBudget, Spoilers

ANN, BOB = ("ann", "m"), ("bob", "m")


def _alone(spoilers: Spoilers, sender: tuple[str, str]) -> int:
    """How many requests of a sender run alone."""
    count = 0
    while spoilers.runs_alone(sender):
        count += 1
    return count


def test_some_requests_run_alone_and_more_as_they_go_on_to_fail() -> None:
    spoilers = Spoilers()
    assert not spoilers
    spoilers.spoiled(ANN)
    assert spoilers
    assert (_alone(spoilers, BOB), _alone(spoilers, ANN)) == (0, FIRST_ALONE)
    assert not spoilers
    for _ in range(3):
        spoilers.spoiled(ANN)
    assert _alone(spoilers, ANN) == 4 * FIRST_ALONE
    for _ in range(50):
        spoilers.spoiled(ANN)
    assert _alone(spoilers, ANN) == MOST_ALONE


def test_who_cannot_be_told_apart_is_not_blamed_and_few_are_remembered() -> None:
    spoilers = Spoilers()
    spoilers.spoiled(("", "m"))
    assert not spoilers
    for number in range(MOST_SENDERS + 1):
        spoilers.spoiled((str(number), "m"))
    assert (_alone(spoilers, ("0", "m")), _alone(spoilers, ("1", "m"))) == (0, FIRST_ALONE)


def test_nobody_is_blamed_while_nothing_is_answered() -> None:
    spoilers = Spoilers()
    refusal = Refusal(spoilers)
    refusal.failed(ANN)
    assert not spoilers, "it may be the Triton"
    refusal.answered()
    refusal.failed(BOB)
    assert (_alone(spoilers, ANN), _alone(spoilers, BOB)) == (FIRST_ALONE, FIRST_ALONE)


@given(some.lists(some.tuples(some.integers(0, 40), some.integers(2, 16))), some.floats(0, 2))
def test_no_more_is_tried_again_than_the_budget_allows(refusals: list[tuple[int, int]], share: float) -> None:
    budget = RetryBudget()
    total = spent = 0
    for came, requests in refusals:
        total += came
        if budget.spend(requests, share, total):
            spent += requests
        assert spent <= RetryBudget.FLOOR + share * total
