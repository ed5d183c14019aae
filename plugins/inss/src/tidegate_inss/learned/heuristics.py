"""Heuristics for both stages: baselines of the networks."""

import numpy as np

from tidegate_inss.learned.catalog import Ints
from tidegate_inss.learned.placement import MAX_MODELS_PER_GPU, Bools, Floats32
from tidegate_inss.learned.sharing import SHARING_ACTION


def to_the_least_busy(states: Floats32, masks: Bools) -> Ints:
    """Stage 1: place each copy, the largest first, on the child with the least load.

    `states`: not used; `masks`: children with memory, in order of load, shape (groups, GROUP_SIZE). Returns a rank for
    each group.
    """
    first: Ints = masks.argmax(axis=1)
    return first


def by_need(states: Floats32) -> Floats32:
    """Stage 2: shares in proportion to stand-alone needs, and the largest batches that are on time.

    `states`: shape (GPUs, SHARING_STATE). Returns actions, shape (GPUs, SHARING_ACTION).
    """
    actions = np.zeros((len(states), SHARING_ACTION), np.float32)
    actions[:, MAX_MODELS_PER_GPU:] = 1.0
    return actions
