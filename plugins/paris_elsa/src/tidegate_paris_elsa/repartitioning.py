"""Assigns planned GPUs to existing ones with the least change, and planned slices so that most instances stay.

A plan gives the number of slices of each profile and model, not their GPUs. GPUs that serve the same are one variable
for each partition, an integer program maximizes what is kept, and models are assigned to slices last.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from tidegate.api import PlanningError
from tidegate.api.device import Device, Mig
from tidegate.api.mig import MigGeometry, Placed
from tidegate_paris_elsa.instances import Gpu, Seats, slots
from tidegate_paris_elsa.program import Row, minimize

SAME_NUMBER_BONUS = 1e-6
"""Bonus for a GPU that keeps its number, as a fraction of the largest cost."""
NO_INSTANCES: Gpu = ()


@dataclass(frozen=True)
class GpuChange:
    """Current and target instances of one GPU."""

    device: Device
    present: Gpu
    planned: Gpu


def match(
    present: Mapping[Device, Gpu],
    planned: Mapping[Device, Gpu],
    nearest: Callable[[Device, Gpu, Gpu], tuple[float, Gpu]],
) -> list[GpuChange]:
    """Return every GPU with its target, with the least total cost.

    `present`, `planned`: instances by device. `nearest(device, present, planned)`: cost of a change of one GPU, and the
    planned instances as they cost that. GPUs of one product are interchangeable. Raises PlanningError if the planned
    layout has more GPUs of a product than there can be.
    """
    changes = []
    for product in sorted({device.product for device in (*present, *planned)}):
        devices = devices_of(product, present, planned)
        wanted = [device for device in planned if device.product == product]
        cells = [planned[device] for device in wanted] + [NO_INSTANCES] * (len(devices) - len(wanted))
        costs = np.zeros((len(devices), len(cells)))
        known: dict[tuple[Gpu, Gpu], tuple[float, Gpu]] = {}
        for row, device in enumerate(devices):
            before = present.get(device, NO_INSTANCES)
            for column, after in enumerate(cells):
                if (before, after) not in known:
                    known[before, after] = nearest(device, before, after)
                costs[row, column] = known[before, after][0]
        same = SAME_NUMBER_BONUS * (costs.max() or 1.0)
        for column, device in enumerate(wanted):
            if device in devices:
                costs[devices.index(device), column] -= same
        for row, column in zip(*linear_sum_assignment(costs), strict=True):
            before = present.get(devices[row], NO_INSTANCES)
            changes.append(GpuChange(devices[row], before, known[before, cells[column]][1]))
    return changes


def devices_of(product: str, present: Mapping[Device, Gpu], planned: Mapping[Device, Gpu]) -> list[Device]:
    """Return the existing GPUs of a product; if more are planned, also GPUs that only the plan names.

    Raises PlanningError if there are too few.
    """
    there = [device for device in present if device.product == product]
    wanted = [device for device in planned if device.product == product]
    new = [device for device in wanted if device not in present]
    missing = len(wanted) - len(there)
    if missing > len(new):
        raise PlanningError(f"planned: it has {len(wanted)} {product}, of which some are the same: number them apart")
    return [*there, *new[: max(0, missing)]]


def in_order(present: Mapping[Device, Gpu], planned: Mapping[Device, Gpu]) -> list[GpuChange]:
    """Return the assignment of GPUs in listed order, as the baseline."""
    changes: list[GpuChange] = []
    for product in sorted({device.product for device in (*present, *planned)}):
        devices = devices_of(product, present, planned)
        cells: Sequence[Gpu] = [gpu for device, gpu in planned.items() if device.product == product]
        for number, device in enumerate(devices):
            after = cells[number] if number < len(cells) else NO_INSTANCES
            changes.append(GpuChange(device, present.get(device, NO_INSTANCES), after))
    return changes


Want = tuple[str, Seats]
"""Planned instance: profile and workers."""
RELATIVE_GAP = 1e-3
"""Relative distance from the maximum value kept at which the search ends."""


@dataclass(frozen=True)
class KeepValue:
    """Seconds saved for each GPC of a slice that stays."""

    cut_s: float
    """Seconds saved if the slice stays but serves other models."""
    load_s: Mapping[Seats, float]
    """Further seconds saved if it serves the same, by its workers."""


def rearranged(
    present: Mapping[Device, Gpu],
    planned: Sequence[Gpu],
    geometry: MigGeometry,
    worth: KeepValue,
    *,
    time_limit_s: float,
) -> dict[Device, Gpu] | None:
    """Return the target of every GPU of a product, together as planned; None if none was found in time.

    `present`: all GPUs with their current instances; `planned`: instances of the planned GPUs; all are MIG instances of
    this geometry. `worth`: value of what is kept. `time_limit_s`: seconds to search.
    """
    wanted: Counter[Want] = Counter()
    for gpu in planned:
        for part, seats in gpu:
            assert isinstance(part, Mig)
            wanted[part.profile, seats] += 1
    alike: defaultdict[Gpu, list[Device]] = defaultdict(list)
    for device, gpu in present.items():
        alike[gpu].append(device)
    cuts = geometry.configurations(profile for profile, _ in wanted)
    chosen = _cut(alike, cuts, wanted, geometry, worth, time_limit_s)
    if chosen is None:
        return None
    cut_of = {}
    for gpu, devices in alike.items():
        waiting = iter(devices)
        for number, cut in enumerate(cuts):
            for _ in range(chosen.get((gpu, number), 0)):
                cut_of[next(waiting)] = cut
    return _hosted(present, cut_of, wanted)


def _cut(
    alike: Mapping[Gpu, Sequence[Device]],
    cuts: Sequence[Placed],
    wanted: Counter[Want],
    geometry: MigGeometry,
    worth: KeepValue,
    time_limit_s: float,
) -> dict[tuple[Gpu, int], int] | None:
    """How many of the GPUs that are alike are cut how, by (GPU, number of the cut).

    Variables: those; then for each wanted slice how many stay and serve the same; then for each profile how many stay.
    """
    gpus, wants = list(alike), list(wanted)
    profiles = sorted({profile for profile, _ in wants})
    size = len(gpus) * len(cuts) + len(wants) + len(profiles)
    first_same, first_stay = len(gpus) * len(cuts), len(gpus) * len(cuts) + len(wants)
    rows: list[Row] = []
    supply: dict[str, dict[int, float]] = {profile: {} for profile in profiles}
    same: dict[Want, dict[int, float]] = {want: {first_same + n: -1.0} for n, want in enumerate(wants)}
    stay: dict[str, dict[int, float]] = {name: {first_stay + n: -1.0} for n, name in enumerate(profiles)}
    for row, gpu in enumerate(gpus):
        serves = dict(gpu)
        for column, cut in enumerate(cuts):
            variable = row * len(cuts) + column
            for part in cut:
                _add(supply[part.profile], variable)
                if part in serves:
                    _add(stay[part.profile], variable)
                    if (part.profile, serves[part]) in same:
                        _add(same[part.profile, serves[part]], variable)
        rows.append(({row * len(cuts) + column: 1.0 for column in range(len(cuts))}, 0.0, float(len(alike[gpu]))))
    needed = Counter[str]()
    for (profile, _), count in wanted.items():
        needed[profile] += count
    rows += [(supply[profile], float(needed[profile]), np.inf) for profile in profiles]
    rows += [(row, 0.0, np.inf) for row in (*same.values(), *stay.values())]
    for number, profile in enumerate(profiles):
        mine = {first_same + n: -1.0 for n, (its, _) in enumerate(wants) if its == profile}
        rows.append(({first_stay + number: 1.0, **mine}, 0.0, np.inf))
    goal = np.zeros(size)
    for number, (profile, seats) in enumerate(wants):
        goal[first_same + number] = -geometry.profile(profile).compute_slices * worth.load_s[seats]
    for number, profile in enumerate(profiles):
        goal[first_stay + number] = -geometry.profile(profile).compute_slices * worth.cut_s
    most = np.full(size, np.inf)
    most[first_same:first_stay] = [wanted[want] for want in wants]
    most[first_stay:] = [needed[profile] for profile in profiles]
    integral = (np.arange(size) < first_same).astype(np.int64)
    result = minimize(goal, rows, integral, most, time_limit_s=time_limit_s, gap=RELATIVE_GAP)
    if result.x is None:
        return None
    return {
        (gpu, column): round(float(result.x[row * len(cuts) + column]))
        for row, gpu in enumerate(gpus)
        for column in range(len(cuts))
    }


def _hosted(
    present: Mapping[Device, Gpu], cut_of: Mapping[Device, Placed], wanted: Counter[Want]
) -> dict[Device, Gpu] | None:
    """Return the instance of each worker: first those that stay, then slices that stay, then new ones."""
    left = wanted.copy()
    hosted: defaultdict[Device, dict[Mig, Seats]] = defaultdict(dict)
    staying: list[tuple[Device, Mig]] = []
    new: list[tuple[Device, Mig]] = []
    for device, cut in cut_of.items():
        serves = dict(present[device])
        for part in cut:
            if part in serves and left[part.profile, serves[part]] > 0:
                left[part.profile, serves[part]] -= 1
                hosted[device][part] = serves[part]
            else:
                (staying if part in serves else new).append((device, part))
    free: defaultdict[str, list[tuple[Device, Mig]]] = defaultdict(list)
    for device, part in (*staying, *new):
        free[part.profile].append((device, part))
    for (profile, seats), count in left.items():
        mine, free[profile] = free[profile][:count], free[profile][count:]
        if len(mine) < count:
            return None
        for device, part in mine:
            hosted[device][part] = seats
    return {
        device: tuple((part, hosted[device][part]) for part in sorted(hosted[device], key=slots)) for device in present
    }


def _add(row: dict[int, float], variable: int) -> None:
    row[variable] = row.get(variable, 0.0) + 1.0
