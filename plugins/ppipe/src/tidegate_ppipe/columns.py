"""Columns: every pipeline of a model that meets its SLO and is not dominated by another one.

A column determines everything except the numbers of GPUs: sequence of GPU classes, cuts of the model, workers on a GPU,
and the batch size, the same for all partitions (batch-size unification, appendix A.2). The remaining program decides
the number of GPUs of each column, with the same optimum as the paper's single large program.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from tidegate.schemas import BlockProfile
from tidegate_ppipe.problem import GpuClass, PlannedModel, PpipeProblem

US_PER_S = 1e6
RELATIVE_TOLERANCE = 1e-9
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ColumnPartition:
    """A partition of a column on a share of a GPU class."""

    first: int
    last: int
    """End of its blocks, exclusive."""
    gpu: int
    """Index of the GPU class."""
    share: int
    latency_us: float
    transfer_us: float
    """Transfer time to the next partition in microseconds; 0 for the last one."""
    rate_rps: float
    """Requests per second of one whole GPU, all of its workers together, limited by its link."""


@dataclass(frozen=True)
class Column:
    """A candidate pipeline: partitions, GPU classes, shares and batch size."""

    model: int
    batch: int
    gather_us: float
    parts: tuple[ColumnPartition, ...]

    def gpus_per_rps(self, classes: int) -> Floats:
        """Return the GPUs of each of `classes` classes that a rate of one request per second needs."""
        cost = np.zeros(classes)
        for part in self.parts:
            cost[part.gpu] += 1 / part.rate_rps
        return cost

    @property
    def latency_us(self) -> float:
        """Latency in microseconds from the first request of a batch to its response, without waiting."""
        return self.gather_us + sum(part.latency_us + part.transfer_us for part in self.parts)


class LatencyTables:
    """Profile of a model as arrays: latency of blocks by class, share and batch."""

    def __init__(self, model: PlannedModel, problem: PpipeProblem) -> None:
        profile = self.profile = model.blocks
        self.blocks = len(profile.blocks)
        self.cut_bits = np.array([0, *profile.cut_bytes, 0], dtype=float) * 8
        memory = np.array(profile.memory_mib or [0.0] * self.blocks)
        self.memory = np.concatenate([[0.0], np.cumsum(memory)])
        most_shares = max(gpu.max_share for gpu in problem.classes)
        shape = (problem.max_batch + 1, len(problem.classes), most_shares + 1, self.blocks + 1)
        self._prefixes: Floats = np.full(shape, np.nan)
        for number, gpu in enumerate(problem.classes):
            for share in range(1, gpu.max_share + 1):
                for batch in range(1, problem.max_batch + 1):
                    if not profile.missing(gpu.name, [share], [batch]) or self._between(profile, gpu, share, batch):
                        times = [profile.latency_us(gpu.name, share, batch, i, i + 1) for i in range(self.blocks)]
                        self._prefixes[batch, number, share] = np.concatenate([[0.0], np.cumsum(times)])

    def shares(self, gpu: int, batch: int) -> list[int]:
        """Return the measured shares of a GPU class (`gpu`: its index) for a batch size in rows."""
        return [int(share) for share in np.flatnonzero(~np.isnan(self._prefixes[batch, gpu, :, 0]))]

    def prefixes(self, batch: int) -> Floats:
        """Return cumulative latencies of the first blocks in microseconds for a batch size in rows.

        Indexed by class, share and number of blocks; NaN: not measured.
        """
        sums: Floats = self._prefixes[batch]
        return sums

    @staticmethod
    def _between(profile: BlockProfile, gpu: GpuClass, share: int, batch: int) -> bool:
        return any(
            table.device_class == gpu.name and table.share == share and table.rows[0] <= batch <= table.rows[-1]
            for table in profile.latencies
        )


def times_us(tables: LatencyTables, problem: PpipeProblem) -> dict[int, float]:
    """Return the latency in microseconds of a batch of one row through the whole model, by measured class."""
    return {
        gpu: float(tables.prefixes(1)[gpu, 1, -1]) for gpu in range(len(problem.classes)) if 1 in tables.shares(gpu, 1)
    }


def columns_of(
    number: int,
    tables: LatencyTables,
    problem: PpipeProblem,
    gather_rps: float | None,
    max_partitions: int,
    allowed: Callable[[Sequence[int], Sequence[int]], bool] = lambda _gpus, _shares: True,
    *,
    exact: bool = False,
    is_late: Callable[[], bool] = lambda: False,
) -> list[Column]:
    """Return the columns of a model that may be part of a good plan.

    `number`: index of the model. `gather_rps`: rate at which batches fill, None: no time. `max_partitions`: longest
    pipeline. `allowed(classes, shares)`: whether a sequence may be used. `exact`: keep every column that may be useful;
    otherwise only those useful with divisible GPUs, and whole models on one GPU. `is_late()`: time is up; longer
    pipelines are then left out.
    """
    model = problem.models[number]
    found: list[tuple[Floats, Column]] = []
    for length in range(1, min(max_partitions, tables.blocks) + 1):
        budget_us = model.slo_ms * 1000 * (1 - problem.margin_of(length))
        chosen = list(combinations(range(1, tables.blocks), length - 1))
        cuts = np.array(chosen, dtype=int).reshape(len(chosen), length - 1)
        bounds = np.hstack([np.zeros((len(cuts), 1), int), cuts, np.full((len(cuts), 1), tables.blocks)])
        for batch in range(1, problem.max_batch + 1):
            if length > 1 and is_late():
                break
            gather_us = problem.gather * (batch - 1) / gather_rps * US_PER_S if gather_rps else 0.0
            places = _places(tables, problem, batch, length, allowed)
            found += [
                (costs, Column(number, batch, gather_us, parts))
                for costs, parts in _on_time(tables, problem, bounds, batch, budget_us - gather_us, places, exact=exact)
            ]
        found = _undominated(found, exact=exact)
    return [column for _, column in found]


def _places(
    tables: LatencyTables,
    problem: PpipeProblem,
    batch: int,
    length: int,
    allowed: Callable[[Sequence[int], Sequence[int]], bool],
) -> NDArray[np.int_]:
    """Every sequence of (class, share) that was measured: [sequence, partition, 0 or 1]."""
    return _sequences(
        tuple((gpu, share) for gpu in range(len(problem.classes)) for share in tables.shares(gpu, batch)),
        length,
        allowed,
    )


@lru_cache(maxsize=64)
def _sequences(
    there: tuple[tuple[int, int], ...], length: int, allowed: Callable[[Sequence[int], Sequence[int]], bool]
) -> NDArray[np.int_]:
    """The same for most batches and models."""
    sequences = [
        each
        for each in product(there, repeat=length)
        if allowed([gpu for gpu, _ in each], [share for _, share in each])
    ]
    return np.array(sequences, dtype=int).reshape(len(sequences), length, 2)


def _on_time(
    tables: LatencyTables,
    problem: PpipeProblem,
    bounds: NDArray[np.int_],
    batch: int,
    budget_us: float,
    places: NDArray[np.int_],
    *,
    exact: bool,
) -> Iterator[tuple[Floats, tuple[ColumnPartition, ...]]]:
    """The cuts, of all at all places, within the budget that no other one undercuts, with what they are compared by.

    That is what a request per second takes of each class, or, `exact`, in each partition.
    """
    firsts, ends = bounds[:, :-1], bounds[:, 1:]
    prefixes = tables.prefixes(batch)[places[:, :, 0], places[:, :, 1]]  # [sequence, partition, block]
    parts = np.arange(places.shape[1])
    latencies = prefixes[:, parts, ends] - prefixes[:, parts, firsts]  # [sequence, cut, partition]
    transfers = np.zeros(ends.shape)
    if problem.gbps:
        transfers = batch * tables.cut_bits[ends] / (problem.gbps * 1000)
    fits = latencies.sum(axis=2) + transfers.sum(axis=1) <= budget_us + RELATIVE_TOLERANCE
    memory_mib = np.array([gpu.memory_mib or np.inf for gpu in problem.classes])[places[:, :, 0]]
    held = tables.memory[ends] - tables.memory[firsts]
    fits &= (held * places[:, None, :, 1] <= memory_mib[:, None, :]).all(axis=2)
    sequence, cut = np.nonzero(fits)
    latencies, transfers, bounds, places = latencies[sequence, cut], transfers[cut], bounds[cut], places[sequence]
    gpus, shares = places[:, :, 0], places[:, :, 1]
    rates = batch * shares * US_PER_S / latencies
    if problem.gbps:  # the link of a node carries what its GPUs take, and what they give
        most_bits = np.maximum(tables.cut_bits[bounds[:, :-1]], tables.cut_bits[bounds[:, 1:]])
        share_bps = problem.gbps * 1e9 / np.array([gpu.per_node for gpu in problem.classes])[gpus]
        rates = np.minimum(rates, share_bps / np.maximum(most_bits, RELATIVE_TOLERANCE))
    costs = 1 / rates
    if not exact:
        costs = np.stack([(costs * (gpus == gpu)).sum(axis=1) for gpu in range(len(problem.classes))], axis=1)
    every = np.arange(len(sequence))
    alike = np.split(every, np.flatnonzero(np.diff(sequence)) + 1) if exact or len(parts) == 1 else [every]
    for rows in alike:
        for row in rows[cheapest(costs[rows])]:
            numbers = zip(
                bounds[row, :-1].tolist(),
                bounds[row, 1:].tolist(),
                gpus[row].tolist(),
                shares[row].tolist(),
                latencies[row].tolist(),
                transfers[row].tolist(),
                rates[row].tolist(),
                strict=True,
            )
            yield costs[row], tuple(ColumnPartition(*each) for each in numbers)


def _undominated(found: list[tuple[Floats, Column]], *, exact: bool) -> list[tuple[Floats, Column]]:
    """The columns that no other one replaces."""
    alike: dict[object, list[tuple[Floats, Column]]] = {}
    for costs, column in found:
        places = tuple((part.gpu, part.share) for part in column.parts)
        alike.setdefault(places if exact or len(places) == 1 else None, []).append((costs, column))
    return [group[index] for group in alike.values() for index in cheapest(np.stack([costs for costs, _ in group]))]


def cheapest(costs: Floats) -> list[int]:
    """Return the rows that no other row dominates in every entry; `costs`: shape (rows, entries)."""
    left = np.lexsort(costs.T[::-1])
    kept: list[int] = []
    while len(left):  # no row undercuts one that sorts before it
        kept.append(int(left[0]))
        left = left[~(costs[left[0]] <= costs[left] * (1 + RELATIVE_TOLERANCE)).all(axis=1)]
    return kept
