"""The planner `inss`: two networks decide several times with variations; the latency model selects the best
decision.
"""

from functools import cache
from random import Random

import numpy as np

from tidegate.api import PlanningError, Progress
from tidegate_inss.learned.catalog import Ints, Loads, catalog_of
from tidegate_inss.learned.networks import SHIPPED_FOLDER, Networks
from tidegate_inss.learned.outcome import VIOLATION_PENALTY, DecisionOutcome, outcome_of
from tidegate_inss.learned.placement import MAX_MODELS_PER_GPU, Bools, Floats32
from tidegate_inss.learned.scheduling import Decision, schedule
from tidegate_inss.plan import SharePlan, build_plan
from tidegate_inss.prediction import AssignedShare, Floats, Predictor
from tidegate_inss.problem import ShareProblem

MAX_DECISIONS = 16
"""Maximum number of decisions; with many GPUs fewer."""
MAX_GPUS = 128
TARGET_LOADS = (0.85, 0.7, 1.0, 0.6, 0.95, 0.75, 0.9, 0.5)
"""Mean GPU loads that the networks get as input, besides the true one."""


def plan_inss(problem: ShareProblem, /, *, time_limit_s: float, progress: Progress) -> SharePlan:
    """Plan with InSS's two-stage scheduler; the time limit is not used. Raises PlanningError if there is no plan."""
    return plan_by(_shipped("inss"), problem, interference=True, progress=progress)


def plan_inss_ni(problem: ShareProblem, /, *, time_limit_s: float, progress: Progress) -> SharePlan:
    """Plan with InSS-ni: networks and batch sizes ignore interference, the predicted latency includes it.

    Raises PlanningError if there is no plan; the time limit is not used.
    """
    return plan_by(_shipped("inss-ni"), problem, interference=False, progress=progress)


def plan_by(
    networks: Networks, problem: ShareProblem, *, interference: bool, progress: Progress, tried: int = MAX_DECISIONS
) -> SharePlan:
    """Return the plan of these networks: the preferred decision, or a better one among `tried`.

    `interference`: False for InSS-ni, which ignores neighbors. Raises PlanningError if no model has a share or the GPU
    has too few units.
    """
    tried = min(tried, _check(problem))
    predictor = Predictor(problem)
    shares, unplaced = best_of(networks, problem, predictor, interference=interference, tried=tried)
    missing = dict.fromkeys(unplaced, "no GPU has memory for it, and for those before it")
    plan = build_plan(predictor, shares, missing, None)
    progress(objective=plan.objective)
    return plan


def propose(problem: ShareProblem, predictor: Predictor) -> list[AssignedShare]:
    """Return the shares that the shipped networks decide for, as a start for other planners.

    Raises PlanningError if a model has none, or if the problem is not what the networks were made for.
    """
    tried = min(MAX_DECISIONS, _check(problem))
    shares, unplaced = best_of(_shipped("inss"), problem, predictor, interference=True, tried=tried)
    if unplaced:
        raise PlanningError(f"no GPU has memory for {problem.models[unplaced[0]].name!r}, and for those before it")
    return shares


def _check(problem: ShareProblem) -> int:
    """Return how many decisions to make for a problem. Raises PlanningError if the networks were not made for it."""
    gpus = len(problem.devices)
    if problem.units_per_gpu < MAX_MODELS_PER_GPU:
        raise PlanningError(
            f"units: the networks divide a GPU among up to {MAX_MODELS_PER_GPU} models, and MPS divides this one into "
            f"{problem.units_per_gpu} parts: take another planner"
        )
    if len(problem.models) > MAX_MODELS_PER_GPU * gpus:
        raise PlanningError(
            f"models: the networks were trained for up to {MAX_MODELS_PER_GPU} models on a GPU, "
            f"and these are {len(problem.models)} on {gpus}: give more GPUs, or take another planner"
        )
    return max(1, MAX_GPUS // gpus)


def best_of(
    networks: Networks, problem: ShareProblem, predictor: Predictor, *, interference: bool, tried: int
) -> tuple[list[AssignedShare], list[int]]:
    """Return the shares of the best of `tried` decisions, and the numbers of models without a share.

    The first decision is the networks' preference for the true rates. The others get scaled rates as input, which
    distributes spare capacity differently; every other one draws placements with the networks' probabilities. The
    problem's objective selects the best. `interference`: False for InSS-ni, which ignores neighbors.
    """
    catalog = catalog_of(problem, predictor.tables, interference=interference)
    models, rates = np.arange(len(problem.models)), np.array([model.rate_rps for model in problem.models])
    memory = np.array([device.memory_mib or np.inf for device in problem.devices])
    load = catalog.needed(models, rates).sum() / len(memory)
    told = [1.0, *(TARGET_LOADS[number // 2 % len(TARGET_LOADS)] / load for number in range(1, tried))]
    candidates: list[tuple[float, int, Loads, Decision, int]] = []
    for placer, factors in ((networks.place, told[::2]), (_Drawing(networks), told[1::2])):
        if factors:
            loads = Loads.of(catalog, [(models, factor * rates) for factor in factors], gpus=len(memory))
            decision = schedule(loads, np.tile(memory, (len(factors), 1)), placer, networks.share)
            worth = _worth(problem, loads, outcome_of(loads, decision.slots, decision.shares), rates)
            candidates.append((float(worth.max()), -len(candidates), loads, decision, int(worth.argmax())))
    _, _, loads, decision, best = max(candidates, key=lambda candidate: candidate[:2])
    return _shares_of(loads, decision, best, len(memory), len(models))


def _worth(problem: ShareProblem, loads: Loads, outcome: DecisionOutcome, rates: Floats) -> Floats:
    """Return the value of each decision at the true rates: the factor by which all rates are served, or the reward."""
    shape = int(loads.problem.max()) + 1, len(rates)
    borne, throughput = np.zeros(shape), np.zeros(shape)
    np.add.at(borne, (loads.problem, loads.origin), outcome.borne_rps)
    np.add.at(throughput, (loads.problem, loads.origin), outcome.throughput)
    late = np.clip(1 - borne / rates, 0.0, 1.0)
    worth: Floats = (borne / rates).min(axis=1)
    if problem.objective == "throughput":
        worth = (throughput - VIOLATION_PENALTY * late).mean(axis=1)
    return worth


class _Drawing:
    """Stage 1 by chance: children are drawn as likely as the network likes them."""

    def __init__(self, networks: Networks) -> None:
        self._networks = networks
        self._random = Random(0)

    def __call__(self, states: Floats32, masks: Bools) -> Ints:
        """Gumbel's noise makes of the best what is drawn by a softmax."""
        uniform = np.array([self._random.random() for _ in range(masks.size)]).reshape(masks.shape)
        preferences = self._networks.preferences(states) - np.log(-np.log(uniform + 1e-12))
        best: Ints = np.where(masks, preferences, -np.inf).argmax(axis=1)
        return best


def _shares_of(
    loads: Loads, decision: Decision, taken: int, gpus: int, models: int
) -> tuple[list[AssignedShare], list[int]]:
    """One problem's shares, GPU by GPU, and its models without any."""
    shares = []
    for gpu, slot in zip(*np.nonzero(decision.slots.taken), strict=True):
        if gpu // gpus == taken:
            copy = decision.slots.load[gpu, slot]
            units, batch = int(decision.shares.units[gpu, slot]), int(decision.shares.batch[gpu, slot])
            shares.append(AssignedShare(int(loads.origin[copy]), int(gpu % gpus), units, batch))
    placed = {share.model for share in shares}
    return shares, [number for number in range(models) if number not in placed]


@cache
def _shipped(name: str) -> Networks:
    return Networks(SHIPPED_FOLDER / name)
