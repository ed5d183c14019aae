"""Learns from co-runs what models use whose use of cache and DRAM nobody measured: by what their neighbors feel of it.

What a batch minds times what its neighbor uses is what is felt: a product of two unknowns. Each is found in turn while
the other one stands still, by least squares with nothing negative, so that the error falls from turn to turn.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import nnls

from tidegate.schemas import InterferenceModel, NonDecreasingLine
from tidegate_loadtest.interference.runs import CoRun

FIT_ITERATIONS = 40
PRIOR_RUNS = 2.0
"""So many runs' worth of belief, for each model, that all are felt alike: a few runs must not say the contrary."""


def learn_uses(
    alone: InterferenceModel, co_runs: Sequence[CoRun], unseen: Sequence[str]
) -> Mapping[str, NonDecreasingLine]:
    """What these models use of what is called cache, by rows per second: 100 for the one that is felt the most.

    `alone` says what the others use. Empty where nobody minds anybody.
    """
    victims = {name: number for number, name in enumerate(sorted(alone.models))}
    columns = {name: number for number, name in enumerate(unseen)}
    most = {name: 100 / alone.models[name].cache_percent.slope for name in unseen}
    sides = [side for run in co_runs for side in run.sides()]
    victim = np.array([victims[tenant.partition] for tenant, _, _ in sides])
    weight, height, cache, dram = np.zeros((4, len(sides)))
    many, rates = np.zeros((2, len(sides), len(unseen)))
    for at, (tenant, neighbors, taken_ms) in enumerate(sides):
        mine = alone.alone(tenant)
        weight[at], height[at] = mine.gpu_ms / taken_ms, (taken_ms - mine.taken_ms) / taken_ms
        for neighbor in neighbors:
            theirs, name = alone.alone(neighbor), neighbor.partition
            if name in columns:
                many[at, columns[name]] += 1
                rates[at, columns[name]] += 1000 * neighbor.rows / theirs.gpu_ms / most[name]
            else:
                cache[at] += theirs.cache_percent
                dram[at] += theirs.dram_percent
    felt = np.hstack([many, rates])
    alike = np.concatenate([np.full(len(unseen), 100.0), np.zeros(len(unseen))])
    if len(unseen) < len(victims):
        alike *= np.mean(cache[cache > 0]) / 100 if cache.any() else 1.0
    used = alike
    for _ in range(FIT_ITERATIONS):
        terms = np.column_stack([cache + felt @ used, dram]) * weight[:, None]
        minds = np.zeros((len(victims), 2))
        for number in victims.values():
            mine = victim == number
            minds[number], _ = nnls(terms[mine], height[mine])
        each = minds[victim]
        told = weight * each[:, 0]
        stiff = np.sqrt(PRIOR_RUNS * np.mean(told**2)) * np.eye(len(alike))
        rest = height - told * cache - weight * each[:, 1] * dram
        used, _ = nnls(np.vstack([felt * told[:, None], stiff]), np.concatenate([rest, stiff @ alike]))
        if not used.any():
            return {}
        if len(unseen) == len(victims):  # then their unit is arbitrary
            used *= 100 / (used[: len(unseen)] + used[len(unseen) :]).max()
    return {
        name: NonDecreasingLine(base=float(used[at]), slope=float(used[len(unseen) + at] / most[name]))
        for name, at in columns.items()
    }
