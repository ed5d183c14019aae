"""Steps between the current and the target instances of one GPU: what stays, how the rest changes, in which order."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from tidegate.api.device import Mig
from tidegate.api.mig import MigGeometry
from tidegate_paris_elsa.instances import Gpu, Instance, Seats, UnnamedWorker, slots, without

Serving = tuple[Instance, Seats]
"""Instance with its workers."""
LoadTime = Callable[[str], float]
"""Function from a partition to the seconds that loading it takes."""


@dataclass(frozen=True)
class ChangeStep:
    """Change of some instances of one GPU: replaced, or loaded with something else; the others keep serving."""

    leaving: tuple[Serving, ...]
    arriving: tuple[Serving, ...]
    seconds: float
    reloads: bool = False
    """Whether the instance stays and only these of its workers change."""


def steps_between(
    present: Gpu, planned: Gpu, geometry: MigGeometry | None, *, cut_s: float, load_s: LoadTime
) -> tuple[ChangeStep, ...]:
    """Return the smallest steps, on disjoint memory slices, so that they can run in any order.

    `geometry`: MIG geometry of the GPU; None: unknown. `cut_s`: seconds to create an instance; `load_s(partition)`: to
    load a partition.
    """
    before, after = dict(present), dict(planned)
    steps = []
    for part in before.keys() & after.keys():
        if before[part] != after[part]:
            gone, come = without(before[part], after[part]), without(after[part], before[part])
            steps.append(ChangeStep(((part, gone),), ((part, come),), _loads(come, load_s, gone), reloads=True))
    leaving = [part for part in before if part not in after]
    arriving = [part for part in after if part not in before]
    for group in _groups([*leaving, *arriving], geometry):
        destroyed = tuple((part, before[part]) for part in leaving if part in group)
        created = tuple((part, after[part]) for part in arriving if part in group)
        load = max((_loads(seats, load_s) for _, seats in created), default=0.0)
        steps.append(ChangeStep(destroyed, created, cut_s + load))
    return tuple(sorted(steps, key=lambda step: [slots(part) for part, _ in (*step.leaving, *step.arriving)]))


def nearest(present: Gpu, planned: Gpu, geometry: MigGeometry | None, cost: Callable[[Gpu], float]) -> Gpu:
    """Return the planned instances with the start slots and models for which the change costs least.

    `cost(instances)`: cost of a change to these instances. Returned unchanged if they are not all MIG instances.
    """
    if geometry is None or not all(isinstance(part, Mig) for part, _ in planned):
        return planned
    seats_by_profile: dict[str, list[Seats]] = {}
    for part, seats in planned:
        assert isinstance(part, Mig)
        seats_by_profile.setdefault(part.profile, []).append(seats)
    names = [name for name, mine in seats_by_profile.items() for _ in mine]
    ways = [
        _hosted(dict(present), placed, {name: list(mine) for name, mine in seats_by_profile.items()})
        for placed in geometry.placements(names)
    ]
    return min(ways, key=lambda way: (cost(way), [slots(part) for part, _ in way])) if ways else planned


def _hosted(present: Mapping[Instance, Seats], placed: Sequence[Mig], waiting: dict[str, list[Seats]]) -> Gpu:
    """Return the instance of each worker: first those that can stay, then the others in order."""
    hosted: dict[Instance, Seats] = {}
    for part in placed:
        if present.get(part) in waiting[part.profile]:
            hosted[part] = present[part]
            waiting[part.profile].remove(present[part])
    for part in placed:
        if part not in hosted:
            hosted[part] = waiting[part.profile].pop(0)
    return tuple((part, hosted[part]) for part in sorted(hosted, key=slots))


def _loads(seats: Seats, load_s: LoadTime, there: Seats = ()) -> float:
    """Seconds until all of it is loaded, one after another in a worker; `there`: the workers that may have it."""
    return max((sum(map(load_s, _missing(seat, there))) for seat in seats), default=0.0)


def _missing(seat: UnnamedWorker, there: Seats) -> list[str]:
    """Return the partitions that a worker must load; a share is fixed for the life of its process."""
    loaded = {name for other in there if other.share == seat.share for name in other.hosts}
    return [name for name in seat.hosts if name not in loaded]


def _groups(parts: Sequence[Instance], geometry: MigGeometry | None) -> list[list[Instance]]:
    """Instances that cannot be there at once, directly or by way of others: they change together."""
    groups: list[list[Instance]] = []
    for part in parts:
        touched = [group for group in groups if any(_clash(part, other, geometry) for other in group)]
        groups = [group for group in groups if group not in touched]
        groups.append([part, *(other for group in touched for other in group)])
    return groups


def _clash(first: Instance, second: Instance, geometry: MigGeometry | None) -> bool:
    if geometry is None or not isinstance(first, Mig) or not isinstance(second, Mig):
        return True
    return _clash_on(geometry, first, second)


@cache
def _clash_on(geometry: MigGeometry, first: Mig, second: Mig) -> bool:
    return not geometry.is_legal((first, second))


def loaded(steps: Iterable[ChangeStep]) -> int:
    """Return the number of partitions that all steps load."""
    total = 0
    for step in steps:
        before = dict(step.leaving) if step.reloads else {}
        for part, seats in step.arriving:
            total += sum(len(_missing(seat, before.get(part, ()))) for seat in seats)
    return total


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
