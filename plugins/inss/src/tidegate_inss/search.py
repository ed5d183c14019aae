"""The planner `shares`: a local search over the placement of models, with each GPU divided max-min fairly.

It starts by placing the largest models first, each on the GPU with the least load, and from another placement if one
is given. Then the GPU with the least capacity moves a model away, exchanges one, or splits one with another GPU, while
that helps. Then the models of some GPUs are placed again at random, some of them split (a kick), and the search is
repeated, until the time is over or kicks no longer help.
"""

from collections.abc import Iterator, Sequence
from math import ceil
from random import Random

from tidegate.api import Progress
from tidegate_inss.gpu_partition import GpuPartition, GpuPartitioner, ModelPiece
from tidegate_inss.plan import borne_by
from tidegate_inss.prediction import AssignedShare, Predictor, by_gpu

EXCHANGE_PARTNERS = 8
"""Number of GPUs with which the one with the least capacity tries to exchange: those with the most capacity."""
PARTS, MORE = (0.25, 0.5, 0.75), (0.1, 0.3)
"""Fractions of a model's requests to move to a GPU that does not serve the model, and to one that does."""
MAX_FRUITLESS_KICKS = 200
"""Number of successive kicks without gain after which the search ends."""
KICKED_GPUS = 3
"""Number of GPUs whose models a kick places again."""
KICK_SIZE_FACTORS = (0.6, 1.6)
"""Range of random factors on the sizes of models in a kick, which change their order."""
KICK_SPLIT_FRACTION = 0.2
"""Fraction of the models of a kick that are split over two GPUs."""
MAX_KICK_LOSS = 0.02
"""Maximum relative distance from the best plan for a plan from which kicks continue."""
BOUND_TOLERANCE = 0.005
"""Relative distance from the bound at which the search ends."""
MAX_SHARE_BEFORE_SPLIT = 0.85
"""Share of a GPU above which a model is split over several from the start."""

Placement = list[list[ModelPiece]]
COST_EXPONENT = 8
"""Exponent of the cost: a GPU costs the reciprocal of its capacity to this power, so the weakest counts most."""
UNSERVED, LATE = 1e30, 1e12
"""Costs of a GPU on which a model gets no share and, for throughput, of one on which a rate is not served."""


class PlacementSearch:
    """State of one search for a placement."""

    def __init__(self, predictor: Predictor, *, seed: int = 0) -> None:
        self.problem = predictor.problem
        self.divider = GpuPartitioner(predictor)
        self._rng = Random(seed)
        self._by_throughput = self.problem.objective == "throughput"
        self._memory = [device.memory_mib for device in self.problem.devices]
        self.parts = [self._part(model) for model in range(len(self.problem.models))]
        """Smallest fraction of a GPU that each model needs at its rate, without neighbors."""
        self.bound = float("inf") if self._by_throughput else len(self.problem.devices) / sum(self.parts)
        """Upper bound of the multiple of the rates that a plan sustains; unknown for throughput."""

    def run(
        self,
        *,
        time_limit_s: float,
        progress: Progress,
        start: Placement | None = None,
        proposed: Placement | None = None,
    ) -> tuple[list[AssignedShare], dict[int, str]]:
        """Return the shares, and by model number why it has none.

        `time_limit_s`: seconds to search. `start`: initial placement; None: the largest models first. `proposed`:
        another initial placement, of all models; the better of the two is improved first.
        """
        placement, missing = self._begin() if start is None else (start, {})
        starts = [placement]
        if proposed is not None and all(self._divide(gpu, mine) for gpu, mine in enumerate(proposed)):
            starts = [proposed] if missing else sorted([placement, proposed], key=self._worth, reverse=True)
            missing = {}
        improved = [self._improve(each, time_limit_s, progress) for each in starts]
        best = base = max(improved, key=lambda each: each[0])
        idle = 0
        while idle < MAX_FRUITLESS_KICKS and progress(objective=best[0], bound=self.bound) < time_limit_s:
            if len(placement) == 1 or best[0] >= (1 - BOUND_TOLERANCE) * self.bound:
                break
            tried = self._improve(self._kicked(base[1]), time_limit_s, progress)
            idle += 1
            if tried[0] > best[0]:
                best, idle = tried, 0
            # From a plan that is hardly worse there may be a way to a better one.
            base = tried if tried[0] >= (1 - MAX_KICK_LOSS) * best[0] else best
        return self.shares(best[1]), missing

    def _part(self, model: int) -> float:
        rates = self.divider.choice(model, 0.0, self.problem.models[model].max_batch).rates
        units = self.problem.units_per_gpu
        best = max(rate / each for each, rate in enumerate(rates) if each)
        return self.problem.models[model].rate_rps / (best * units) if best > 0 else 1.0  # by rounding

    def _begin(self) -> tuple[Placement, dict[int, str]]:
        """The largest first, each on the GPU with least to do that has memory for it."""
        placement: Placement = [[] for _ in self.problem.devices]
        loads, missing = [0.0] * len(placement), {}
        # Beyond the sustainable load all models are cut alike.
        fitting = min(1.0, len(placement) / sum(self.parts))
        for model in sorted(range(len(self.parts)), key=lambda each: -self.parts[each]):
            pieces = min(len(placement), max(1, ceil(self.parts[model] * fitting / MAX_SHARE_BEFORE_SPLIT)))
            rate = self.problem.models[model].rate_rps / pieces
            for number in range(pieces):
                piece = ModelPiece(model, rate)
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

    def _divide(self, gpu: int, pieces: Sequence[ModelPiece]) -> GpuPartition | None:
        return self.divider.divide(pieces, self._memory[gpu])

    def _cost(self, gpu: int, pieces: Sequence[ModelPiece]) -> float:
        """Return the cost of a GPU; the search minimizes the sum."""
        found = self._divide(gpu, pieces)
        if found is None or found.bears <= 0:
            return UNSERVED
        if self._by_throughput and found.bears >= 1:
            return -found.full_rps
        return LATE * found.bears**-COST_EXPONENT if self._by_throughput else found.bears**-COST_EXPONENT

    def _improve(self, placement: Placement, time_limit_s: float, progress: Progress) -> tuple[float, Placement]:
        """Until no two GPUs could do better; returns what they are worth then, more being better."""
        placement = [list(pieces) for pieces in placement]
        costs = [self._cost(gpu, pieces) for gpu, pieces in enumerate(placement)]
        while progress() < time_limit_s and (chosen := self._best_change(placement, costs)) is not None:
            gpu, other, placement[gpu], placement[other] = chosen
            for changed in (gpu, other):
                costs[changed] = self._cost(changed, placement[changed])
        return self._worth(placement), placement

    def _worth(self, placement: Placement) -> float:
        """Objective: sustained multiple of the rates, or rows per second in full batches."""
        found = [self._divide(gpu, pieces) for gpu, pieces in enumerate(placement)]
        bears = min(each.bears if each is not None else -1.0 for each in found)
        if self._by_throughput and bears >= 1:
            return 1 + sum(each.full_rps for each in found if each is not None)
        return bears

    def _best_change(
        self, placement: Placement, costs: Sequence[float]
    ) -> tuple[int, int, list[ModelPiece], list[ModelPiece]] | None:
        """Return the best exchange of one GPU with another: of the most expensive GPU, otherwise of the next.

        With many GPUs it takes the first partner that helps.
        """
        for gpu in sorted(range(len(costs)), key=lambda each: -costs[each]):
            best, chosen = costs[gpu] * 1e-9 if costs[gpu] > 0 else 1e-6, None
            for other, changes in self._changes(placement, costs, gpu):
                before = costs[gpu] + costs[other]
                for mine, theirs in changes:
                    if not self._by_throughput and self._at_least(theirs) > before - best:
                        continue
                    gained = before - self._cost(gpu, mine) - self._cost(other, theirs)
                    if gained > best:
                        best, chosen = gained, (gpu, other, mine, theirs)
                if chosen is not None and len(costs) > EXCHANGE_PARTNERS:
                    return chosen
            if chosen is not None:
                return chosen
        return None

    def _at_least(self, pieces: Sequence[ModelPiece]) -> float:
        """Return a lower bound of the cost of a GPU with these models."""
        models = self.problem.models
        taken = sum(self.parts[piece.model] * piece.rate_rps / models[piece.model].rate_rps for piece in pieces)
        return float(taken**COST_EXPONENT)

    def _changes(
        self, placement: Placement, costs: Sequence[float], gpu: int
    ) -> Iterator[tuple[int, Iterator[tuple[list[ModelPiece], list[ModelPiece]]]]]:
        """The GPUs with which one could exchange, those first that cost least, and what both could have instead."""
        others = sorted((other for other in range(len(costs)) if other != gpu), key=lambda other: costs[other])
        for other in others[:EXCHANGE_PARTNERS]:
            yield other, self._exchanges(placement[gpu], placement[other])

    def _exchanges(
        self, mine: list[ModelPiece], theirs: list[ModelPiece]
    ) -> Iterator[tuple[list[ModelPiece], list[ModelPiece]]]:
        """Return the possible exchanges of two GPUs: one model or a part moves, or two are swapped."""
        known = {piece.model: piece for piece in theirs}
        for at, piece in enumerate(mine):
            rest = [*mine[:at], *mine[at + 1 :]]
            if twin := known.get(piece.model):
                others = [each for each in theirs if each is not twin]
                for moved in (1.0, *MORE):
                    more = ModelPiece(piece.model, twin.rate_rps + piece.rate_rps * moved)
                    less = [ModelPiece(piece.model, piece.rate_rps * (1 - moved))] if moved < 1 else []
                    yield [*rest, *less], [*others, more]
                continue
            yield rest, [*theirs, piece]
            for moved in PARTS:
                part = ModelPiece(piece.model, piece.rate_rps * moved)
                yield [*rest, ModelPiece(piece.model, piece.rate_rps - part.rate_rps)], [*theirs, part]
            for there, given in enumerate(theirs):
                if all(given.model != each.model for each in rest):
                    yield [*rest, given], [*theirs[:there], *theirs[there + 1 :], piece]

    def _kicked(self, placement: Placement) -> Placement:
        """Return the placement with the models of some GPUs, the costliest one included, placed at random."""
        costs = [self._cost(gpu, pieces) for gpu, pieces in enumerate(placement)]
        worst = costs.index(max(costs))
        others = [gpu for gpu in range(len(placement)) if gpu != worst]
        chosen = [worst, *self._rng.sample(others, min(KICKED_GPUS - 1, len(others)))]
        rates: dict[int, float] = {}
        for gpu in chosen:
            for piece in placement[gpu]:
                rates[piece.model] = rates.get(piece.model, 0.0) + piece.rate_rps
        kicked = [[] if gpu in chosen else list(pieces) for gpu, pieces in enumerate(placement)]

        def size(model: int) -> float:
            part = self.parts[model] * rates[model] / self.problem.models[model].rate_rps
            return part * self._rng.uniform(*KICK_SIZE_FACTORS)

        for model in sorted(rates, key=size, reverse=True):
            part = self._rng.choice(PARTS) if self._rng.random() < KICK_SPLIT_FRACTION else 1.0
            for piece in (ModelPiece(model, rates[model] * each) for each in (part, 1 - part) if each):
                costs = [self._cost(gpu, kicked[gpu]) for gpu in chosen]
                wider = [_with(kicked[gpu], piece) for gpu in chosen]
                after = [self._cost(gpu, pieces) for gpu, pieces in zip(chosen, wider, strict=True)]
                place = min(range(len(chosen)), key=lambda each: after[each] - costs[each])
                if after[place] >= UNSERVED:
                    return placement
                kicked[chosen[place]] = wider[place]
        return kicked

    def shares(self, placement: Placement) -> list[AssignedShare]:
        """Return the shares of a feasible placement."""
        shares = []
        for gpu, pieces in enumerate(placement):
            division = self._divide(gpu, pieces)
            assert division is not None, "what was placed fits"
            for piece, units, batch in zip(pieces, division.units, division.batches, strict=True):
                shares.append(AssignedShare(piece.model, gpu, units, batch))
        return shares


def _with(pieces: Sequence[ModelPiece], added: ModelPiece) -> list[ModelPiece]:
    """Return the pieces of a GPU with one more; two of one model become one."""
    rate = added.rate_rps + sum(piece.rate_rps for piece in pieces if piece.model == added.model)
    return [*(piece for piece in pieces if piece.model != added.model), ModelPiece(added.model, rate)]


def placement_of(predictor: Predictor, shares: Sequence[AssignedShare]) -> tuple[Placement, float]:
    """Return the placement of shares, with parts of the models' rates, and the factor of the rates that they serve."""
    problem = predictor.problem
    gpus = by_gpu(shares, len(problem.devices))
    bears = [borne_by(predictor, mine) for mine in gpus]
    of_model = [0.0] * len(problem.models)
    for mine, rates in zip(gpus, bears, strict=True):
        for share, rate in zip(mine, rates, strict=True):
            of_model[share.model] += rate
    placement = []
    for mine, rates in zip(gpus, bears, strict=True):
        pieces: dict[int, float] = {}
        for share, rate in zip(mine, rates, strict=True):
            part = rate / of_model[share.model] if of_model[share.model] else 1.0
            pieces[share.model] = pieces.get(share.model, 0.0) + part * problem.models[share.model].rate_rps
        placement.append([ModelPiece(model, max(rate, 1e-6)) for model, rate in pieces.items()])
    return placement, min(rate / model.rate_rps for rate, model in zip(of_model, problem.models, strict=True))
