"""Choice among plans of one problem, each simulated with ELSA."""

from collections.abc import Callable, Mapping, Sequence

from tidegate.api import PlanningError, Progress
from tidegate_paris_elsa.plan import MigPlan
from tidegate_paris_elsa.problem import MigProblem
from tidegate_paris_elsa.slice_simulation import SliceSimulation
from tidegate_paris_elsa.slices import offers_of

Candidate = Callable[[float, Progress], MigPlan]
"""Function from the time limit in seconds, and the progress, to a plan. Raises PlanningError."""
FIRST_TIME_FRACTION = 0.5
"""Fraction of the time limit for the first candidate; the others share the rest."""
FIRST_REQUESTS, FINAL_REQUESTS = 1500, 6000
"""Number of simulated requests of each model in the first round, and of the best candidates."""
MAX_FINALISTS = 3
"""Number of candidates of the second round."""


def best_plan(
    problem: MigProblem, candidates: Mapping[str, Candidate], *, time_limit_s: float, progress: Progress
) -> MigPlan:
    """Return the candidate that sustains the highest load in simulation, with that load.

    `problem`: some of its models have an SLO. `candidates`: plans to make, by method. `time_limit_s`: seconds after
    which no further candidate is made. Raises PlanningError if the first has no plan.
    """
    (first, made), *others = candidates.items()
    plans = {first: made(FIRST_TIME_FRACTION * time_limit_s, progress)}
    for method, candidate in others:
        if progress() >= time_limit_s:
            break
        try:
            plan = candidate(time_limit_s, progress)
        except PlanningError:
            continue  # such equal slices do not spend these GPCs, or are too slow or too small for a model
        if all(plan.gpus != other.gpus for other in plans.values()):
            plans[method] = plan
    loads = _loads(problem, plans, FIRST_REQUESTS, seed=1)
    finalists = sorted(plans, key=lambda method: -loads[method])[:MAX_FINALISTS]
    loads = _loads(problem, {method: plans[method] for method in finalists}, FINAL_REQUESTS, seed=2)
    best = max(finalists, key=lambda method: loads[method])
    return plans[best].model_copy(
        update={
            "method": best,
            "objective": loads[best],
            "bound": None,
            "models": tuple(
                planned.model_copy(update={"rate_rps": round(loads[best] * model.weight, 3)})
                for model, planned in zip(problem.models, plans[best].models, strict=True)
            ),
        }
    )


def _loads(problem: MigProblem, plans: Mapping[str, MigPlan], requests: int, *, seed: int) -> dict[str, float]:
    """The load that each plan sustains: that of its worst model, relative to the models' weights.

    A model without an SLO has what its plan says.
    """
    offers = offers_of(problem.model_copy(update={"gpcs": None}))
    number_of = {kind.name: number for number, kind in enumerate(offers.kinds)}
    loads = {method: float("inf") for method in plans}
    for place, (model, speeds) in enumerate(zip(problem.models, offers.speeds, strict=True)):
        simulated = SliceSimulation(model, speeds, requests, seed) if model.slo_ms is not None else None
        for method, plan in plans.items():
            planned = plan.models[place]
            slices = {number_of[name]: count for name, count in planned.slices.items() if count}
            rate_rps = simulated.sustained_rps(slices) if simulated else planned.rate_rps
            loads[method] = min(loads[method], rate_rps / model.weight)
    return loads


def buckets(sizes: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Return at most `most` ranges (first, last) of sizes in rows, each with about as many sizes."""
    count = min(most, len(sizes))
    ends = [len(sizes) * (number + 1) // count for number in range(count)]
    return [(sizes[begin], sizes[end - 1]) for begin, end in zip([0, *ends], ends, strict=False)]
