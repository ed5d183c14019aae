"""Stage 1: places one model after the other on a GPU, or in a group of GPUs; those without memory are masked.

Children are sorted by load, least first, so an action is a rank in that order and equal GPUs need not be learned
separately. Many groups are processed at once, each with its own models, because the cost of a network call hardly
depends on their number.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidegate_inss.learned.catalog import FEATURE_COUNT, Ints, Loads
from tidegate_inss.prediction import Floats

GROUP_SIZE = 4
"""Number of GPUs in a group, and of groups in a larger group: the size that the networks are made for."""
MAX_MODELS_PER_GPU = 8
"""Maximum number of models on a GPU: the size that the networks are made for."""
CHILD_FEATURES = 8
"""Number of features of each child."""
PLACING_STATE = FEATURE_COUNT + 3 + GROUP_SIZE * CHILD_FEATURES
NO_CHILD = -1

Floats32 = NDArray[np.float32]
Bools = NDArray[np.bool_]
Placer = Callable[[Floats32, Bools], Ints]
"""Function from states, shape (groups, PLACING_STATE), and masks, shape (groups, GROUP_SIZE), to ranks of children."""


@dataclass(frozen=True)
class GroupChildren:
    """Children of groups: arrays of shape (groups, GROUP_SIZE)."""

    gpus: Ints
    """Number of GPUs of each child; 0: no such child."""
    memory_mib: Floats
    """Memory of all GPUs of a child together in MiB; infinite if unknown."""
    layer: int
    """Layer: 0 if children are GPUs, 1 if they are groups of GPUs, and so on."""


@dataclass(frozen=True)
class Placement:
    """One placement step of every group with models left: arrays with a row for each."""

    loads: Ints
    """Index of the copy that was placed."""
    group: Ints
    """Index of the group."""
    layer: int
    states: Floats32
    ranks: Ints
    """Rank of the chosen child in the order of the states."""


def place(loads: Loads, group: Ints, rooms: GroupChildren, placer: Placer) -> tuple[Ints, list[Placement]]:
    """Return the child of its group for each copy (NO_CHILD without memory), and the steps.

    `group`: group of each copy; `rooms`: children of the groups; `placer`: chooses.
    """
    order = np.argsort(group, kind="stable")
    order = order[group[order] != NO_CHILD]
    groups = len(rooms.gpus)
    counts = np.bincount(group[order], minlength=groups)
    firsts = np.cumsum(counts) - counts
    filled = _Filled(loads, rooms)
    left = np.zeros((groups, 2))
    np.add.at(left, group[order], np.stack([loads.need[order], np.ones(len(order))], axis=1))
    child = np.full(len(group), NO_CHILD)
    steps = []
    for turn in range(counts.max(initial=0)):
        active = np.flatnonzero(counts > turn)
        now = order[firsts[active] + turn]
        masks = filled.fits(active, now)
        somewhere = masks.any(axis=1)
        active, now, masks = active[somewhere], now[somewhere], masks[somewhere]
        if len(active):
            ranking = filled.ranking(active, masks)
            states = filled.states(active, now, left[active], masks, ranking)
            ranks = placer(states, np.take_along_axis(masks, ranking, axis=1))
            chosen = np.take_along_axis(ranking, ranks[:, None], axis=1)[:, 0]
            filled.add(active, now, chosen)
            child[now] = chosen
            steps.append(Placement(now, active, rooms.layer, states, ranks))
        everybody = order[firsts[counts > turn] + turn]
        left[counts > turn] -= np.stack([loads.need[everybody], np.ones(len(everybody))], axis=1)
    return child, steps


class _Filled:
    """Loads placed so far: needs and use of the models on each child, shape (groups, GROUP_SIZE)."""

    def __init__(self, loads: Loads, rooms: GroupChildren) -> None:
        self._loads = loads
        self._rooms = rooms
        self._divide_by = np.maximum(1, rooms.gpus)
        self._memory = np.zeros(rooms.gpus.shape)
        self._sums = np.zeros((*rooms.gpus.shape, 4))
        # need, cache, DRAM and one for each copy, which are the input of a network.
        self._adds = np.stack(
            [
                loads.need,
                loads.cache_percent / 50,
                loads.dram_percent / 50,
                np.full(len(loads.need), 1 / MAX_MODELS_PER_GPU),
            ],
            axis=1,
        )
        self._copies = np.zeros((*rooms.gpus.shape, int(loads.origin.max(initial=0)) + 1), np.int16)
        self._replicated = len(set(zip(loads.problem.tolist(), loads.origin.tolist(), strict=True))) < len(loads.need)

    def fits(self, active: Ints, now: Ints) -> Bools:
        """Return which children have memory and a slot for the models, by preference without a copy of them."""
        gpus = self._rooms.gpus[active]
        slots = self._sums[active, :, 3] * MAX_MODELS_PER_GPU < MAX_MODELS_PER_GPU * gpus - 0.5
        room = self._memory[active] + self._loads.memory_mib[now, None] <= self._rooms.memory_mib[active]
        fits: Bools = slots & room
        if self._replicated:
            apart = fits & (self._copies[active, :, self._loads.origin[now]] < gpus)
            fits = np.where(apart.any(axis=1, keepdims=True), apart, fits)
        return fits

    def ranking(self, active: Ints, masks: Bools) -> Ints:
        """Return the children by load for each GPU, those without room last."""
        busy = self._sums[active, :, 0] / self._divide_by[active]
        ranking: Ints = np.argsort(np.where(masks, busy, np.inf), axis=1, kind="stable")
        return ranking

    def states(self, active: Ints, now: Ints, left: Floats, masks: Bools, ranking: Ints) -> Floats32:
        """Return the network's input: the model, undecided models, each child in this order."""
        rooms, loads = self._rooms, self._loads
        per_gpu = self._divide_by[active]
        of_group = left / np.maximum(1, rooms.gpus[active].sum(axis=1))[:, None]
        own = np.concatenate([loads.features[now], of_group, np.full((len(now), 1), rooms.layer / 2)], axis=1)
        memory = rooms.memory_mib[active]
        sums = self._sums[active] / per_gpu[..., None]
        after = sums[..., 0] + loads.need[now, None] / per_gpu
        used, wanted = self._memory[active], np.broadcast_to(loads.memory_mib[now, None], memory.shape)
        there = rooms.gpus[active] > 0
        features = [
            masks,
            there,
            *(np.divide(part, memory, out=np.ones_like(memory), where=there) for part in (used, wanted)),
        ]
        children = np.concatenate([np.stack([*features, after], axis=2), sums[..., 1:]], axis=2)
        children = np.take_along_axis(children, ranking[..., None], axis=1)
        states: Floats32 = np.concatenate([own, children.reshape(len(now), -1)], axis=1).astype(np.float32)
        return states

    def add(self, active: Ints, now: Ints, chosen: Ints) -> None:
        """Keep where these were placed."""
        self._memory[active, chosen] += self._loads.memory_mib[now]
        self._sums[active, chosen] += self._adds[now]
        if self._replicated:
            self._copies[active, chosen, self._loads.origin[now]] += 1
