"""Scheduling in both stages over any number of GPUs: groups of four, groups of four of these, and so on, from
the top.
"""

from dataclasses import dataclass

import numpy as np

from tidegate_inss.learned.catalog import Ints, Loads
from tidegate_inss.learned.placement import (
    GROUP_SIZE,
    MAX_MODELS_PER_GPU,
    NO_CHILD,
    Floats32,
    GroupChildren,
    Placement,
    Placer,
    place,
)
from tidegate_inss.learned.sharing import GpuSlots, Sharer, SlotShares, decide, observe
from tidegate_inss.prediction import Floats


@dataclass(frozen=True)
class Decision:
    """Placement and shares of copies. GPUs of several problems are numbered consecutively."""

    gpu: Ints
    """GPU of each copy; NOWHERE: none has memory for it."""
    slots: GpuSlots
    shares: SlotShares
    placements: tuple[Placement, ...]
    states: Floats32
    """Inputs of stage 2, shape (GPUs, SHARING_STATE)."""
    actions: Floats32
    """Outputs of stage 2, shape (GPUs, SHARING_ACTION)."""


def schedule(loads: Loads, memory_mib: Floats, placer: Placer, sharer: Sharer) -> Decision:
    """Place all copies, then divide each GPU. `memory_mib`: of the GPUs, shape (problems, GPUs)."""
    problems, gpus = memory_mib.shape
    gpu, placements = _placed(loads, memory_mib, placer)
    slots = GpuSlots.of(loads, gpu, problems * gpus)
    memory = memory_mib.reshape(-1)
    states = observe(loads, slots, memory)
    actions = sharer(states)
    return Decision(gpu, slots, decide(loads, slots, actions, memory), tuple(placements), states, actions)


def layers(gpus: int) -> int:
    """Return the number of placement stages for this many GPUs: 1 for 4, 2 for 16, 3 for 64."""
    number, reached = 1, GROUP_SIZE
    while reached < gpus:
        number, reached = number + 1, reached * GROUP_SIZE
    return number


def _placed(loads: Loads, memory_mib: Floats, placer: Placer) -> tuple[Ints, list[Placement]]:
    """The GPU of each copy, and the steps that led there.

    A group may be found to have memory for a model only in pieces: such models are placed last, anywhere.
    """
    problems, gpus = memory_mib.shape
    depth = layers(gpus)
    width = GROUP_SIZE**depth
    there = np.zeros((problems, width))
    there[:, :gpus] = 1
    memory = np.zeros((problems, width))
    memory[:, :gpus] = memory_mib
    at, steps = loads.problem, []
    for layer in reversed(range(depth)):
        rooms = GroupChildren(_summed(there, layer).astype(np.int64), _summed(memory, layer), layer)
        child, taken = place(loads, at, rooms, placer)
        at = np.where(child == NO_CHILD, NO_CHILD, at * GROUP_SIZE + child)
        steps += taken
    gpu = np.where(at == NO_CHILD, NO_CHILD, at // width * gpus + at % width)
    for copy in np.flatnonzero(gpu == NO_CHILD):
        gpu[copy] = _anywhere(loads, gpu, int(copy), memory_mib)
    return gpu, steps


def _anywhere(loads: Loads, gpu: Ints, copy: int, memory_mib: Floats) -> int:
    """The GPU of a copy's problem that has memory and a slot for it, and the least to do; NOWHERE if none has."""
    gpus = memory_mib.shape[1]
    first = int(loads.problem[copy]) * gpus
    mine = (gpu >= first) & (gpu < first + gpus)
    on = gpu[mine] - first
    memory = np.bincount(on, loads.memory_mib[mine], gpus) + loads.memory_mib[copy]
    fits = (memory <= memory_mib[loads.problem[copy]]) & (np.bincount(on, minlength=gpus) < MAX_MODELS_PER_GPU)
    need = np.where(fits, np.bincount(on, loads.need[mine], gpus), np.inf)
    return first + int(need.argmin()) if fits.any() else NO_CHILD


def _summed(of_gpus: Floats, layer: int) -> Floats:
    """Sums over the GPUs of each child, shape (groups, CHILDREN)."""
    sums: Floats = of_gpus.reshape(-1, GROUP_SIZE, GROUP_SIZE**layer).sum(axis=2)
    return sums
