"""Which Triton a sequence stays with."""

import json
from collections import Counter
from dataclasses import dataclass
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tidegate_proxy.service.open_sequences import DEFAULT_IDLE_S, OpenSequences, keeper
from tidegate_proxy.service.passthrough import sequence_in_json
from tidegate_proxy.tritons.backend import Backend


@dataclass(frozen=True)
class _Named:
    address: str


def _tritons(*addresses: str) -> list[Backend]:
    return [cast("Backend", _Named(address)) for address in addresses]


@given(
    some.lists(some.text(min_size=1, max_size=8), min_size=2, max_size=8, unique=True),
    some.text(),
    some.integers(0, 7),
)
def test_only_the_sequences_of_a_lost_triton_move(addresses: list[str], sequence: str, lost: int) -> None:
    tritons = _tritons(*addresses)
    before = keeper(sequence, tritons)
    rest = [triton for index, triton in enumerate(tritons) if index != lost]
    assert keeper(sequence, rest) == before or before not in rest
    assert keeper(sequence, tritons[::-1]) == before


def test_sequences_are_spread_evenly() -> None:
    tritons = _tritons(*(f"10.0.0.{number}:8001" for number in range(4)))
    counts = Counter(keeper(f"m {number}", tritons).address for number in range(4000))
    assert len(counts) == 4
    assert min(counts.values()) > 850


@pytest.mark.parametrize(
    ("document", "sequence"),
    [
        ({"inputs": [], "parameters": {"sequence_id": 7}}, "7"),
        ({"inputs": [], "parameters": {"sequence_id": "seven"}}, "seven"),
        ({"inputs": [], "parameters": {"sequence_id": 0}}, ""),
        ({"inputs": [], "parameters": {"sequence_id": 2**64 - 1}}, str(2**64 - 1)),
        ({"inputs": [], "parameters": {"sequence_id": 10**30}}, ""),
        ({"id": '"sequence_id":5', "parameters": {"sequence_id": 8}}, "8"),
        ({"id": "sequence_id", "parameters": {"sequence_start": True}}, ""),
        ({"id": "sequence_id"}, ""),
    ],
)
def test_the_id_of_a_sequence_in_json(document: object, sequence: str) -> None:
    assert sequence_in_json(json.dumps(document).encode()).id == sequence
    assert sequence_in_json(json.dumps(document, indent=1).encode()).id == sequence


def test_a_sequence_that_has_begun_stays_whatever_tritons_join_or_drain() -> None:
    first, *others = tritons = _tritons(*(f"10.0.0.{number}:8001" for number in range(8)))
    open_sequences = OpenSequences()
    begun = {str(number): open_sequences.route(0.0, "m", str(number), [first], [first]) for number in range(20)}
    assert set(begun.values()) == {first}
    moved = [number for number in begun if keeper(f"m {number}", tritons) is not first]
    assert moved, "by their ids alone some would move to the Tritons that joined"
    for number in begun:
        assert open_sequences.route(0.5, "m", number, others, tritons) is first, "it stays, though its Triton drains"
    assert open_sequences.count(0.5, "m", first, {}) == 20
    for number in list(begun)[:15]:
        open_sequences.end("m", number)
    assert open_sequences.count(0.5, "m", first, {}) == 5
    assert open_sequences.count(0.5 + 2 * DEFAULT_IDLE_S, "m", first, {}) == 0, "what pauses for too long has ended"
    assert open_sequences.count(0.5 + 2 * DEFAULT_IDLE_S, "m", first, {"m": 60.0}) == 5
    assert open_sequences.route(0.6, "m", "0", others, tritons) is not first, "it had ended: this is a new one"
    assert open_sequences.route(0.6, "m", "19", others, others) is not first, "its Triton is lost"
