"""The planner `inss`: two networks decide, several times by chance, and the latency model says which was best."""

from functools import cache
from random import Random

import numpy as np

from tidegate.api import PlanningError, Progress
from tidegate_inss.assignment import Share
from tidegate_inss.learned.catalog import Ints, catalog_of
from tidegate_inss.learned.loads import Loads
from tidegate_inss.learned.networks import SHIPPED, Networks
from tidegate_inss.learned.outcome import outcome_of
from tidegate_inss.learned.placing import SLOTS, Bools, Floats32
from tidegate_inss.learned.scheduling import Decision, schedule
from tidegate_inss.plan import SharePlan
from tidegate_inss.plan_of import plan_of
from tidegate_inss.prediction import Predictor
from tidegate_inss.problem import ShareProblem

TRIED = 16
"""How many decisions are taken for a group of four GPUs; fewer for more GPUs, at least MOST_GPUS / GPUs."""
MOST_GPUS = 128


def plan_inss(problem: ShareProblem, /, *, time_limit_s: float, progress: Progress) -> SharePlan:
    """InSS's two-stage scheduler. Raises PlanningError where there is no plan, or the networks are for other sizes."""
    return plan_by(_shipped("inss"), problem, interference=True, progress=progress)


def plan_inss_ni(problem: ShareProblem, /, *, time_limit_s: float, progress: Progress) -> SharePlan:
    """InSS-ni: neither networks nor batch sizes take account of neighbours; what the plan foretells does."""
    return plan_by(_shipped("inss-ni"), problem, interference=False, progress=progress)


def plan_by(
    networks: Networks, problem: ShareProblem, *, interference: bool, progress: Progress, tried: int = TRIED
) -> SharePlan:
    """The plan of these networks: what they like best, or what is better among `tried` decisions."""
    predictor = Predictor(problem)
    gpus = len(problem.devices)
    if problem.units_per_gpu < SLOTS:
        raise PlanningError(
            f"units: the networks divide a GPU among up to {SLOTS} models, and MPS divides this one into "
            f"{problem.units_per_gpu} parts: take another planner"
        )
    if len(problem.models) > SLOTS * gpus:
        raise PlanningError(
            f"models: the networks were trained for up to {SLOTS} models on a GPU, and these are {len(problem.models)} "
            f"on {gpus}: give more GPUs, or take another planner"
        )
    tried = max(1, min(tried, TRIED * MOST_GPUS // (TRIED * gpus)))
    shares, unplaced = best_of(networks, problem, predictor, interference=interference, tried=tried)
    missing = dict.fromkeys(unplaced, "no GPU has memory for it, and for those before it")
    plan = plan_of(predictor, shares, missing, None)
    progress(objective=plan.objective)
    return plan


def best_of(
    networks: Networks, problem: ShareProblem, predictor: Predictor, *, interference: bool, tried: int
) -> tuple[list[Share], list[int]]:
    """The shares of the best of so many decisions, and the models that have none.

    The first is what the networks like best; the others draw where models go, as likely as the networks like it.
    """
    catalog = catalog_of(problem, predictor.tables, interference=interference)
    rates = np.array([model.rate_rps for model in problem.models])
    gpus = len(problem.devices)
    memory = np.array([device.memory_mib or np.inf for device in problem.devices])
    loads = Loads.of(catalog, [(np.arange(len(rates)), rates)] * tried, gpus=gpus)
    decision = schedule(loads, np.tile(memory, (tried, 1)), _Drawing(networks, tried), networks.share)
    reward = outcome_of(loads, decision.slots, decision.shares).reward
    worth = np.bincount(loads.problem, reward, tried)
    return _shares_of(loads, decision, int(worth.argmax()), gpus, len(rates))


class _Drawing:
    """Stage 1 for several decisions side by side: the groups of the first take what is best, the others draw."""

    def __init__(self, networks: Networks, tried: int) -> None:
        self._networks = networks
        self._tried = tried
        self._random = Random(0)

    def __call__(self, states: Floats32, masks: Bools) -> Ints:
        """Gumbel's noise makes of the best what is drawn by a softmax."""
        preferences = self._networks.preferences(states).astype(np.float64)
        drawn = len(states) // self._tried * (self._tried - 1)
        if drawn:
            uniform = np.array([self._random.random() for _ in range(4 * drawn)]).reshape(drawn, 4)
            preferences[-drawn:] -= np.log(-np.log(uniform + 1e-12))
        best: Ints = np.where(masks, preferences, -np.inf).argmax(axis=1)
        return best


def _shares_of(loads: Loads, decision: Decision, taken: int, gpus: int, models: int) -> tuple[list[Share], list[int]]:
    """One problem's shares, GPU by GPU, and its models without any."""
    shares = []
    for gpu, slot in zip(*np.nonzero(decision.slots.taken), strict=True):
        if gpu // gpus == taken:
            copy = decision.slots.load[gpu, slot]
            units, batch = int(decision.shares.units[gpu, slot]), int(decision.shares.batch[gpu, slot])
            shares.append(Share(int(loads.origin[copy]), int(gpu % gpus), units, batch))
    placed = {share.model for share in shares}
    return shares, [number for number in range(models) if number not in placed]


@cache
def _shipped(name: str) -> Networks:
    return Networks(SHIPPED / name)
