"""Partition of one GPU into MPS shares for the models on it.

The shares are max-min fair in the multiple of its rate that each model sustains. If the objective is throughput, each
model sustains its rate, and the rest maximizes rows in full batches.

A model's capacity depends on its neighbors' use, which depends on their shares. So shares are computed several times
for the neighbors of the previous result, and the last one is evaluated.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tidegate_inss.prediction import Predictor, borne_rps

SLOWDOWN_STEP = 0.01
"""Step to which slowdowns are rounded up, so that shares are computed once for each."""
DIVISION_ROUNDS = 3
"""Number of iterations over the neighbors' shares."""
BISECTION_STEPS = 12


class ModelPiece(NamedTuple):
    """A model, or a part of its requests, on one GPU."""

    model: int
    rate_rps: float


class CapacityByUnits(NamedTuple):
    """Rate that a model serves by number of units, from 0 on, with its batch sizes."""

    rates: list[float]
    """Sustained requests per second by units; never decreasing."""
    batches: list[int]
    full: list[float]
    """Rows per second in full batches, by units."""


@dataclass(frozen=True)
class GpuPartition:
    """Partition of one GPU into shares."""

    bears: float
    """Multiple of their rates that all pieces sustain; at most 1 if the objective is throughput."""
    full_rps: float
    """Rows per second in full batches, of all pieces together."""
    units: tuple[int, ...]
    batches: tuple[int, ...]


EMPTY_PARTITION = GpuPartition(float("inf"), 0.0, (), ())


class GpuPartitioner:
    """Partitions GPUs of one problem into shares, with a cache."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self._units = predictor.problem.units_per_gpu
        self._enough = 1.0 if predictor.problem.objective == "throughput" else float("inf")
        self._choices: dict[tuple[int, int, int], CapacityByUnits] = {}
        self._divisions: dict[tuple[tuple[ModelPiece, ...], int | None], GpuPartition | None] = {}
        self._minds = predictor.tables.minds.tolist()
        self._batches = np.arange(1, predictor.tables.gpu_ms.shape[2])

    def divide(self, pieces: Sequence[ModelPiece], memory_mib: int | None) -> GpuPartition | None:
        """Return the best partition found; None if the pieces do not fit together, in any order.

        `memory_mib`: memory of the GPU in MiB; None: unknown.
        """
        if not pieces:
            return EMPTY_PARTITION
        key = tuple(sorted(pieces)), memory_mib
        if key not in self._divisions:
            self._divisions[key] = self._divide(key[0], memory_mib)
        found = self._divisions[key]
        if found is None or list(key[0]) == list(pieces):
            return found
        places = {piece: at for at, piece in enumerate(key[0])}
        order = [places[piece] for piece in pieces]
        return GpuPartition(
            found.bears,
            found.full_rps,
            tuple(found.units[at] for at in order),
            tuple(found.batches[at] for at in order),
        )

    def choice(self, model: int, added: float, most: int) -> CapacityByUnits:
        """Return the rates of a model whose compute time is longer by the fraction `added` of its stand-alone time.

        `most`: maximum batch size in rows.
        """
        level = -int(-added / SLOWDOWN_STEP // 1)
        key = model, level, most
        if key not in self._choices:
            tables, tenant = self.predictor.tables, self.predictor.problem.models[model]
            largest = min(most, tenant.max_batch)
            slowed = tables.gpu_ms[model, 1:, 1 : largest + 1] * (1 + level * SLOWDOWN_STEP)
            batch_ms = tables.transfer_ms[model, 1 : largest + 1] + slowed
            rates = borne_rps(self._batches[:largest], batch_ms, tenant.slo_ms)
            batches = rates.argmax(axis=1)
            at = np.arange(len(rates)), batches
            best = np.maximum.accumulate(rates[at])
            full = 1000 * (batches + 1) / batch_ms[at]
            self._choices[key] = CapacityByUnits(
                [0.0, *best.tolist()], [1, *(batches + 1).tolist()], [0.0, *full.tolist()]
            )
        return self._choices[key]

    def _divide(self, pieces: Sequence[ModelPiece], memory_mib: int | None) -> GpuPartition | None:
        if len(pieces) > self._units or len({piece.model for piece in pieces}) < len(pieces):
            return None
        most = max(self.predictor.problem.models[piece.model].max_batch for piece in pieces)
        while True:
            found = self._divide_time(pieces, most)
            if memory_mib is None or self._takes_mib(pieces, found.batches) <= memory_mib:
                return found
            if most == 1:
                return None
            most //= 2

    def _takes_mib(self, pieces: Sequence[ModelPiece], batches: Sequence[int]) -> float:
        models = self.predictor.problem.models
        return sum(models[piece.model].takes_mib(batch) for piece, batch in zip(pieces, batches, strict=True))

    def _divide_time(self, pieces: Sequence[ModelPiece], most: int) -> GpuPartition:
        equal = [self._units // len(pieces)] * len(pieces)
        choices = [self.choice(piece.model, 0.0, most) for piece in pieces]
        batches = [choice.batches[units] for choice, units in zip(choices, equal, strict=True)]
        added = self._added(pieces, equal, batches)
        best: GpuPartition | None = None
        for _ in range(DIVISION_ROUNDS):
            choices = [self.choice(piece.model, more, most) for piece, more in zip(pieces, added, strict=True)]
            units = self._fair(pieces, choices)
            batches = [choice.batches[each] for choice, each in zip(choices, units, strict=True)]
            added = self._added(pieces, units, batches)
            final = [self.choice(piece.model, more, most) for piece, more in zip(pieces, added, strict=True)]
            bears = min(
                self._enough,
                *(
                    choice.rates[each] / piece.rate_rps
                    for piece, choice, each in zip(pieces, final, units, strict=True)
                ),
            )
            full_rps = sum(choice.full[each] for choice, each in zip(final, units, strict=True))
            if best is None or (bears, full_rps) > (best.bears, best.full_rps):
                best = GpuPartition(bears, full_rps, tuple(units), tuple(batches))
        assert best is not None, "there are rounds"
        return best

    def _added(self, pieces: Sequence[ModelPiece], units: Sequence[int], batches: Sequence[int]) -> list[float]:
        """How much longer computing takes each of them beside the others."""
        tables = self.predictor.tables
        used = [
            (
                tables.cache_percent.item(piece.model, each, batch),
                tables.dram_percent.item(piece.model, each, batch),
            )
            for piece, each, batch in zip(pieces, units, batches, strict=True)
        ]
        cache, dram = sum(mine for mine, _ in used), sum(mine for _, mine in used)
        return [
            self._minds[piece.model][0] * (cache - mine)
            + self._minds[piece.model][1] * (dram - mine_too)
            + self._minds[piece.model][2] * (len(pieces) - 1)
            for piece, (mine, mine_too) in zip(pieces, used, strict=True)
        ]

    def _fair(self, pieces: Sequence[ModelPiece], choices: Sequence[CapacityByUnits]) -> list[int]:
        """Assign all units: by bisection over the sustained multiple of the rates; then the rest, one by one."""
        both = list(zip(pieces, choices, strict=True))
        low, high = 0.0, min(self._enough, *(choice.rates[-1] / piece.rate_rps for piece, choice in both))
        units = [1] * len(pieces)
        for tried in (high, *[None] * BISECTION_STEPS):
            bears = (low + high) / 2 if tried is None else tried
            wanted = [max(1, bisect_left(choice.rates, bears * piece.rate_rps)) for piece, choice in both]
            if sum(wanted) <= self._units:
                low, units = bears, wanted
                if tried is not None:
                    break
            else:
                high = bears
        for _ in range(self._units - sum(units)):
            if low >= self._enough:
                ranks = [choices[at].full[units[at]] - choices[at].full[units[at] + 1] for at in range(len(pieces))]
            else:
                ranks = [choices[at].rates[units[at]] / pieces[at].rate_rps for at in range(len(pieces))]
            units[ranks.index(min(ranks))] += 1
        return units
