"""InSS's reward of decisions, computed with the latency model; heuristics for both stages, as baselines."""

from dataclasses import dataclass

import numpy as np

from tidegate_inss.learned.catalog import Ints, Loads
from tidegate_inss.learned.placement import MAX_MODELS_PER_GPU, Bools, Floats32
from tidegate_inss.learned.sharing import SHARING_ACTION, GpuSlots, SlotShares, slowdowns
from tidegate_inss.prediction import Floats, borne_rps

VIOLATION_PENALTY = 40.0
"""InSS's omega: cost of a violation rate of 1, in normalized throughput."""


@dataclass(frozen=True)
class DecisionOutcome:
    """Outcome of each copy, as arrays by copy; without a share all requests of a copy are late."""

    throughput: Floats
    """Throughput with full batches, divided by the model's usual throughput."""
    borne_rps: Floats
    late: Floats
    """Fraction of requests beyond the sustained rate."""

    @property
    def reward(self) -> Floats:
        """Normalized throughput minus the cost of violations."""
        return self.throughput - VIOLATION_PENALTY * self.late


def outcome_of(loads: Loads, slots: GpuSlots, shares: SlotShares) -> DecisionOutcome:
    """Return throughput and fraction of late requests of model copies on their shares, with neighbors always busy."""
    catalog, taken = loads.catalog, slots.taken
    load = slots.load[taken]
    model, units, batch = loads.model[load], shares.units[taken], shares.batch[taken]
    slowed = slowdowns(loads, slots, shares)[taken]
    batch_ms = catalog.tables.transfer_ms[model, 1:] + catalog.tables.gpu_ms[model, units, 1:] * slowed[:, None]
    borne = borne_rps(catalog.batches, batch_ms, catalog.slo_ms[model][:, None])
    borne = np.where(catalog.batches <= batch[:, None], borne, 0.0).max(axis=1)
    throughput = 1000 * batch / batch_ms[np.arange(len(batch)), batch - 1] / catalog.usual_rps[model]
    copies = len(loads.model)
    each, all_borne, late = np.zeros(copies), np.zeros(copies), np.ones(copies)
    each[load], all_borne[load] = throughput, borne
    late[load] = np.clip(1 - borne / loads.rate_rps[load], 0.0, 1.0)
    return DecisionOutcome(each, all_borne, late)


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
