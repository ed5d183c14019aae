"""Successive halving on common random numbers: finds the best of many candidates with few runs.

All entrants run on one seed, the better ones on more, and so on. Entrants far behind the best are eliminated after the
first round, and stopped during it once that is certain. If the best miss no deadline, the load is raised until even the
best of all that tie misses some; then entrants are ranked by that load and the given traffic in equal parts. Listing
order decides only between entrants that are equal in every run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Generic, Protocol, TypeVar

from tidegate.recommend.simulation_runs import SimulationOutcome, SimulationRun, SimulationRuns

Entrant = TypeVar("Entrant")
Racer_contra = TypeVar("Racer_contra", contravariant=True)
SEEDS_BY_ROUND = ((0,), (1, 2), (3, 4, 5))
"""Seeds added in each round."""
MAX_HEAT_SURVIVORS = 16
"""Maximum number of entrants that leave a heat with unchanged traffic."""
MAX_SCORE_GAP = 0.1
"""Score gap to the best entrant of a heat above which an entrant is eliminated."""
PACEMAKER_COUNT = 4
"""Number of entrants that run the heat to its end first, which determines the score to reach."""
SURVIVORS_BY_ROUND = (6, 3)
"""Maximum number of entrants after the first and after the second round."""
NO_CONTEST = 0.995
"""Score above which entrants of a heat with unchanged traffic are indistinguishable."""
LOAD_STEP, MAX_LOAD_STEPS = 1.2, 24
"""Growth factor of the load, and maximum number of increases, until the best score falls below `NO_CONTEST`."""


@dataclass(frozen=True)
class EntrantStanding(Generic[Entrant]):
    """Rank and score of one entrant."""

    entrant: Entrant
    score: float
    """Mean score over its seeds at the load of the race; for an entrant stopped in the heat an upper bound."""
    runs: int
    """Number of runs; 0: stopped."""


@dataclass(frozen=True)
class HalvingResult(Generic[Entrant]):
    """Result of successive halving: the entrants by rank."""

    load: float
    """Load of the ranking as a factor on the traffic; above 1, unchanged traffic counts as well."""
    standings: list[EntrantStanding[Entrant]]
    """Entrants by the round that they reached, then by score, best first."""
    broken: list[tuple[Entrant, str]]
    """Entrants that could not run, with the reason."""


class RunOfEntrant(Protocol[Racer_contra]):
    """Function that returns the run of an entrant."""

    def __call__(self, entrant: Racer_contra, seed: int, load: float, goal: float | None = None, /) -> SimulationRun:
        """With a seed at a load; `goal`: stopped once a model's attainment is certain to be below."""


def successive_halving(
    label: str, entrants: Sequence[Entrant], run_of: RunOfEntrant[Entrant], simulations: SimulationRuns
) -> HalvingResult[Entrant]:
    """Return the entrants ranked by successive halving.

    `label`: text of the progress display. `run_of`: returns the run of an entrant. `simulations`: simulates runs.
    """
    outcomes, bound = _heat(f"{label}, heat", entrants, run_of, simulations)
    broken = [(each, got.broken) for each, got in zip(entrants, outcomes, strict=True) if got.broken]
    stopped = [EntrantStanding(each, bound, 0) for each, got in zip(entrants, outcomes, strict=True) if got.missed]
    able = [
        EntrantStanding(each, got.score, 1)
        for each, got in zip(entrants, outcomes, strict=True)
        if not (got.broken or got.missed)
    ]
    if not able:
        return HalvingResult(1.0, [], broken)
    able.sort(key=lambda standing: -standing.score)
    near = [each for each in able if each.score >= able[0].score - MAX_SCORE_GAP]
    load, near = _under_more_load(near, label, run_of, simulations)
    loads = (load,) if load == 1 else (load, 1.0)
    contest = [standing.entrant for standing in near[:MAX_HEAT_SURVIVORS]]
    scores: dict[int, list[float]] = {place: [] for place in range(len(contest))}
    going = [*scores]
    for number, seeds in enumerate(SEEDS_BY_ROUND):
        runs = [(place, run_of(contest[place], seed, at)) for place in going for seed in seeds for at in loads]
        got = simulations.run(f"{label}, round {number + 1}", [run for _, run in runs])
        for (place, _), outcome in zip(runs, got, strict=True):
            scores[place].append(outcome.score)
        going = sorted(going, key=lambda place: -fmean(scores[place]))
        if number < len(SURVIVORS_BY_ROUND):
            going = going[: SURVIVORS_BY_ROUND[number]]
    order = sorted(scores, key=lambda place: (-len(scores[place]), -fmean(scores[place])))
    raced = [EntrantStanding(contest[place], fmean(scores[place]), len(scores[place])) for place in order]
    left = [*near[MAX_HEAT_SURVIVORS:], *(each for each in able if each.score < able[0].score - MAX_SCORE_GAP)]
    return HalvingResult(load, [*raced, *left, *stopped], broken)


def _heat(
    label: str, entrants: Sequence[Entrant], run_of: RunOfEntrant[Entrant], simulations: SimulationRuns
) -> tuple[list[SimulationOutcome], float]:
    """Run all on one seed with unchanged traffic; return the outcomes, and a score that stopped ones are below."""
    seed = SEEDS_BY_ROUND[0][0]
    outcomes = simulations.run(label, [run_of(each, seed, 1.0) for each in entrants[:PACEMAKER_COUNT]])
    bound = max((got.score for got in outcomes), default=0.0) - MAX_SCORE_GAP
    # No score is above the mean of 1 and what the worst model has.
    goal = max(0.0, 2 * bound - 1)
    outcomes += simulations.run(label, [run_of(each, seed, 1.0, goal) for each in entrants[PACEMAKER_COUNT:]])
    return outcomes, bound


def _under_more_load(
    near: Sequence[EntrantStanding[Entrant]], label: str, run_of: RunOfEntrant[Entrant], simulations: SimulationRuns
) -> tuple[float, list[EntrantStanding[Entrant]]]:
    """Return the load at which the best entrant is no longer above `NO_CONTEST`, and the entrants by rank.

    A few entrants find the load; then all the others run there, and a better one among them raises it further.
    """
    seed = SEEDS_BY_ROUND[0][0]
    load, steps = 1.0, 0
    behind: list[EntrantStanding[Entrant]] = []
    order = [*near]
    at_load = {id(each): each.score for each in near}

    def run(standings: Sequence[EntrantStanding[Entrant]]) -> float:
        """Run some of the entrants at the current load, and return the best score."""
        got = simulations.run(
            f"{label}, at {load:.1f} times the load", [run_of(each.entrant, seed, load) for each in standings]
        )
        at_load.update((id(each), outcome.score) for each, outcome in zip(standings, got, strict=True))
        return max(outcome.score for outcome in got)

    best = order[0].score
    while best > NO_CONTEST and steps < MAX_LOAD_STEPS:
        pacemakers, others = order[:PACEMAKER_COUNT], order[PACEMAKER_COUNT:]
        while best > NO_CONTEST and steps < MAX_LOAD_STEPS:
            load, steps = round(load * LOAD_STEP, 4), steps + 1
            best = run(pacemakers)
        best = max(best, run(others)) if others else best
        order.sort(key=lambda each: -at_load[id(each)])
        behind = [*(each for each in order if at_load[id(each)] < best - MAX_SCORE_GAP), *behind]
        order = [each for each in order if at_load[id(each)] >= best - MAX_SCORE_GAP]
    if load > 1:
        order.sort(key=lambda each: -(each.score + at_load[id(each)]))
    return load, [*order, *behind]
