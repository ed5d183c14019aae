"""Features of a problem's models for the networks: a description of each model, and the share that a rate needs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tidegate_inss.prediction import Floats, LatencyTables, borne_rps
from tidegate_inss.problem import ShareProblem

Ints = NDArray[np.int64]

DESCRIBED_SHARES = (0.125, 0.25, 0.5, 1.0)
DESCRIBED_BATCH_SIZES = (1, 4, 16, 32)
DESCRIPTION_LENGTH = len(DESCRIBED_SHARES) * len(DESCRIBED_BATCH_SIZES) + 3
"""Number of features of a model: latencies on four shares with four batch sizes, and its sensitivity to neighbors."""
BEARS_NOTHING = 4.0
"""Share that a model counts as needing if a whole GPU cannot serve it."""


@dataclass(frozen=True)
class Catalog:
    """Features of models by number; interference is left out for InSS-ni."""

    tables: LatencyTables
    batches: Ints
    """Batch sizes: 1 to the largest batch of any model."""
    max_batch: Ints
    slo_ms: Floats
    memory_mib: Floats
    memory_per_row_mib: Floats
    borne_alone_rps: Floats
    """Shape (models, units + 1): requests per second that a model sustains alone on this many units of a GPU."""
    usual_rps: Floats
    """Root mean square of each model's stand-alone throughput over shares and batch sizes, used to normalize
    throughputs.
    """
    described: NDArray[np.float32]
    """Features, shape (models, DESCRIPTION_LENGTH)."""

    @property
    def units(self) -> int:
        """Number of units into which a GPU is divided."""
        return self.borne_alone_rps.shape[1] - 1

    def needed(self, models: Ints, rate_rps: Floats) -> Floats:
        """Return the least share of a GPU on which each model alone sustains its rate; above 1: number of GPUs.

        `models`: numbers in the catalog; `rate_rps`: requests per second.
        """
        borne = self.borne_alone_rps[models]
        whole = borne[:, -1]
        least = np.argmax(borne >= rate_rps[:, None], axis=1) / self.units
        beyond = np.divide(rate_rps, whole, out=np.full_like(whole, np.inf), where=whole > 0)
        return np.minimum(np.where(whole >= rate_rps, least, np.maximum(beyond, 1.0)), BEARS_NOTHING)


def catalog_of(problem: ShareProblem, tables: LatencyTables, *, interference: bool = True) -> Catalog:
    """Return the catalog of a problem's models, in order; `interference`: False for InSS-ni, which ignores
    neighbors.
    """
    if not interference:
        tables = replace(
            tables,
            cache_percent=np.zeros_like(tables.cache_percent),
            dram_percent=np.zeros_like(tables.dram_percent),
            minds=np.zeros_like(tables.minds),
        )
    models = problem.models
    slo_ms = np.array([model.slo_ms for model in models])
    max_batch = np.array([model.max_batch for model in models])
    batches = np.arange(1, tables.transfer_ms.shape[1])
    alone_ms = tables.alone_ms[:, 1:, 1:]
    borne = borne_rps(batches, alone_ms, slo_ms[:, None, None])
    borne = np.where(batches <= max_batch[:, None, None], borne, 0.0).max(axis=2)
    rows_per_s = 1000 * np.minimum(batches, max_batch[:, None])[:, None, :] / alone_ms
    return Catalog(
        tables=tables,
        batches=batches,
        max_batch=max_batch,
        slo_ms=slo_ms,
        memory_mib=np.array([model.memory_mib for model in models]),
        memory_per_row_mib=np.array([model.memory_per_row_mib for model in models]),
        borne_alone_rps=np.pad(np.maximum.accumulate(borne, axis=1), ((0, 0), (1, 0))),
        usual_rps=np.sqrt(np.square(rows_per_s).mean(axis=(1, 2))),
        described=_described(tables, slo_ms),
    )


def _described(tables: LatencyTables, slo_ms: Floats) -> NDArray[np.float32]:
    """Latencies as logarithms of their part of the SLO, and what is minded of neighbors, all of them about 1."""
    units, most = tables.gpu_ms.shape[1] - 1, tables.gpu_ms.shape[2] - 1
    rows = np.minimum(np.array(DESCRIBED_BATCH_SIZES), most)
    shares = np.maximum(1, np.rint(np.array(DESCRIBED_SHARES) * units).astype(np.int64))
    alone_ms = tables.alone_ms[:, shares[:, None], rows[None, :]].reshape(len(slo_ms), -1)
    of_slo = np.clip(np.log(alone_ms / slo_ms[:, None]), -4, 3) / 2
    described: NDArray[np.float32] = np.concatenate([of_slo, tables.minds * (200, 200, 10)], axis=1).astype(np.float32)
    return described


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
        features = [need, np.log1p(rate * catalog.slo_ms[model] / 1000) / 4, cache / 50, dram / 50]
        features = np.concatenate([np.stack(features, axis=1).astype(np.float32), catalog.described[model]], axis=1)
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
