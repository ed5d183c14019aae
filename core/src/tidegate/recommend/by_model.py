"""Settings of Triton's batcher model by model: starting from common settings, each model gets its own in succession."""

from collections.abc import Callable, Sequence
from statistics import fmean

from tidegate.recommend.candidates import Candidate
from tidegate.recommend.simulation_run import SimulationOutcome
from tidegate.recommend.simulation_runs import SimulationRuns
from tidegate.recommend.successive_halving import SEEDS_BY_ROUND, EntrantStanding, HalvingResult, RunOfEntrant
from tidegate.recommend.triton_tuning import batched, choices_of
from tidegate.workload import Scenario

MAX_TUNED_MODELS = 16
"""Maximum number of models that get their own settings: those with the most misses."""
MAX_RETESTED_SETTINGS = 2
"""Maximum number of a model's better settings that are run with more seeds."""
ROUND_SEEDS = (SEEDS_BY_ROUND[0], (*SEEDS_BY_ROUND[0], *SEEDS_BY_ROUND[1]))
"""Seeds of the first and of the second run of a model's settings."""
PER_MODEL_LABEL = "Triton's own batcher, model by model"


def tuned_by_model(
    scenario: Scenario, common: HalvingResult[Candidate], trial_of: RunOfEntrant[Candidate], trials: SimulationRuns
) -> HalvingResult[Candidate]:
    """Return a race of common settings with the best settings by model added to its finishers.

    `common`: result of the race of common settings. `trial_of`: returns the run of a candidate. `trials`: simulates
    runs. Settings by model are added only if they are better on the seeds that chose them.
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
