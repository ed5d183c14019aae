"""Transitions to learn from: decisions of both stages with their rewards.

Rewards are InSS's minus those of the heuristics on the same workload. This does not change which decisions are best,
and removes the differences between workloads, which are much larger than those between decisions.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate_inss.learned.catalog import Loads
from tidegate_inss.learned.outcome import DecisionOutcome, by_need, outcome_of, to_the_least_busy
from tidegate_inss.learned.placement import Placement
from tidegate_inss.learned.scheduling import Decision, schedule
from tidegate_inss.learned.sharing import GpuSlots, decide
from tidegate_inss.prediction import Floats
from tidegate_inss.training.workloads import Workload

Arrays = tuple[NDArray[Any], ...]


def placing_transitions(workload: Workload, loads: Loads, decision: Decision, outcome: DecisionOutcome) -> Arrays:
    """Return states, actions, rewards, following states and ends of all steps of stage 1, group by group, one row each.

    Each step of a group gets an equal part of the group's mean reward, because a placement also affects models placed
    before it and its effect is known only when all are placed.
    """
    ruled = schedule(loads, workload.memory_mib, to_the_least_busy, by_need)
    earned = outcome_of(loads, ruled.slots, ruled.shares).reward
    of_problem = np.bincount(loads.problem, earned) / np.bincount(loads.problem)
    reward = outcome.reward - of_problem[loads.problem]
    layers = sorted({step.layer for step in decision.placements})
    by_layer = ([step for step in decision.placements if step.layer == layer] for layer in layers)
    parts = [_of_layer(steps, reward) for steps in by_layer]
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def sharing_transitions(workload: Workload, loads: Loads, decision: Decision, outcome: DecisionOutcome) -> Arrays:
    """Return states, actions and rewards of GPUs with models; the reward is the mean of their models' rewards."""
    slots = decision.slots
    ruled = decide(loads, slots, by_need(decision.states), workload.memory_mib.reshape(-1))
    better = _of_gpus(slots, outcome.reward - outcome_of(loads, slots, ruled).reward)
    used = slots.taken.any(axis=1)
    return decision.states[used], decision.actions[used], better[used].astype(np.float32)


def _of_layer(steps: list[Placement], reward: Floats) -> Arrays:
    group = np.concatenate([step.group for step in steps])
    order = np.argsort(group, kind="stable")
    group = group[order]
    states = np.concatenate([step.states for step in steps])[order]
    actions = np.concatenate([step.ranks for step in steps])[order]
    loads = np.concatenate([step.loads for step in steps])[order]
    counts = np.bincount(group)
    means = np.bincount(group, reward[loads]) / np.maximum(1, counts)
    ended = np.append(group[1:] != group[:-1], True)
    following = np.where(ended[:, None], states, np.roll(states, -1, axis=0))
    rewards = (means / np.maximum(1, counts))[group]
    return states, actions[:, None], rewards.astype(np.float32), following, ended.astype(np.float32)


def _of_gpus(slots: GpuSlots, reward: Floats) -> Floats:
    """The mean of the rewards of the models on each GPU."""
    means: Floats = np.where(slots.taken, reward[slots.load], 0.0).sum(axis=1) / np.maximum(1, slots.taken.sum(axis=1))
    return means
