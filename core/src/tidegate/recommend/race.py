"""The best of many by few runs: successive halving, on common random numbers.

All run on one seed; the better ones on more, and so on. Traffic of which the best miss nothing is no contest: then they
are told apart by what they keep of so much more load that even the best begins to miss, and of the traffic as it is, in
equal parts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Generic, TypeVar

from tidegate.recommend.trial import Outcome, Trial
from tidegate.recommend.trials import Trials

Entrant = TypeVar("Entrant")
ROUNDS = ((0,), (1, 2), (3, 4, 5))
"""The seeds that each round adds."""
ABLE = 16
"""So many go on from a heat with the traffic as it is, at most."""
KEPT = (6, 3)
"""How many go on after the first and after the second round, at most."""
NO_CONTEST = 0.995
"""Who is above this with the traffic as it is, in the heat, cannot be told from others who are."""
STEP, STEPS = 1.2, 12
"""The load grows by this factor, so many times at most, until the best is not above that any more."""


@dataclass(frozen=True)
class Standing(Generic[Entrant]):
    """How far an entrant came."""

    entrant: Entrant
    score: float
    """The mean over its seeds, at the load of the race."""
    runs: int


@dataclass(frozen=True)
class Race(Generic[Entrant]):
    """What came out."""

    load: float
    """Times the traffic, at which it was decided; above 1: there and with the traffic as it is."""
    standings: list[Standing[Entrant]]
    """The entrants that came furthest first, and of these the best."""
    broken: list[tuple[Entrant, str]]
    """The entrants that could not run, and why."""


def race(
    label: str, entrants: Sequence[Entrant], trial_of: Callable[[Entrant, int, float], Trial], trials: Trials
) -> Race[Entrant]:
    """Find the best. `trial_of`: the run of an entrant with a seed at a load."""
    seed = ROUNDS[0][0]
    outcomes = trials.run(f"{label}, heat", [trial_of(each, seed, 1.0) for each in entrants])
    broken = [(each, got.broken) for each, got in zip(entrants, outcomes, strict=True) if got.broken]
    able = [(each, got) for each, got in zip(entrants, outcomes, strict=True) if not got.broken]
    if not able:
        return Race(1.0, [], broken)
    able.sort(key=lambda pair: -pair[1].score)
    load = _contest([each for each, _ in able[: KEPT[1]]], able[0][1], label, trial_of, trials)
    loads = (load,) if load == 1 else (load, 1.0)
    left = [each for each, _ in able]
    scores: dict[int, list[float]] = {number: [] for number in range(len(left))}
    order = [*range(len(left))]
    going = order[:ABLE]
    for number, seeds in enumerate(ROUNDS):
        runs = [(place, trial_of(left[place], seed, at)) for place in going for seed in seeds for at in loads]
        got = trials.run(f"{label}, round {number + 1}", [trial for _, trial in runs])
        for (place, _), outcome in zip(runs, got, strict=True):
            scores[place].append(outcome.score)
        going = sorted(going, key=lambda place: -fmean(scores[place]))
        if number < len(KEPT):
            going = going[: KEPT[number]]
    for place in order[ABLE:]:
        scores[place].append(able[place][1].score)
    order = sorted(order[:ABLE], key=lambda place: (-len(scores[place]), -fmean(scores[place]))) + order[ABLE:]
    standings = [Standing(left[place], fmean(scores[place]), len(scores[place])) for place in order]
    return Race(load, standings, broken)


def _contest(
    best: Sequence[Entrant],
    first: Outcome,
    label: str,
    trial_of: Callable[[Entrant, int, float], Trial],
    trials: Trials,
) -> float:
    """The load at which the best of some is no longer above `NO_CONTEST`."""
    load, score = 1.0, first.score
    for _ in range(STEPS):
        if score <= NO_CONTEST:
            break
        load = round(load * STEP, 4)
        got = trials.run(f"{label}, at {load:.2f} times the load", [trial_of(each, 0, load) for each in best])
        score = max(outcome.score for outcome in got)
    return load
