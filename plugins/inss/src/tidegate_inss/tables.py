"""Stand-alone latency and utilization of models on any share and batch size, as arrays."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidegate.schemas import SharingModel
from tidegate_inss.problem import ShareProblem

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LatencyTables:
    """Arrays of shape (models, units + 1, batches + 1), in ms and percent; index 0 of units and batches is not used.

    A model with a smaller maximum batch than others repeats that batch.
    """

    transfer_ms: Floats
    """Transfer time in ms, which neighbors do not increase; shape (models, batches + 1)."""
    gpu_ms: Floats
    cache_percent: Floats
    dram_percent: Floats
    minds: Floats
    """Sensitivities, shape (models, 3): cost of each percent of cache, of DRAM, and of each neighbor, as a fraction of
    `gpu_ms`.
    """

    @property
    def alone_ms(self) -> Floats:
        """Latency in ms of a batch alone on its share of the GPU."""
        return self.transfer_ms[:, None, :] + self.gpu_ms


def tables_of(problem: ShareProblem) -> LatencyTables:
    """Return the tables of a problem. Raises PlanningError as `ShareProblem.measured` does."""
    models, units = problem.measured.models, problem.units_per_gpu
    most = max(model.max_batch for model in problem.models)
    percents = 100 * np.arange(1, units + 1) / units
    known: dict[tuple[str, int], tuple[Floats, ...]] = {}
    for model in problem.models:
        key = model.name, model.max_batch
        if key not in known:
            rows = np.minimum(np.arange(1, most + 1), model.max_batch)
            known[key] = _tables(models[model.name], rows, percents)
    each = [known[model.name, model.max_batch] for model in problem.models]
    transfer_ms, gpu_ms, cache, dram = (np.stack(arrays) for arrays in zip(*each, strict=True))
    sensitivities = [models[model.name].sensitivity for model in problem.models]
    minds = np.array([(mine.cache, mine.dram, mine.neighbor) for mine in sensitivities])
    return LatencyTables(transfer_ms, gpu_ms, cache, dram, minds)


def _tables(model: SharingModel, rows: NDArray[np.int64], percents: Floats) -> tuple[Floats, ...]:
    """Transfers, computing, cache and DRAM of one model, each with a zero in front along every axis."""
    table = model.gpu_ms
    logs = np.log(np.array(table.taken_ms))
    by_rows = np.array([np.interp(np.log(rows), np.log(table.rows), column) for column in logs.T]).T
    both = np.array([np.interp(np.log(percents), np.log(table.percents), row) for row in by_rows]).T
    # As `ShareTable.at`: beyond the table nothing is promised that was not measured.
    beyond_rows = np.maximum(1.0, rows / table.rows[-1])
    beyond_percents = np.maximum(1.0, table.percents[0] / percents)
    gpu_ms = np.exp(both) * beyond_rows * beyond_percents[:, None]
    rows_per_s = 1000 * rows / gpu_ms
    cache = model.cache_percent.base + model.cache_percent.slope * rows_per_s
    dram = model.dram_percent.base + model.dram_percent.slope * rows_per_s
    transfer_ms = model.transfer_ms.base + model.transfer_ms.slope * rows
    return np.pad(transfer_ms, (1, 0)), *(np.pad(array, ((1, 0), (1, 0))) for array in (gpu_ms, cache, dram))
