"""Random models for training, over the range of measured ones, so that networks do not depend on one table.

The range covers iGniter's measurements of a V100 (AlexNet, ResNet50, VGG19, SSD: one row takes 0.8 to 4.6 ms there, 32
take 5 to 93, on a tenth of the GPU six times as long) and networks of InSS's tables 3 and 4 that hardly depend on the
size of their share (MnasNet, EfficientNet).
"""

import numpy as np

from tidegate.schemas import InterferenceModel
from tidegate.schemas.interference import NonDecreasingLine, Sensitivity, ShareTable, SharingModel
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
    """Its SLO is as InSS's are: so many times what one row takes on a fifth of the GPU."""
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
