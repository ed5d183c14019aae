"""GSLICE (Dhakal et al., SoCC 2020): each model's batch and share follow its latency and throughput, step by step.

The loop follows gpulet's re-implementation, with the order of steps of iGniter's, on predicted latencies including
neighbors, where GSLICE observes them. GSLICE does not assign models to GPUs: here the largest shares come first, each
onto the GPU with most room. Shares that exceed a GPU are cut max-min fairly, as in gpulet.
"""

from collections.abc import Sequence
from math import ceil

from tidegate.schemas import Layout
from tidegate_inss.layout import layout_of, shares_of
from tidegate_inss.plan import build_plan
from tidegate_inss.prediction import AssignedShare, Predictor, by_gpu
from tidegate_inss.problem import ShareProblem

FIRST_BATCH, FIRST_SHARE = 1, 0.3
ROUNDS, BATCH_ROUNDS = 5, 5
BOUND_TOLERANCE = 0.1
"""Tolerance: relative distance from its bound within which latency or throughput changes nothing."""
LATENCY_BOUND = 0.5
"""Maximum latency of a batch as a fraction of the SLO; the rest is for waiting, as in iGniter."""
LEAST, MOST_DOWN = 0.01, 0.5
"""Minimum share, of 1, and maximum relative decrease in a step, so that a tiny share can grow again."""


def next_batch(batch: int, latency_ms: float, bound_ms: float, most: int) -> int:
    """Return the next batch size in rows, from the fraction of its bound that a batch leaves or exceeds.

    `latency_ms`: of the current batch; `bound_ms`: its bound; `most`: maximum batch size.
    """
    left = (bound_ms - latency_ms) / bound_ms
    if 0 < left < BOUND_TOLERANCE:
        return batch
    return min(max(ceil(batch + max(left, -1.0) * batch), 1), most)


def next_share(share: float, latency_ms: float, bound_ms: float, throughput: float, rate: float) -> float:
    """Return the next share, of 1: larger if latency or throughput miss their bounds, smaller if both meet them.

    `latency_ms`, `bound_ms`: latency of a batch and its bound; `throughput`, `rate`: both in requests per second.
    """
    latency_left, throughput_left = (bound_ms - latency_ms) / bound_ms, (throughput - rate) / rate
    if 0 < latency_left < BOUND_TOLERANCE and 0 < throughput_left < BOUND_TOLERANCE:
        return share
    factor = max(abs(latency_left), abs(throughput_left))
    missed = latency_left < 0 or throughput_left < 0
    return min(max(share * (1 + factor if missed else 1 - min(factor, MOST_DOWN)), LEAST), 1.0)


def max_min_fair(wanted: Sequence[float], room: float) -> list[float]:
    """Return the max-min fair division of `room`: all of `wanted` if it fits."""
    granted = [0.0] * len(wanted)
    left = sorted(range(len(wanted)), key=lambda each: wanted[each])
    while left:
        least = left[0]
        granted[least] = min(wanted[least], room / len(left))
        room -= granted[least]
        left = left[1:]
    return granted


def plan_gslice(predictor: Predictor) -> tuple[list[AssignedShare], dict[int, str]]:
    """Return the final shares of the loop, and by model why it fits on no GPU."""
    problem = predictor.problem
    alone = [GsliceFeedback(predictor, [model]) for model in range(len(problem.models))]
    for loop in alone:
        loop.run()
    wishes = sorted(alone, key=lambda loop: -loop.wanted[0])
    rooms = [1.0] * len(problem.devices)
    members: list[list[int]] = [[] for _ in problem.devices]
    missing = {}
    for loop in wishes:
        (model,) = loop.models
        fitting = [gpu for gpu in range(len(rooms)) if _fits(predictor, gpu, [*members[gpu], model])]
        if not fitting:
            missing[model] = f"{problem.models[model].name!r} fits into no GPU's memory beside the others"
            continue
        gpu = max(fitting, key=lambda each: rooms[each])
        rooms[gpu] -= loop.wanted[0]
        members[gpu].append(model)
    shares = []
    for gpu, models in enumerate(members):
        loop = GsliceFeedback(predictor, models)
        loop.run()
        shares += [
            AssignedShare(model, gpu, units, batch)
            for model, units, batch in zip(models, loop.units, kept_batches(predictor, gpu, loop), strict=True)
        ]
    return shares, missing


def adjusted(problem: ShareProblem, layout: Layout) -> Layout | None:
    """Return the layout after one more step on every GPU; None if nothing changes. Raises PlanningError."""
    predictor = Predictor(problem)
    present = shares_of(problem, layout)
    shares: list[AssignedShare] = []
    for gpu, mine in enumerate(by_gpu(present, len(problem.devices))):
        loop = GsliceFeedback(predictor, [share.model for share in mine], mine)
        loop.step()
        batches = kept_batches(predictor, gpu, loop)
        shares += [
            share._replace(units=units, batch=batch)
            for share, units, batch in zip(mine, loop.units, batches, strict=True)
        ]
    return None if sorted(shares) == sorted(present) else layout_of(problem, build_plan(predictor, shares, {}, None))


def _fits(predictor: Predictor, gpu: int, models: Sequence[int]) -> bool:
    memory_mib = predictor.problem.devices[gpu].memory_mib
    few = len(models) <= predictor.problem.units_per_gpu
    return few and (
        memory_mib is None or sum(predictor.problem.models[model].takes_mib(1) for model in models) <= memory_mib
    )


def kept_batches(predictor: Predictor, gpu: int, loop: "GsliceFeedback") -> list[int]:
    """Return the batch sizes, the largest halved until they fit into the GPU's memory."""
    batches = list(loop.batches)
    memory_mib = predictor.problem.devices[gpu].memory_mib
    models = predictor.problem.models
    while memory_mib is not None and batches:
        taken = [models[model].takes_mib(batch) for model, batch in zip(loop.models, batches, strict=True)]
        if sum(taken) <= memory_mib:
            break
        heaviest = max(range(len(batches)), key=lambda at: (batches[at] > 1, taken[at]))
        batches[heaviest] = max(1, batches[heaviest] // 2)
    return batches


class GsliceFeedback:
    """GSLICE's feedback loop over the models of one GPU."""

    def __init__(self, predictor: Predictor, models: Sequence[int], present: Sequence[AssignedShare] = ()) -> None:
        """Create the loop.

        `models`: numbers of the models; `present`: their current shares, empty: small initial ones.
        """
        self.models = models
        units = predictor.problem.units_per_gpu
        self.batches = [share.batch for share in present] or [FIRST_BATCH] * len(models)
        self.wanted = [share.units / units for share in present] or [FIRST_SHARE] * len(models)
        self._predictor = predictor
        self.units = self._divided()

    def run(self) -> None:
        """Adapt batch sizes until they are stable and then shares, several times, ending with batch sizes."""
        for _ in range(ROUNDS):
            self.step()
        self._adjust_batches()

    def step(self) -> None:
        """Adapt batch sizes until they are stable, then shares once."""
        self._adjust_batches()
        self._adjust_shares()

    def _adjust_batches(self) -> None:
        for _ in range(BATCH_ROUNDS):
            changed = False
            for at, (model, taken_ms) in enumerate(zip(self.models, self._latencies_ms(), strict=True)):
                tenant = self._predictor.problem.models[model]
                batch = next_batch(self.batches[at], taken_ms, LATENCY_BOUND * tenant.slo_ms, tenant.max_batch)
                changed |= batch != self.batches[at]
                self.batches[at] = batch
            if not changed:
                break

    def _adjust_shares(self) -> None:
        for at, (model, taken_ms) in enumerate(zip(self.models, self._latencies_ms(), strict=True)):
            tenant = self._predictor.problem.models[model]
            throughput = 1000 * self.batches[at] / taken_ms
            bound_ms = LATENCY_BOUND * tenant.slo_ms
            self.wanted[at] = next_share(self.wanted[at], taken_ms, bound_ms, throughput, tenant.rate_rps)
        self.units = self._divided()

    def _divided(self) -> list[int]:
        """Units, at least one each."""
        units = self._predictor.problem.units_per_gpu
        room = units - len(self.models)
        wishes = [max(0.0, wanted * units - 1) for wanted in self.wanted]
        return [1 + int(granted + 1e-9) for granted in max_min_fair(wishes, room)]

    def _latencies_ms(self) -> list[float]:
        shares = [
            AssignedShare(*each)
            for each in zip(self.models, [0] * len(self.models), self.units, self.batches, strict=True)
        ]
        return self._predictor.batch_ms(shares)
