"""Problems of the planners of shares that are small enough to work out by hand."""

from typing import Any

from tidegate.schemas import InterferenceModel, NonDecreasingLine, Sensitivity, ShareTable, SharingModel
from tidegate_inss.problem import GpuPool, ShareProblem, SharingTenant


def sharing(ms_of_one_row: float, *, ms_per_row: float, **said: Any) -> SharingModel:
    """A model that takes so long on a whole GPU, and inversely proportional to its share."""
    rows, percents = tuple(range(1, 33)), (10, 100)
    whole = [ms_of_one_row + ms_per_row * (each - 1) for each in rows]
    taken_ms = tuple(tuple(ms * 100 / percent for percent in percents) for ms in whole)
    return SharingModel(gpu_ms=ShareTable(rows=rows, percents=percents, taken_ms=taken_ms), **said)


INTERFERENCE = InterferenceModel(
    gpu="V100",
    models={
        "quick": sharing(
            1,
            ms_per_row=0.1,
            transfer_ms=NonDecreasingLine(base=0.1, slope=0.05),
            cache_percent=NonDecreasingLine(base=1, slope=0.01),
            dram_percent=NonDecreasingLine(base=2, slope=0.02),
            sensitivity=Sensitivity(cache=0.002, dram=0.001, neighbor=0.05),
        ),
        "slow": sharing(
            5,
            ms_per_row=2,
            cache_percent=NonDecreasingLine(base=3, slope=0.02),
            dram_percent=NonDecreasingLine(base=1, slope=0.05),
            sensitivity=Sensitivity(dram=0.004, neighbor=0.01),
        ),
        "calm": sharing(2, ms_per_row=0.5),
    },
)


def tenant(name: str, rate_rps: float, slo_ms: float, **said: Any) -> SharingTenant:
    return SharingTenant(name=name, rate_rps=rate_rps, slo_ms=slo_ms, **said)


def problem(*models: SharingTenant, gpus: int = 1, memory_mib: int | None = None, **said: Any) -> ShareProblem:
    pool = GpuPool(product="V100", count=gpus, memory_mib=memory_mib)
    return ShareProblem(gpus=(pool,), models=models, **{"interference": INTERFERENCE, **said})
