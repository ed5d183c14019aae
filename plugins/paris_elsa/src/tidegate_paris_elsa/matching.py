"""Assigns planned GPUs to existing ones with the least change."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from tidegate.api import PlanningError
from tidegate.api.device import Device
from tidegate_paris_elsa.instances import Gpu

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
