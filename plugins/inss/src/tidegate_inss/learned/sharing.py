"""Stage 2: divides each GPU completely among its models, and sets their batch sizes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tidegate_inss.learned.catalog import FEATURE_COUNT, Ints, Loads
from tidegate_inss.learned.placement import MAX_MODELS_PER_GPU, NO_CHILD, Bools, Floats32
from tidegate_inss.prediction import MIN_BATCHES_PER_SLO, Floats

SLOT_FEATURES = FEATURE_COUNT + 2
SHARING_STATE = MAX_MODELS_PER_GPU * SLOT_FEATURES + 2
SHARING_ACTION = 2 * MAX_MODELS_PER_GPU
MAX_LOG_SHARE_STEP = 0.7
"""Change of a share's logarithm, relative to the model's need, for an action of 1."""

Sharer = Callable[[Floats32], Floats32]
"""Function from states, shape (GPUs, SHARING_STATE), to actions in [-1, 1], shape (GPUs, SHARING_ACTION)."""


@dataclass(frozen=True)
class GpuSlots:
    """Models on each GPU, the largest first: arrays of shape (GPUs, MAX_MODELS_PER_GPU)."""

    load: Ints
    """Index of the copy; 0 if there is none."""
    taken: Bools

    @classmethod
    def of(cls, loads: Loads, gpu: Ints, gpus: int) -> "GpuSlots":
        """Create the slots of copies with known GPUs; copies at NO_CHILD have none. `gpus`: number of GPUs."""
        placed = np.flatnonzero(gpu != NO_CHILD)
        order = placed[np.lexsort((-loads.need[placed], gpu[placed]))]
        counts = np.bincount(gpu[order], minlength=gpus)
        slot = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        load = np.zeros((gpus, MAX_MODELS_PER_GPU), np.int64)
        taken = np.zeros((gpus, MAX_MODELS_PER_GPU), np.bool_)
        load[gpu[order], slot] = order
        taken[gpu[order], slot] = True
        return cls(load, taken)


@dataclass(frozen=True)
class SlotShares:
    """Share of each slot: arrays of shape (GPUs, MAX_MODELS_PER_GPU), 0 for empty slots."""

    units: Ints
    batch: Ints


def observe(loads: Loads, slots: GpuSlots, memory_mib: Floats) -> Floats32:
    """Return the network's input for each GPU, shape (GPUs, SHARING_STATE); `memory_mib`: memory of each GPU in MiB."""
    taken = slots.taken[..., None]
    need = np.where(slots.taken, loads.need[slots.load], 0.0)
    part = need / np.maximum(need.sum(axis=1, keepdims=True), 1e-9)
    each = np.concatenate([taken, part[..., None], np.where(taken, loads.features[slots.load], 0.0)], axis=2)
    memory = np.where(slots.taken, loads.memory_mib[slots.load], 0.0).sum(axis=1) / memory_mib
    whole = np.stack([need.sum(axis=1), memory], axis=1)
    states: Floats32 = np.concatenate([each.reshape(len(each), -1), whole], axis=1).astype(np.float32)
    return states


def decide(loads: Loads, slots: GpuSlots, actions: Floats32, memory_mib: Floats) -> SlotShares:
    """Return shares and batch sizes for actions of stage 2.

    Shares are a softmax over need and action, so a GPU is used completely. Batch sizes start at the largest that is on
    time alone, times the action, and are reduced to what neighbors and memory allow. `memory_mib`: memory of each GPU
    in MiB.
    """
    catalog = loads.catalog
    actions = actions.astype(np.float64)
    logits = np.log(np.maximum(loads.need[slots.load], 1e-3)) + MAX_LOG_SHARE_STEP * actions[:, :MAX_MODELS_PER_GPU]
    units = rounded(softmax(logits, slots.taken), slots.taken, catalog.units)
    model = loads.model[slots.load]
    half_ms = catalog.slo_ms[model][..., None] / MIN_BATCHES_PER_SLO
    transfer_ms = catalog.tables.transfer_ms[model][..., 1:]
    gpu_ms = catalog.tables.gpu_ms[model, units][..., 1:]
    allowed = catalog.batches <= catalog.max_batch[model][..., None]
    alone = _largest(allowed & (transfer_ms + gpu_ms <= half_ms))
    # An action of 1 leaves it, -1 makes it an eighth.
    wanted = np.maximum(1, np.rint(alone * np.exp2(1.5 * (actions[:, MAX_MODELS_PER_GPU:] - 1)))).astype(np.int64)
    wanted = _within_memory(loads, slots, wanted, memory_mib)
    slowed = slowdowns(loads, slots, SlotShares(units, wanted))
    on_time = _largest(allowed & (transfer_ms + gpu_ms * slowed[..., None] <= half_ms))
    return SlotShares(units, np.where(slots.taken, np.minimum(wanted, on_time), 0))


def slowdowns(loads: Loads, slots: GpuSlots, shares: SlotShares) -> Floats:
    """Return the slowdown of each slot beside busy neighbors, shape (GPUs, MAX_MODELS_PER_GPU)."""
    tables, model = loads.catalog.tables, loads.model[slots.load]
    cache = np.where(slots.taken, tables.cache_percent[model, shares.units, shares.batch], 0.0)
    dram = np.where(slots.taken, tables.dram_percent[model, shares.units, shares.batch], 0.0)
    minds = tables.minds[model]
    slowed: Floats = (
        1.0
        + minds[..., 0] * (cache.sum(axis=1, keepdims=True) - cache)
        + minds[..., 1] * (dram.sum(axis=1, keepdims=True) - dram)
        + minds[..., 2] * np.maximum(0, slots.taken.sum(axis=1, keepdims=True) - 1)
    )
    return slowed


def softmax(logits: Floats, taken: Bools) -> Floats:
    """Return shares that add up to 1 on each used GPU, 0 for empty slots; `taken`: slots in use."""
    highest = np.where(taken, logits, -np.inf).max(axis=1, keepdims=True, initial=-1e9)
    weights = np.where(taken, np.exp(np.minimum(logits - highest, 0.0)), 0.0)
    shares: Floats = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-12)
    return shares


def rounded(shares: Floats, taken: Bools, units: int) -> Ints:
    """Return shares in whole units: at least one each, and all `units` of every used GPU; `taken`: slots in use."""
    each = taken.astype(np.int64)
    spare = units - each.sum(axis=1, keepdims=True)
    exact = shares * spare
    whole = np.floor(exact).astype(np.int64)
    over = np.where(taken, exact - whole, -1.0)
    left = np.where(taken.any(axis=1, keepdims=True), spare - whole.sum(axis=1, keepdims=True), 0)
    rank = np.argsort(np.argsort(-over, axis=1, kind="stable"), axis=1, kind="stable")
    # Errors of the sum of shares cannot leave more than there are slots.
    given: Ints = each + whole + (rank < left)
    return given


def _largest(fits: Bools) -> Ints:
    """The largest batch that fits, at least 1; longer batches take longer, so those that fit come first."""
    largest: Ints = np.maximum(1, fits.sum(axis=-1))
    return largest


def _within_memory(loads: Loads, slots: GpuSlots, batch: Ints, memory_mib: Floats) -> Ints:
    """Batch sizes cut by one factor on each GPU whose memory they would exceed; one row fits, or it was not placed."""
    per_row = np.where(slots.taken, loads.catalog.memory_per_row_mib[loads.model[slots.load]], 0.0)
    least = np.where(slots.taken, loads.memory_mib[slots.load], 0.0).sum(axis=1)
    more = (per_row * (batch - 1)).sum(axis=1)
    spare = memory_mib - least
    part = np.divide(spare, more, out=np.ones_like(more), where=more > spare)
    cut: Ints = 1 + np.floor((batch - 1) * np.clip(part, 0.0, 1.0)[:, None]).astype(np.int64)
    return cut
