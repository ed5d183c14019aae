"""The planner `shares`: a local search over who is on which GPU, each GPU being divided max-min fairly.

It begins with the largest models first, each on the GPU with least to do. Then the GPU that bears least gives a model
away, exchanges one, or shares one with another GPU, for as long as that helps; then it is tried again from the best
plan with some models moved at random, until the time is over or that has not helped for long.
"""

from collections.abc import Iterator, Sequence
from math import ceil
from random import Random

from tidegate.api import Progress
from tidegate_inss.assignment import Share
from tidegate_inss.division import Divider, Division, Piece
from tidegate_inss.prediction import Predictor

FEW = 8
"""GPUs with which the one that bears least tries to exchange: those that bear most."""
KICKS = 60
"""So many times in a row a kick may bring nothing before the search ends."""
KICKED = 3
"""Models that a kick moves."""
GAP = 0.005
"""So near to the bound it ends."""
FULL = 0.85
"""A model that would need more of a GPU than this is divided among several from the beginning."""

Placement = list[list[Piece]]
Value = tuple[float, float]
"""So many times their rates are borne, and rows per second in full batches where these count."""
NOTHING: Value = (-1.0, 0.0)


class Search:
    """One run."""

    def __init__(self, predictor: Predictor, *, seed: int = 0) -> None:
        self.problem = predictor.problem
        self.divider = Divider(predictor)
        self._rng = Random(seed)
        self._by_throughput = self.problem.objective == "throughput"
        self._memory = [device.memory_mib for device in self.problem.devices]
        self.parts = [self._part(model) for model in range(len(self.problem.models))]
        """The share of a GPU that each model takes at its rate, at best, with nobody beside it."""
        self.bound = len(self.problem.devices) / sum(self.parts)
        """No plan bears more times the rates than this."""

    def run(self, *, time_limit_s: float, progress: Progress) -> tuple[list[Share], dict[int, str]]:
        """The shares, and which model has none."""
        placement, missing = self._begin()
        best = self._improve(placement, time_limit_s, progress)
        idle = 0
        while idle < KICKS and progress(**self._said(best[0])) < time_limit_s:
            if len(placement) == 1 or (not self._by_throughput and best[0][0] >= (1 - GAP) * self.bound):
                break
            tried = self._improve(self._kicked(best[1]), time_limit_s, progress)
            idle += 1
            if tried[0] > best[0]:
                best, idle = tried, 0
        return self._shares(best[1]), missing

    def _said(self, value: Value) -> dict[str, float]:
        return {"objective": value[1]} if self._by_throughput else {"objective": value[0], "bound": self.bound}

    def _part(self, model: int) -> float:
        rates = self.divider.choice(model, 0.0, self.problem.models[model].max_batch).rates
        units = self.problem.units_per_gpu
        best = max(rate / each for each, rate in enumerate(rates) if each)
        return self.problem.models[model].rate_rps / (best * units) if best > 0 else 0.0

    def _begin(self) -> tuple[Placement, dict[int, str]]:
        """The largest first, each on the GPU with least to do that has memory for it."""
        placement: Placement = [[] for _ in self.problem.devices]
        loads, missing = [0.0] * len(placement), {}
        # Beyond what can be borne all models are cut alike.
        fitting = min(1.0, self.bound)
        for model in sorted(range(len(self.parts)), key=lambda each: -self.parts[each]):
            pieces = min(len(placement), max(1, ceil(self.parts[model] * fitting / FULL)))
            rate = self.problem.models[model].rate_rps / pieces
            for number in range(pieces):
                piece = Piece(model, rate)
                for gpu in sorted(range(len(placement)), key=lambda each: loads[each]):
                    if self._divide(gpu, [*placement[gpu], piece]) is not None:
                        placement[gpu].append(piece)
                        loads[gpu] += self.parts[model] / pieces
                        break
                else:
                    name = self.problem.models[model].name
                    missing[model] = f"there is no GPU with memory for {name!r} beside the others" + (
                        f" ({number} of {pieces} shares)" if number else ""
                    )
        return placement, missing

    def _divide(self, gpu: int, pieces: Sequence[Piece]) -> Division | None:
        return self.divider.divide(pieces, self._memory[gpu])

    def _value(self, gpu: int, pieces: Sequence[Piece]) -> Value:
        found = self._divide(gpu, pieces)
        return NOTHING if found is None else (found.bears, found.full_rps if self._by_throughput else 0.0)

    def _improve(self, placement: Placement, time_limit_s: float, progress: Progress) -> tuple[Value, Placement]:
        """Until the GPU that bears least cannot be helped, nor, where throughput counts, any other two do better."""
        placement = [list(pieces) for pieces in placement]
        values = [self._value(gpu, pieces) for gpu, pieces in enumerate(placement)]
        while progress() < time_limit_s:
            worst = min(range(len(values)), key=lambda gpu: values[gpu])
            enough = self._by_throughput and values[worst][0] >= 1
            best, chosen = 1e-9, None
            for gpu in range(len(values)) if enough else [worst]:
                for other, mine, theirs in self._changes(placement, values, gpu):
                    one, two = self._value(gpu, mine), self._value(other, theirs)
                    if enough:
                        gained = (
                            one[1] + two[1] - values[gpu][1] - values[other][1] if min(one[0], two[0]) >= 1 else 0.0
                        )
                    else:
                        gained = min(one[0], two[0]) - values[worst][0]
                    if gained > best:
                        best, chosen = gained, (gpu, other, mine, theirs)
            if chosen is None:
                break
            gpu, other, placement[gpu], placement[other] = chosen
            for changed in (gpu, other):
                values[changed] = self._value(changed, placement[changed])
        return (min(value[0] for value in values), sum(value[1] for value in values)), placement

    def _changes(
        self, placement: Placement, values: Sequence[Value], worst: int
    ) -> Iterator[tuple[int, list[Piece], list[Piece]]]:
        """What two GPUs could have instead: one is given, two are exchanged, one is divided between them."""
        others = sorted((gpu for gpu in range(len(values)) if gpu != worst), key=lambda gpu: values[gpu])[-FEW:]
        for other in others:
            theirs = placement[other]
            known = {piece.model: at for at, piece in enumerate(theirs)}
            for at, piece in enumerate(placement[worst]):
                rest = [*placement[worst][:at], *placement[worst][at + 1 :]]
                if piece.model in known:
                    twin = theirs[known[piece.model]]
                    others_rest = [each for each in theirs if each is not twin]
                    yield other, rest, [*others_rest, Piece(piece.model, twin.rate_rps + piece.rate_rps)]
                    for moved in (0.1, 0.3):
                        less = Piece(piece.model, piece.rate_rps * (1 - moved))
                        more = Piece(piece.model, twin.rate_rps + piece.rate_rps * moved)
                        yield other, [*rest, less], [*others_rest, more]
                    continue
                yield other, rest, [*theirs, piece]
                for moved in (0.25, 0.5, 0.75):
                    part = Piece(piece.model, piece.rate_rps * moved)
                    yield other, [*rest, Piece(piece.model, piece.rate_rps - part.rate_rps)], [*theirs, part]
                for there, twin in enumerate(theirs):
                    if all(twin.model != each.model for each in rest):
                        yield other, [*rest, twin], [*theirs[:there], *theirs[there + 1 :], piece]

    def _kicked(self, placement: Placement) -> Placement:
        """The same with some models elsewhere, whole."""
        placement = [list(pieces) for pieces in placement]
        for _ in range(KICKED):
            filled = [gpu for gpu, pieces in enumerate(placement) if pieces]
            source = self._rng.choice(filled)
            piece = self._rng.choice(placement[source])
            target = self._rng.randrange(len(placement))
            twins = [
                (gpu, each) for gpu, pieces in enumerate(placement) for each in pieces if each.model == piece.model
            ]
            whole = Piece(piece.model, sum(each.rate_rps for _, each in twins))
            if self.parts[piece.model] > FULL:
                continue
            without = [[each for each in pieces if each.model != piece.model] for pieces in placement]
            if self._divide(target, [*without[target], whole]) is not None:
                without[target].append(whole)
                placement = without
        return placement

    def _shares(self, placement: Placement) -> list[Share]:
        shares = []
        for gpu, pieces in enumerate(placement):
            division = self._divide(gpu, pieces)
            assert division is not None, "what was placed fits"
            for piece, units, batch in zip(pieces, division.units, division.batches, strict=True):
                shares.append(Share(piece.model, gpu, units, batch))
        return shares
