"""Estimation of unmeasured cache and DRAM use of models, from the slowdown of their neighbors in co-runs.

The slowdown of a batch is its sensitivity times the use of its neighbor: a product of two unknowns. Each is estimated
alternately while the other one is fixed, by non-negative least squares, so that the error falls with every step.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import nnls

from tidegate.schemas import InterferenceModel, NonDecreasingLine
from tidegate_loadtest.interference.runs import CoRun

FIT_ITERATIONS = 40
PRIOR_RUNS = 2.0
"""Weight, in runs per model, of the prior that all models cause equal slowdown: a few runs must not outweigh it."""


def learn_uses(
    alone: InterferenceModel, co_runs: Sequence[CoRun], unseen: Sequence[str]
) -> Mapping[str, NonDecreasingLine]:
    """Estimate the use of the resource called cache by these models, over rows per second: 100 for the heaviest.

    `unseen`: names of the models. `alone`: resource use of the other models. Empty if no model is sensitive to
    neighbors.
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
        cache_weight = weight * each[:, 0]
        stiff = np.sqrt(PRIOR_RUNS * np.mean(cache_weight**2)) * np.eye(len(alike))
        rest = height - cache_weight * cache - weight * each[:, 1] * dram
        used, _ = nnls(np.vstack([felt * cache_weight[:, None], stiff]), np.concatenate([rest, stiff @ alike]))
        if not used.any():
            return {}
        if len(unseen) == len(victims):  # then their unit is arbitrary
            used *= 100 / (used[: len(unseen)] + used[len(unseen) :]).max()
    return {
        name: NonDecreasingLine(base=float(used[at]), slope=float(used[len(unseen) + at] / most[name]))
        for name, at in columns.items()
    }
