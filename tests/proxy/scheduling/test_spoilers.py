"""Who spoils batches, how long that is remembered, and what finding it out may cost."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as some

from tidegate_proxy.messages.request import BatchRefusal
from tidegate_proxy.scheduling.failures import FIRST_ALONE, MAX_ALONE, MAX_SENDERS, RetryBudget, Spoilers

ANN, BOB, CID = ("ann", "m"), ("bob", "m"), ("cid", "m")


def _alone(spoilers: Spoilers, sender: tuple[str, str]) -> int:
    """How many requests of a sender run alone."""
    count = 0
    while spoilers.company(sender, count) == f"/alone {count}":
        count += 1
    return count


def _halves(spoilers: Spoilers, senders: Sequence[tuple[str, str]]) -> list[set[tuple[str, str]]]:
    """Who share batches only with each other, of those that not everybody shares batches with."""
    halves: dict[str, set[tuple[str, str]]] = {}
    for sender in senders:
        if company := spoilers.company(sender, 0):
            halves.setdefault(company, set()).add(sender)
    return list(halves.values())


def test_some_requests_run_alone_and_more_as_they_go_on_to_fail() -> None:
    spoilers = Spoilers()
    assert not (spoilers.alone or spoilers.suspects)
    spoilers.spoiled(ANN)
    assert spoilers.alone
    assert (_alone(spoilers, BOB), _alone(spoilers, ANN)) == (0, FIRST_ALONE)
    assert not (spoilers.alone or spoilers.suspects)
    for _ in range(3):
        spoilers.spoiled(ANN)
    assert _alone(spoilers, ANN) == 4 * FIRST_ALONE
    for _ in range(50):
        spoilers.spoiled(ANN)
    assert _alone(spoilers, ANN) == MAX_ALONE


def test_who_cannot_be_told_apart_is_not_blamed_and_few_are_remembered() -> None:
    spoilers = Spoilers()
    spoilers.spoiled(("", "m"))
    assert not (spoilers.alone or spoilers.suspects)
    for number in range(MAX_SENDERS + 1):
        spoilers.spoiled((str(number), "m"))
    assert (_alone(spoilers, ("0", "m")), _alone(spoilers, ("1", "m"))) == (0, FIRST_ALONE)


def test_nobody_is_blamed_while_nothing_is_answered() -> None:
    spoilers = Spoilers()
    refusal = BatchRefusal(spoilers.spoiled)
    refusal.failed(ANN)
    assert not (spoilers.alone or spoilers.suspects), "it may be the Triton"
    refusal.answered()
    refusal.failed(BOB)
    assert (_alone(spoilers, ANN), _alone(spoilers, BOB)) == (FIRST_ALONE, FIRST_ALONE)


def test_the_senders_of_a_refused_batch_are_halved_until_they_are_answered() -> None:
    spoilers = Spoilers()
    senders = [(name, "m") for name in "abcdefgh"]
    spoilers.suspect(senders, BatchRefusal(spoilers.spoiled))
    assert _halves(spoilers, senders) == [set(senders[:4]), set(senders[4:])]
    for sender in senders[4:]:
        spoilers.answered(sender)
    spoilers.suspect(senders[:4], BatchRefusal(spoilers.spoiled))
    assert _halves(spoilers, senders) == [set(senders[:2]), set(senders[2:4])]
    assert _halves(spoilers, [("a", "n")]) == []


def test_who_is_suspected_and_fails_alone_is_to_blame_once_others_were_answered() -> None:
    spoilers = Spoilers()
    spoilers.suspect([ANN, BOB, CID], BatchRefusal(spoilers.spoiled))
    spoilers.failed_alone(BOB)
    spoilers.failed_alone(CID)
    assert _halves(spoilers, [ANN, BOB, CID]) == [{ANN}, {BOB}, {CID}], "it may be the Triton"
    spoilers.answered(ANN)
    assert _halves(spoilers, [ANN, BOB, CID]) == [{BOB}, {CID}]
    spoilers.answered(CID)
    spoilers.failed_alone(BOB)
    assert [_alone(spoilers, sender) for sender in (ANN, BOB, CID)] == [0, FIRST_ALONE, 0]
    assert not (spoilers.alone or spoilers.suspects)


@given(some.integers(1, 64), some.integers(0), some.data())
def test_who_spoils_every_batch_is_found_though_no_batch_is_tried_again(
    senders: int, spoiler: int, data: some.DataObject
) -> None:
    """Nobody loses more than the batches that it takes to halve the senders down to one."""
    spoilers, everybody = Spoilers(), [(str(number), "m") for number in range(senders)]
    bad = everybody[spoiler % senders]
    lost: Counter[tuple[str, str]] = Counter()
    while not all(company.startswith("/alone") for company in (spoilers.company(bad, 1), spoilers.company(bad, 2))):
        batches: dict[str, list[tuple[str, str]]] = {}
        for sender in data.draw(some.permutations(everybody)):
            batches.setdefault(spoilers.company(sender, 0), []).append(sender)
        for batch in batches.values():
            if bad not in batch:
                for sender in batch:
                    spoilers.answered(sender)
            elif len(batch) > 1:
                spoilers.suspect(batch, BatchRefusal(spoilers.spoiled))
                lost.update(batch)
            else:
                spoilers.failed_alone(bad)
    assert max(lost.values(), default=0) <= (senders - 1).bit_length()
    assert not _halves(spoilers, [sender for sender in everybody if sender != bad])


@given(some.lists(some.tuples(some.integers(0, 40), some.integers(2, 16))), some.floats(0, 2))
def test_no_more_is_tried_again_than_the_budget_allows(refusals: list[tuple[int, int]], share: float) -> None:
    budget = RetryBudget()
    total = spent = 0
    for came, requests in refusals:
        total += came
        if budget.spend(requests, share, total):
            spent += requests
        assert spent <= RetryBudget.FLOOR + share * total
