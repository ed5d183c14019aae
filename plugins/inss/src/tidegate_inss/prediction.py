"""Latency model of a problem: latency of batches beside their neighbors (InSS, section 4.1)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidegate.schemas import SharingModel
from tidegate_inss.problem import ShareProblem


class AssignedShare(NamedTuple):
    """A process of a model on a share of a GPU."""

    model: int
    """Index of the model in the problem."""
    gpu: int
    """Index of the GPU in `ShareProblem.devices`."""
    units: int
    """Size of the share in units, of `ShareProblem.units_per_gpu`."""
    batch: int
    """Maximum batch size in rows."""
    process: int = 0
    """Number of the process; shares of one GPU with the same number other than 0 are one process with serialized
    models.

    All of its models have the units of the process.
    """


def by_gpu(shares: Iterable[AssignedShare], gpus: int) -> list[list[AssignedShare]]:
    """Return the shares of each of `gpus` GPUs, in the given order."""
    sorted_out: list[list[AssignedShare]] = [[] for _ in range(gpus)]
    for share in shares:
        sorted_out[share.gpu].append(share)
    return sorted_out


def first_of_processes(shares: Iterable[AssignedShare]) -> list[AssignedShare]:
    """Return one share of each process of one GPU, in order."""
    seen: set[int] = set()
    firsts = []
    for share in shares:
        if share.process not in seen:
            firsts.append(share)
        if share.process:
            seen.add(share.process)
    return firsts


def why_not(
    shares: Sequence[AssignedShare], units: int, memory_mib: float | None, taken_mib: Sequence[float]
) -> str | None:
    """Return the problem with the shares of one GPU, as text; None if they fit.

    `units`: units of the GPU; `memory_mib`: its memory in MiB, None: unknown; `taken_mib`: memory of each share in MiB.
    """
    if any(share.units < 1 or share.batch < 1 for share in shares):
        return "a share rounds to nothing"
    if (given := sum(share.units for share in first_of_processes(shares))) > units:
        return f"shares of {given} units, and it has {units}"
    if memory_mib is not None and (taken := sum(taken_mib)) > memory_mib:
        return f"processes that take {taken:.0f} MiB, and it has {memory_mib:.0f}"
    return None


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


class Predictor:
    """Latency model of one problem, as tables."""

    def __init__(self, problem: ShareProblem) -> None:
        """Create the latency model of a problem. Raises PlanningError as `ShareProblem.check` does."""
        problem.check()
        self.problem = problem
        self.tables: LatencyTables = tables_of(problem)
        self._minds = self.tables.minds.tolist()

    def batch_ms(self, shares: Sequence[AssignedShare]) -> list[float]:
        """Return the latency in ms of a full batch of each share, all on one GPU and always busy.

        Models that share a process are serialized and are no neighbors; of another process the most disturbing model
        counts.
        """
        tables = self.tables
        cache = [tables.cache_percent.item(model, units, batch) for model, _, units, batch, _ in shares]
        dram = [tables.dram_percent.item(model, units, batch) for model, _, units, batch, _ in shares]
        most: dict[int, tuple[float, float]] = {}
        for at, share in enumerate(shares):
            process = share.process or -1 - at
            before = most.get(process, (0.0, 0.0))
            most[process] = max(before[0], cache[at]), max(before[1], dram[at])
        all_cache, all_dram = sum(each[0] for each in most.values()), sum(each[1] for each in most.values())
        others = len(most) - 1
        taken = []
        for at, (model, _, units, batch, process) in enumerate(shares):
            own = most[process or -1 - at]
            by_cache, by_dram, by_any = self._minds[model]
            added = by_cache * (all_cache - own[0]) + by_dram * (all_dram - own[1]) + by_any * others
            taken.append(tables.transfer_ms.item(model, batch) + tables.gpu_ms.item(model, units, batch) * (1 + added))
        return taken

    def takes_mib(self, share: AssignedShare) -> float:
        """Return the device memory of a share's process in MiB."""
        return self.problem.models[share.model].takes_mib(share.batch)


MARGIN_DEVIATIONS = 1.0
"""Margin in standard deviations of the arrivals during a batch, found by simulation (docs/results/inss.md)."""
MIN_BATCHES_PER_SLO = 2.0
"""Number of batches in the SLO from which no request waits too long."""
MAX_LATE_FRACTION = 0.01
"""Maximum fraction of late requests if fewer batches fit."""
_LEAST_MS = 1e-9


def borne_rps(batches: NDArray[np.int64], batch_ms: Floats, slo_ms: Floats | float) -> Floats:
    """Return the rates in requests per second at which batches of these sizes and latencies are on time; 0 if none is.

    `batches`: rows; `batch_ms`: their latency; `slo_ms`: SLO. Arrays of one shape, or shapes that broadcast.
    """
    mean = np.square((np.sqrt(MARGIN_DEVIATIONS**2 + 4 * batches) - MARGIN_DEVIATIONS) / 2)
    too_early_ms = np.maximum(MIN_BATCHES_PER_SLO * batch_ms - slo_ms, _LEAST_MS)
    return np.where(
        slo_ms >= batch_ms, np.minimum(1000 * mean / batch_ms, 1000 * MAX_LATE_FRACTION / too_early_ms), 0.0
    )
