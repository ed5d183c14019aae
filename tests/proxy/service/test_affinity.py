"""Which Triton a sequence stays with."""

import json
from collections import Counter
from dataclasses import dataclass
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tidegate_proxy.service.passthrough import keeper, sequence_in_json
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
    assert sequence_in_json(json.dumps(document).encode()) == sequence
    assert sequence_in_json(json.dumps(document, indent=1).encode()) == sequence
