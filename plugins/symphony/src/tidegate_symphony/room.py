"""Room for requests with little time: how many workers batches that last long have to leave to others.

A batch *blocks* a kind while it lasts longer than a request of that kind can wait: its SLO less what it takes alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt

from tidegate_symphony.eager_merging import Arriving

TOLERATED = 0.0002
"""The share of a kind's requests that may find all workers blocked before others have to leave room for them."""
SPARE = 0.3
"""A load of A is left `A + SPARE * sqrt(A)` workers in whole numbers and one more: without that three tiers of models
lose three times as many on six workers."""
GROWN = 0.25
"""Batches that wait for room are taken to be of what arrives in such a share of their SLO."""


@dataclass(frozen=True, slots=True)
class Room:
    """What requests need that can wait for so long: so many workers that are idle, or are so within that time."""

    wait_ns: int
    workers: int


def rooms_for(kinds: Sequence[Arriving], workers: int, cycle_ns: float | None) -> tuple[Room, ...]:
    """Return the room for each kind whose requests would find all workers blocked too often, the least wait first.

    Too often: as Erlang's loss formula has it, if no batch waited and all were of what arrives in `cycle_ns`; None: in
    the SLO of each. The room is what the load of that kind, and of those with less time, needs in batches of what
    arrives while it can wait; at most half of the workers, and no more than those that block it do without.
    """
    judged = [(kind, kind.outlook.slo_ns) for kind in kinds if kind.rows_per_ns and kind.outlook.slo_ns is not None]
    waits = sorted(
        ((slo_ns - kind.outlook.profile.planned_ns(kind.request_rows), kind) for kind, slo_ns in judged),
        key=lambda entry: entry[0],
    )
    rooms: list[Room] = []
    asked = 0.0
    for wait_ns, kind in waits:
        if wait_ns <= 0:
            continue
        asked += kind.asked_in_cycles_of(wait_ns)
        others = [(each, each.outlook.slo_ns or wait_ns) for each in kinds if each is not kind]
        blocked = sum(each.blocked_in_cycles_of(cycle_ns or slo_ns, wait_ns) for each, slo_ns in others)
        if _lost(workers, blocked) <= TOLERATED:
            continue
        blocking = sum(
            each.asked_in_cycles_of(GROWN * slo_ns)
            for each, slo_ns in others
            if each.outlook.profile.expected_ns(each.request_rows) > wait_ns
        )
        most = min(workers // 2, max(1, round(workers - blocking)))
        rooms.append(Room(wait_ns, min(ceil(asked + SPARE * sqrt(asked)) + 1, most)))
    return tuple(rooms)


def _lost(workers: int, offered: float) -> float:
    """The share of arrivals that find all of so many workers busy (Erlang B)."""
    lost = 1.0
    for number in range(1, workers + 1):
        lost = offered * lost / (number + offered * lost)
    return lost
