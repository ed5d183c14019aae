"""Every pipeline of a model that meets its SLO and that no other one makes useless.

A column is a choice of everything but the numbers of GPUs: a sequence of GPU classes, where the model is cut, how many
workers share a GPU, and the batch size, one for all partitions (batch-size unification, appendix A.2). The program that
is left decides how many GPUs each column gets, which is the same optimum as the paper's one large program.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from tidegate.api import BlockProfile
from tidegate_ppipe.problem import GpuClass, PlannedModel, PpipeProblem

US_PER_S = 1e6
TOLERANCE = 1e-9
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """A partition of a column."""

    first: int
    last: int
    """Blocks, the last one excluded."""
    gpu: int
    """Index of the class."""
    share: int
    latency_us: float
    transfer_us: float
    """To the next partition; 0 after the last."""
    rate_rps: float
    """Of one whole GPU, all of its workers together, as its link allows."""


@dataclass(frozen=True)
class Column:
    """A pipeline that could be used."""

    model: int
    batch: int
    gather_us: float
    parts: tuple[Part, ...]

    def gpus_per_rps(self, classes: int) -> Floats:
        """How much of each class a request per second takes."""
        cost = np.zeros(classes)
        for part in self.parts:
            cost[part.gpu] += 1 / part.rate_rps
        return cost

    @property
    def latency_us(self) -> float:
        """From the first request of a batch to its answer, waiting left out."""
        return self.gather_us + sum(part.latency_us + part.transfer_us for part in self.parts)


class Tables:
    """The profile of a model as arrays: latency of blocks by class, share and batch."""

    def __init__(self, model: PlannedModel, problem: PpipeProblem) -> None:
        profile = self.profile = model.blocks
        self.blocks = len(profile.blocks)
        self.cut_bytes = np.array([0, *profile.cut_bytes, 0], dtype=float)
        memory = np.array(profile.memory_mib or [0.0] * self.blocks)
        self.memory = np.concatenate([[0.0], np.cumsum(memory)])
        self._prefix: dict[tuple[int, int, int], Floats] = {}
        for number, gpu in enumerate(problem.classes):
            for share in range(1, gpu.max_share + 1):
                for batch in range(1, problem.max_batch + 1):
                    if not profile.missing(gpu.name, [share], [batch]) or self._between(profile, gpu, share, batch):
                        times = [profile.latency_us(gpu.name, share, batch, i, i + 1) for i in range(self.blocks)]
                        self._prefix[number, share, batch] = np.concatenate([[0.0], np.cumsum(times)])

    def prefix(self, gpu: int, share: int, batch: int) -> Floats | None:
        """Sums of the first blocks' latencies in microseconds; None where that was not measured."""
        return self._prefix.get((gpu, share, batch))

    @staticmethod
    def _between(profile: BlockProfile, gpu: GpuClass, share: int, batch: int) -> bool:
        """Whether a batch lies between two that were measured."""
        return any(
            table.kind == gpu.name and table.share == share and table.rows[0] <= batch <= table.rows[-1]
            for table in profile.latencies
        )


def fastest_us(tables: Tables, problem: PpipeProblem) -> float | None:
    """The least time that a batch of one takes through the whole model; None where no class was measured."""
    times = [prefix[-1] for gpu in range(len(problem.classes)) if (prefix := tables.prefix(gpu, 1, 1)) is not None]
    return min(times, default=None)


def columns_of(
    number: int,
    tables: Tables,
    problem: PpipeProblem,
    gather_rps: float | None,
    max_partitions: int,
    allowed: Callable[[Sequence[int], Sequence[int]], bool] = lambda _gpus, _shares: True,
) -> list[Column]:
    """The columns of a model that are worth a thought. `gather_rps`: None where gathering takes no time.

    `allowed(classes, shares)`: which sequences may be used.
    """
    model = problem.models[number]
    budget_us = model.slo_ms * 1000 * (1 - problem.margin)
    found: list[tuple[Floats, Column]] = []
    for length in range(1, min(max_partitions, tables.blocks) + 1):
        chosen = list(combinations(range(1, tables.blocks), length - 1))
        cuts = np.array(chosen, dtype=int).reshape(len(chosen), length - 1)
        bounds = np.hstack([np.zeros((len(cuts), 1), int), cuts, np.full((len(cuts), 1), tables.blocks)])
        for batch in range(1, problem.max_batch + 1):
            gather_us = problem.gather * (batch - 1) / gather_rps * US_PER_S if gather_rps else 0.0
            for gpus in product(range(len(problem.classes)), repeat=length):
                for shares in product(*(range(1, problem.classes[gpu].max_share + 1) for gpu in gpus)):
                    if allowed(gpus, shares):
                        found += _feasible(number, tables, problem, bounds, batch, gather_us, budget_us, gpus, shares)
        found = _undominated(found)
    return [column for _, column in found]


def _feasible(
    number: int,
    tables: Tables,
    problem: PpipeProblem,
    bounds: NDArray[np.int_],
    batch: int,
    gather_us: float,
    budget_us: float,
    gpus: Sequence[int],
    shares: Sequence[int],
) -> Iterator[tuple[Floats, Column]]:
    """Of all cuts at once: those that meet the SLO, and of these the ones that cost no more of everything."""
    prefixes = [tables.prefix(gpu, share, batch) for gpu, share in zip(gpus, shares, strict=True)]
    sums = [prefix for prefix in prefixes if prefix is not None]
    if len(sums) < len(prefixes):
        return  # not measured
    latencies = np.stack([each[bounds[:, d + 1]] - each[bounds[:, d]] for d, each in enumerate(sums)], axis=1)
    bits = tables.cut_bytes[bounds] * 8
    transfers = np.zeros_like(latencies)
    rates = batch * np.array(shares) * US_PER_S / latencies
    if problem.gbps:
        transfers[:, :-1] = batch * bits[:, 1:-1] / (problem.gbps * 1000)
        for d, gpu in enumerate(gpus):  # the link of a node carries what its GPUs take, and what they give
            most_bits = np.maximum(bits[:, d], bits[:, d + 1])
            share_bps = problem.gbps * 1e9 / problem.classes[gpu].per_node
            with np.errstate(divide="ignore"):
                rates[:, d] = np.minimum(rates[:, d], np.where(most_bits > 0, share_bps / most_bits, np.inf))
    in_time = latencies.sum(axis=1) + transfers.sum(axis=1) + gather_us <= budget_us + TOLERANCE
    for d, (gpu, share) in enumerate(zip(gpus, shares, strict=True)):
        if (memory_mib := problem.classes[gpu].memory_mib) is not None:
            held = tables.memory[bounds[:, d + 1]] - tables.memory[bounds[:, d]]
            in_time &= held * share <= memory_mib
    if not in_time.any():
        return
    costs = np.zeros((len(bounds), len(problem.classes)))
    for d, gpu in enumerate(gpus):
        costs[:, gpu] += 1 / rates[:, d]
    candidates = np.flatnonzero(in_time)
    for row in candidates[_pareto(costs[candidates])]:
        parts = tuple(
            Part(
                int(bounds[row, d]),
                int(bounds[row, d + 1]),
                gpus[d],
                shares[d],
                float(latencies[row, d]),
                float(transfers[row, d]),
                float(rates[row, d]),
            )
            for d in range(len(gpus))
        )
        yield costs[row], Column(number, batch, gather_us, parts)


def _undominated(found: list[tuple[Floats, Column]]) -> list[tuple[Floats, Column]]:
    if not found:
        return found
    kept = _pareto(np.stack([cost for cost, _ in found]))
    return [found[index] for index in kept]


def _pareto(costs: Floats) -> list[int]:
    """Rows that no other row undercuts, or equals before them, in every column."""
    order = np.lexsort(costs.T[::-1])
    kept: list[int] = []
    best = np.empty((0, costs.shape[1]))
    for index in order:
        cost = costs[index]
        if len(best) and bool((best <= cost * (1 + TOLERANCE)).all(axis=1).any()):
            continue
        kept.append(int(index))
        best = np.vstack([best, cost])
    return kept
