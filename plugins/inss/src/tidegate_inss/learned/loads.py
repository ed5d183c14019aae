"""Loads to place: models with their rates; models with high rates as several copies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tidegate_inss.learned.catalog import DESCRIPTION_LENGTH, Catalog, Ints
from tidegate_inss.tables import Floats

MAX_SINGLE_COPY_SHARE = 0.8
"""Share of a GPU above which a model is replicated."""
FEATURE_COUNT = DESCRIPTION_LENGTH + 4


@dataclass(frozen=True)
class Loads:
    """Copies of models by need, largest first; the rate of a model is divided equally among its copies.

    Several problems may be combined, the copies of each together.
    """

    catalog: Catalog
    problem: Ints
    """Index of the problem of each copy."""
    model: Ints
    """Number of each copy's model in the catalog."""
    origin: Ints
    """Number of each copy's model in its problem, common to all copies of a model."""
    rate_rps: Floats
    need: Floats
    """Share of a GPU that each copy needs alone there."""
    memory_mib: Floats
    """Minimum memory of its process in MiB."""
    cache_percent: Floats
    dram_percent: Floats
    """DRAM utilization in percent on the share that it needs."""
    features: NDArray[np.float32]
    """Features of each copy for the networks, shape (copies, FEATURE_COUNT)."""

    @classmethod
    def of(cls, catalog: Catalog, problems: Sequence[tuple[Ints, Floats]], *, gpus: int) -> Self:
        """Create the copies of several problems.

        `problems`: model numbers in the catalog and their rates in requests per second. `gpus`: GPUs of each problem.
        """
        parts = [_copies(catalog, models, rates, gpus) for models, rates in problems]
        problem = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])
        model, origin, rate, need = (np.concatenate(column) for column in zip(*parts, strict=True))
        on = np.clip(np.ceil(need * catalog.units), 1, catalog.units).astype(np.int64)
        batch = _likely_batch(catalog, model, on)
        cache = catalog.tables.cache_percent[model, on, batch]
        dram = catalog.tables.dram_percent[model, on, batch]
        told = [need, np.log1p(rate * catalog.slo_ms[model] / 1000) / 4, cache / 50, dram / 50]
        features = np.concatenate([np.stack(told, axis=1).astype(np.float32), catalog.described[model]], axis=1)
        memory = catalog.memory_mib[model] + catalog.memory_per_row_mib[model]
        return cls(catalog, problem, model, origin, rate, need, memory, cache, dram, features)


def _copies(catalog: Catalog, models: Ints, rates: Floats, gpus: int) -> tuple[Ints, Ints, Floats, Floats]:
    """Models, origins, rates and needs of the copies, those that need most first."""
    whole = catalog.borne_alone_rps[models, -1]
    busy = np.divide(rates, MAX_SINGLE_COPY_SHARE * whole, out=np.ones_like(rates), where=whole > 0)
    times = np.clip(np.ceil(busy), 1, gpus).astype(np.int64)
    origin = np.repeat(np.arange(len(models)), times)
    rate = (rates / times)[origin]
    need = catalog.needed(models[origin], rate)
    order = np.argsort(-need, kind="stable")
    return models[origin][order], origin[order], rate[order], need[order]


def _likely_batch(catalog: Catalog, model: Ints, units: Ints) -> Ints:
    """The largest batch of which two fit into the SLO."""
    alone_ms = catalog.tables.transfer_ms[model, 1:] + catalog.tables.gpu_ms[model, units, 1:]
    fits = (2 * alone_ms <= catalog.slo_ms[model][:, None]) & (catalog.batches <= catalog.max_batch[model][:, None])
    largest: Ints = np.maximum(1, np.where(fits, catalog.batches, 0).max(axis=1))
    return largest
