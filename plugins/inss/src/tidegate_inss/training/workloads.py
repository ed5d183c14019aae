"""Workloads for training and evaluation: models, rates, number of GPUs and their memory."""

from dataclasses import dataclass

import numpy as np

from tidegate.schemas import InterferenceModel
from tidegate.schemas.interference import NonDecreasingLine, Sensitivity, ShareTable, SharingModel
from tidegate_inss.learned.catalog import Catalog, Ints, Loads, catalog_of
from tidegate_inss.prediction import Floats, tables_of
from tidegate_inss.problem import GpuPool, ShareProblem, SharingTenant

PROFILED_ROWS = (1, 2, 4, 8, 16, 32)
PROFILED_PERCENTS = (10, 15, 20, 30, 40, 50, 60, 80, 100)
GPU_UNITS = (28, 40, 54, 66)
"""MPS units of A30, V100, A100 and H100."""


def drawn_problem(rng: np.random.Generator, models: int, units: int) -> ShareProblem:
    """Return a problem with `models` random models on a GPU of `units` units; rates are drawn for each workload.

    `rng`: random generator.
    """
    names = [f"model_{number}" for number in range(models)]
    measured = {name: drawn_model(rng) for name in names}
    tenants = tuple(_tenant(rng, name, model) for name, model in measured.items())
    interference = InterferenceModel(gpu="made-up", models=measured)
    return ShareProblem(
        gpus=(GpuPool(product="made-up", count=1),), interference=interference, models=tenants, units=units
    )


def drawn_model(rng: np.random.Generator) -> SharingModel:
    """Return a random model: launch time independent of the share, compute time inversely proportional to it.

    `rng`: random generator.
    """
    launch_ms = _log_uniform(rng, 0.1, 6.0)
    row_ms = _log_uniform(rng, 0.05, 3.5)
    batch_ms = row_ms * _log_uniform(rng, 0.1, 3.0)
    steepness = rng.uniform(0.7, 1.05)
    # Few rows do not fill a GPU: a share beyond this does nothing for them.
    filled_by_one, growth = rng.uniform(0.2, 1.0), rng.uniform(0.1, 0.5)
    rows, shares = np.array(PROFILED_ROWS)[:, None], np.array(PROFILED_PERCENTS)[None, :] / 100
    used = np.minimum(shares, np.minimum(1.0, filled_by_one * rows**growth))
    taken_ms = launch_ms + (row_ms * rows + batch_ms) / used**steepness
    taken_ms *= rng.lognormal(0.0, 0.03, taken_ms.shape)
    taken_ms = np.maximum.accumulate(np.minimum.accumulate(taken_ms, axis=1), axis=0)
    most_per_s = 1000 * PROFILED_ROWS[-1] / float(taken_ms[-1, -1])
    table = ShareTable(
        rows=PROFILED_ROWS, percents=PROFILED_PERCENTS, taken_ms=tuple(tuple(row) for row in taken_ms.tolist())
    )
    transfer = NonDecreasingLine(
        base=rng.uniform(0, 0.06), slope=rng.uniform(0, 0.06) if rng.random() < 0.8 else rng.uniform(0, 0.3)
    )
    minds_cache, minds_dram = rng.uniform(0, 0.003, 2) * (rng.random(2) < 0.6)
    return SharingModel(
        gpu_ms=table,
        transfer_ms=transfer,
        cache_percent=NonDecreasingLine(base=rng.uniform(0, 7), slope=_log_uniform(rng, 3, 40) / most_per_s),
        dram_percent=NonDecreasingLine(base=rng.uniform(0, 20), slope=_log_uniform(rng, 3, 50) / most_per_s),
        sensitivity=Sensitivity(cache=minds_cache, dram=1.5 * minds_dram, neighbor=rng.uniform(0, 0.08)),
    )


def _tenant(rng: np.random.Generator, name: str, model: SharingModel) -> SharingTenant:
    """Return the SLO as in InSS: a multiple of the latency of one row on a fifth of the GPU."""
    slo_ms = _log_uniform(rng, 2.5, 20.0) * model.gpu_ms.at(1, 20)
    return SharingTenant(
        name=name,
        rate_rps=1.0,
        slo_ms=slo_ms,
        memory_mib=_log_uniform(rng, 400, 4000),
        memory_per_row_mib=_log_uniform(rng, 2, 100),
    )


def _log_uniform(rng: np.random.Generator, least: float, most: float) -> float:
    return float(np.exp(rng.uniform(np.log(least), np.log(most))))


MEMORY_MIB = (8_000, 16_000, 40_000, 80_000)
LEAST_LOAD, MOST_LOAD = 0.3, 0.9
"""Range of the total load of all models relative to the GPUs, without interference."""
PROBLEMS_PER_ROUND = 32
"""Number of problems with four GPUs in a round of training; with more GPUs, fewer."""
MODELS_PER_GPU_SIZE = 192
"""Number of random models for each size of GPU."""


@dataclass(frozen=True)
class Workload:
    """Problems that are decided together, with equal numbers of GPUs."""

    catalog: Catalog
    problems: tuple[tuple[Ints, Floats], ...]
    """Model numbers in the catalog, and rates in requests per second, of each problem."""
    memory_mib: Floats
    """Memory of the GPUs in MiB, shape (problems, GPUs)."""

    @property
    def loads(self) -> Loads:
        """Copies of all models, to place."""
        return Loads.of(self.catalog, self.problems, gpus=self.memory_mib.shape[1])


class Workloads:
    """Source of random workloads; another seed gives other models and rates."""

    def __init__(self, seed: int, *, interference: bool = True, pool: int = MODELS_PER_GPU_SIZE) -> None:
        models = np.random.default_rng((seed, 0))
        made_up = (drawn_problem(models, pool, units) for units in GPU_UNITS)
        self._catalogs = [catalog_of(each, tables_of(each), interference=interference) for each in made_up]
        self.rng = np.random.default_rng((seed, 1))

    def draw(self, problems: int, gpus: int) -> Workload:
        """Return `problems` random problems of `gpus` GPUs, with two to four models per GPU on average."""
        rng = self.rng
        catalog = self._catalogs[rng.integers(len(self._catalogs))]
        drawn = [drawn_rates(catalog, gpus, rng) for _ in range(problems)]
        memory = rng.choice(MEMORY_MIB, (problems, 1)) * np.ones((problems, gpus))
        return Workload(catalog, tuple(drawn), memory)


def drawn_rates(catalog: Catalog, gpus: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
    """Return one to four models of the catalog for each GPU, and their random rates in requests per second."""
    number = max(1, round(gpus * rng.uniform(1.0, 4.0)))
    models = rng.integers(len(catalog.slo_ms), size=number)
    weights = rng.gamma(rng.uniform(0.7, 4.0), size=number) + 0.02
    need = weights / weights.sum() * gpus * rng.uniform(LEAST_LOAD, MOST_LOAD)
    units = need * catalog.units
    low = np.minimum(np.floor(units).astype(np.int64), catalog.units)
    borne = catalog.borne_alone_rps[models]
    at = np.arange(number)
    above = borne[at, np.minimum(low + 1, catalog.units)]
    rates = borne[at, low] + (units - low).clip(0, 1) * (above - borne[at, low])
    rates *= np.maximum(1.0, units / catalog.units)
    # A share on which the model sustains no load gives no rate: the model gets a small fraction of its largest rate.
    small = 0.02 * borne[:, -1]
    return models, np.where(borne[:, -1] > 0, np.maximum(rates, small), 1.0)
