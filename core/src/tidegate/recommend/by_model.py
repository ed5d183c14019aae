"""Triton's settings model by model: from the best that all can have, one model after the other is given its own."""

from collections.abc import Callable, Sequence
from statistics import fmean

from tidegate.recommend.candidates import Candidate
from tidegate.recommend.simulation_run import SimulationOutcome
from tidegate.recommend.simulation_runs import SimulationRuns
from tidegate.recommend.successive_halving import SEEDS_BY_ROUND, EntrantStanding, HalvingResult, RunOfEntrant
from tidegate.recommend.triton_tuning import batched, choices_of
from tidegate.workload import Scenario

MAX_TUNED_MODELS = 16
"""So many models at most are given their own: those that miss most."""
MAX_RETESTED_SETTINGS = 2
"""So many of a model's settings that were better with one seed are asked with more."""
ROUND_SEEDS = (SEEDS_BY_ROUND[0], (*SEEDS_BY_ROUND[0], *SEEDS_BY_ROUND[1]))
"""The seeds of the first look at a model's settings, and of the second."""
PER_MODEL_LABEL = "Triton's own batcher, model by model"


def tuned_by_model(
    scenario: Scenario, common: HalvingResult[Candidate], trial_of: RunOfEntrant[Candidate], trials: SimulationRuns
) -> HalvingResult[Candidate]:
    """A race of settings that all models have, with the best one of settings by model among those who finished it.

    It is better than where it began on the seeds that chose it, and is left out where there is none.
    """
    first, *others = common.standings
    models = batched(scenario)
    if len(scenario.models) < 2 or not models:
        return common
    loads = (common.load,) if common.load == 1 else (common.load, 1.0)

    def outcomes(
        candidates: Sequence[Candidate], seeds: Sequence[int], goal: float | None = None
    ) -> list[list[SimulationOutcome]]:
        runs = [trial_of(each, seed, load, goal) for each in candidates for seed in seeds for load in loads]
        got = trials.run(PER_MODEL_LABEL, runs)
        size = len(seeds) * len(loads)
        return [got[start : start + size] for start in range(0, len(got), size)]

    def scores(candidates: Sequence[Candidate], seeds: Sequence[int], goal: float | None = None) -> list[float]:
        return [fmean(each.score for each in its) for its in outcomes(candidates, seeds, goal)]

    (begun,) = outcomes([first.entrant], ROUND_SEEDS[0])
    best = first.entrant
    for model in sorted(models, key=_missed(scenario, begun))[:MAX_TUNED_MODELS]:
        tried = [Candidate(choice) for choice in choices_of(scenario, best.choice, model)]
        (known,) = scores([best], ROUND_SEEDS[0])
        found = scores(tried, ROUND_SEEDS[0], _least_worst(known, len(loads)))
        better = sorted((number for number, score in enumerate(found) if score > known), key=lambda at: -found[at])
        if better:
            again = [best, *(tried[number] for number in better[:MAX_RETESTED_SETTINGS])]
            means = scores(again, ROUND_SEEDS[1])
            best = again[means.index(max(means))]
    if best == first.entrant:
        return common
    every = [seed for seeds in SEEDS_BY_ROUND for seed in seeds]
    (score,) = scores([best], every)
    own = EntrantStanding(best, score, len(every) * len(loads))
    return HalvingResult(
        common.load, [own, first, *others] if score > first.score else [first, own, *others], common.broken
    )


def _least_worst(known: float, loads: int) -> float:
    """Return the least attainment of the worst model, under each load, at which the mean score can beat a known one.

    No score exceeds the mean of 1 and the worst model's attainment, and under the other loads none exceeds 1.
    """
    return max(0.0, 1 - 2 * loads * (1 - known))


def _missed(scenario: Scenario, outcomes: Sequence[SimulationOutcome]) -> Callable[[str], float]:
    """Return a sort key that puts models with the most missed requests first."""
    weights = {model.name: weight for model, weight in zip(scenario.models, scenario.weights(), strict=True)}
    return lambda name: -weights[name] * sum(1 - outcome.models.get(name, 1.0) for outcome in outcomes)
