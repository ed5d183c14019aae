"""Who poisons batches, how long that is remembered, and what finding it out may cost."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as some

from tidegate_proxy.messages.request import BatchRefusal
from tidegate_proxy.scheduling.failures import FIRST_ALONE, MAX_ALONE, MAX_SENDERS, PoisonRequestTracker, RetryBudget

ANN, BOB, CID = ("ann", "m"), ("bob", "m"), ("cid", "m")


def _alone(poison_requests: PoisonRequestTracker, sender: tuple[str, str]) -> int:
    """How many requests of a sender run alone."""
    count = 0
    while poison_requests.company(sender, count) == f"/alone {count}":
        count += 1
    return count


def _halves(poison_requests: PoisonRequestTracker, senders: Sequence[tuple[str, str]]) -> list[set[tuple[str, str]]]:
    """Who share batches only with each other, of those that not everybody shares batches with."""
    halves: dict[str, set[tuple[str, str]]] = {}
    for sender in senders:
        if company := poison_requests.company(sender, 0):
            halves.setdefault(company, set()).add(sender)
    return list(halves.values())


def test_some_requests_run_alone_and_more_as_they_go_on_to_fail() -> None:
    poison_requests = PoisonRequestTracker()
    assert not (poison_requests.alone or poison_requests.suspects)
    poison_requests.poisoned(ANN)
    assert poison_requests.alone
    assert (_alone(poison_requests, BOB), _alone(poison_requests, ANN)) == (0, FIRST_ALONE)
    assert not (poison_requests.alone or poison_requests.suspects)
    for _ in range(3):
        poison_requests.poisoned(ANN)
    assert _alone(poison_requests, ANN) == 4 * FIRST_ALONE
    for _ in range(50):
        poison_requests.poisoned(ANN)
    assert _alone(poison_requests, ANN) == MAX_ALONE


def test_who_cannot_be_told_apart_is_not_blamed_and_few_are_remembered() -> None:
    poison_requests = PoisonRequestTracker()
    poison_requests.poisoned(("", "m"))
    assert not (poison_requests.alone or poison_requests.suspects)
    for number in range(MAX_SENDERS + 1):
        poison_requests.poisoned((str(number), "m"))
    assert (_alone(poison_requests, ("0", "m")), _alone(poison_requests, ("1", "m"))) == (0, FIRST_ALONE)


def test_no_request_is_blamed_while_nothing_is_answered() -> None:
    poison_requests = PoisonRequestTracker()
    refusal = BatchRefusal(poison_requests.poisoned)
    refusal.failed(ANN)
    assert not (poison_requests.alone or poison_requests.suspects), "it may be the Triton"
    refusal.answered()
    refusal.failed(BOB)
    assert (_alone(poison_requests, ANN), _alone(poison_requests, BOB)) == (FIRST_ALONE, FIRST_ALONE)


def test_the_senders_of_a_refused_batch_are_halved_until_they_are_answered() -> None:
    poison_requests = PoisonRequestTracker()
    senders = [(name, "m") for name in "abcdefgh"]
    poison_requests.suspect(senders, BatchRefusal(poison_requests.poisoned))
    assert _halves(poison_requests, senders) == [set(senders[:4]), set(senders[4:])]
    for sender in senders[4:]:
        poison_requests.answered(sender)
    poison_requests.suspect(senders[:4], BatchRefusal(poison_requests.poisoned))
    assert _halves(poison_requests, senders) == [set(senders[:2]), set(senders[2:4])]
    assert _halves(poison_requests, [("a", "n")]) == []


def test_who_is_suspected_and_fails_alone_is_to_blame_once_others_were_answered() -> None:
    poison_requests = PoisonRequestTracker()
    poison_requests.suspect([ANN, BOB, CID], BatchRefusal(poison_requests.poisoned))
    poison_requests.failed_alone(BOB)
    poison_requests.failed_alone(CID)
    assert _halves(poison_requests, [ANN, BOB, CID]) == [{ANN}, {BOB}, {CID}], "it may be the Triton"
    poison_requests.answered(ANN)
    assert _halves(poison_requests, [ANN, BOB, CID]) == [{BOB}, {CID}]
    poison_requests.answered(CID)
    poison_requests.failed_alone(BOB)
    assert [_alone(poison_requests, sender) for sender in (ANN, BOB, CID)] == [0, FIRST_ALONE, 0]
    assert not (poison_requests.alone or poison_requests.suspects)


@given(some.integers(1, 64), some.integers(0), some.data())
def test_who_poisons_every_batch_is_found_though_no_batch_is_tried_again(
    senders: int, poison_request: int, data: some.DataObject
) -> None:
    """Nobody loses more than the batches that it takes to halve the senders down to one."""
    poison_requests, everybody = PoisonRequestTracker(), [(str(number), "m") for number in range(senders)]
    bad = everybody[poison_request % senders]
    lost: Counter[tuple[str, str]] = Counter()
    while not all(
        company.startswith("/alone") for company in (poison_requests.company(bad, 1), poison_requests.company(bad, 2))
    ):
        batches: dict[str, list[tuple[str, str]]] = {}
        for sender in data.draw(some.permutations(everybody)):
            batches.setdefault(poison_requests.company(sender, 0), []).append(sender)
        for batch in batches.values():
            if bad not in batch:
                for sender in batch:
                    poison_requests.answered(sender)
            elif len(batch) > 1:
                poison_requests.suspect(batch, BatchRefusal(poison_requests.poisoned))
                lost.update(batch)
            else:
                poison_requests.failed_alone(bad)
    assert max(lost.values(), default=0) <= (senders - 1).bit_length()
    assert not _halves(poison_requests, [sender for sender in everybody if sender != bad])


@given(some.lists(some.tuples(some.integers(0, 40), some.integers(2, 16))), some.floats(0, 2))
def test_no_more_is_tried_again_than_the_budget_allows(refusals: list[tuple[int, int]], share: float) -> None:
    budget = RetryBudget()
    total = spent = 0
    for came, requests in refusals:
        total += came
        if budget.spend(requests, share, total):
            spent += requests
        assert spent <= RetryBudget.FLOOR + share * total
