"""Steps between the current and the target instances of one GPU: what stays, and how the rest changes."""

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
