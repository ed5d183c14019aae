"""Order and parallelism of steps, such that every model keeps a fraction of its capacity."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RELATIVE_TOLERANCE = 1e-9
MAX_TRIED = 20_000
"""Maximum number of sets of finished steps that are examined if the greedy order fails."""

Amounts = Mapping[str, float]
"""Capacity by partition."""


@dataclass(frozen=True)
class CapacityChange:
    """Effect of a step on capacity."""

    lost: Amounts
    """Capacity that is missing while the step runs."""
    gained: Amounts
    """Capacity that is added when the step is done."""


def waves_of(moves: Sequence[CapacityChange], capacity: Amounts, needed: Amounts) -> list[list[int]] | None:
    """Return the steps, by index, in waves: steps of a wave run in parallel, and `needed` capacity is always there.

    `moves`: effects of the steps; `capacity`: current capacity. Steps with the least net loss come first. If that
    fails, orders of single steps are searched up to `MAX_TRIED` sets; None: no order was found.
    """
    left = sorted(range(len(moves)), key=lambda number: (_net(moves[number], capacity), number))
    have = dict(capacity)
    waves: list[list[int]] = []
    while left:
        wave, spare = [], dict(have)
        for number in left:
            if _bears(spare, moves[number].lost, needed):
                wave.append(number)
                spare = _less(spare, moves[number].lost)
        if not wave:
            single = _single_moves(moves, capacity, needed)
            return None if single is None else [[number] for number in single]
        have = spare
        for number in wave:
            have = _less(have, moves[number].gained, -1)
        waves.append(sorted(wave))
        left = [number for number in left if number not in wave]
    return waves


def least_kept(
    moves: Sequence[CapacityChange], waves: Sequence[Sequence[int]], capacity: Amounts, shared: Amounts
) -> float:
    """Return the least fraction of a partition's capacity during the change.

    `waves`: steps by index; `capacity`: current capacity; `shared`: full capacity of each partition.
    """
    have, least = dict(capacity), 1.0
    for wave in waves:
        for number in wave:
            have = _less(have, moves[number].lost)
        least = min([least, *(have.get(name, 0.0) / whole for name, whole in shared.items() if whole > 0)])
        for number in wave:
            have = _less(have, moves[number].gained, -1)
    return max(0.0, least)


def _single_moves(moves: Sequence[CapacityChange], capacity: Amounts, needed: Amounts) -> list[int] | None:
    """An order of single moves: what is there when some are done does not depend on their order."""
    seen: set[frozenset[int]] = set()
    stack: list[tuple[list[int], dict[str, float]]] = [([], dict(capacity))]
    while stack and len(seen) < MAX_TRIED:
        done, have = stack.pop()
        if len(done) == len(moves):
            return done
        for number in reversed([number for number in range(len(moves)) if number not in done]):
            after = frozenset([*done, number])
            if after not in seen and _bears(have, moves[number].lost, needed):
                seen.add(after)
                stack.append(([*done, number], _less(_less(have, moves[number].lost), moves[number].gained, -1)))
    return None


def _net(move: CapacityChange, capacity: Amounts) -> float:
    """How much of any partition it takes for good, as a share; what loses nothing comes first of all."""
    if not any(move.lost.values()):
        return float("-inf")
    names = move.lost.keys() | move.gained.keys()
    return max((move.lost.get(n, 0.0) - move.gained.get(n, 0.0)) / max(capacity.get(n, 0.0), 1e-12) for n in names)


def _bears(have: Amounts, lost: Amounts, needed: Amounts) -> bool:
    return all(
        have.get(name, 0.0) - amount >= needed.get(name, 0.0) * (1 - RELATIVE_TOLERANCE) - RELATIVE_TOLERANCE
        for name, amount in lost.items()
        if amount > 0
    )


def _less(have: Amounts, amounts: Amounts, sign: int = 1) -> dict[str, float]:
    changed = dict(have)
    for name, amount in amounts.items():
        changed[name] = changed.get(name, 0.0) - sign * amount
    return changed
