"""Runs the chosen candidate on held-out seeds: means with 95 % confidence intervals.

The best of many candidates was lucky on the seeds that chose it; its figures come from other seeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from tidegate.recommend.candidates import Candidate
from tidegate.recommend.recording import FIRST_HELD_OUT
from tidegate.recommend.simulation_runs import SimulationOutcome
from tidegate.sim.interval import Interval, interval_of

MAX_ATTAINMENT_LOSS = 0.001
"""Attainment that a better candidate may lose: 0.1 pp."""
HELD_OUT_SEEDS = tuple(range(FIRST_HELD_OUT, FIRST_HELD_OUT + 6))


@dataclass(frozen=True)
class HeldOutResult:
    """Results of a candidate on the held-out seeds."""

    attainment: Interval
    worst: Interval
    models: dict[str, Interval]
    p99_ms: float | None
    busy_share: float
    scores: tuple[float, ...]
    """Score of each seed."""

    @property
    def worst_mean(self) -> float:
        """Mean attainment of the worst model."""
        return min((each.mean for each in self.models.values()), default=1.0)

    def keeps(self, goal: float) -> bool:
        """Whether every model's mean attainment is at least `goal`, 0 to 1."""
        return self.worst_mean >= goal


@dataclass(frozen=True)
class MeasuredCandidate:
    """A candidate, and its results on the held-out seeds."""

    candidate: Candidate
    result: HeldOutResult


def held_out_result(outcomes: Sequence[SimulationOutcome]) -> HeldOutResult:
    """Return the results of one candidate from its runs, one for each seed."""
    names = [name for name in outcomes[0].models if all(name in outcome.models for outcome in outcomes)]
    latencies = [outcome.p99_ms for outcome in outcomes if outcome.p99_ms is not None]
    return HeldOutResult(
        interval_of([outcome.attainment for outcome in outcomes]),
        interval_of([outcome.worst for outcome in outcomes]),
        {name: interval_of([outcome.models[name] for outcome in outcomes]) for name in names},
        fmean(latencies) if latencies else None,
        fmean(outcome.busy_share for outcome in outcomes),
        tuple(outcome.score for outcome in outcomes),
    )


def is_shown_better(ours: HeldOutResult, theirs: HeldOutResult) -> bool:
    """Whether a score is higher with its confidence interval, and attainment is not lower."""
    return gain_of(ours, theirs).low > 0 and ours.attainment.mean >= theirs.attainment.mean - MAX_ATTAINMENT_LOSS


def gain_of(ours: HeldOutResult, theirs: HeldOutResult) -> Interval:
    """Return the difference of two candidates' scores, seed by seed, with its confidence interval."""
    pairs = zip(ours.scores, theirs.scores, strict=True)
    return interval_of([mine - their for mine, their in pairs], -1.0, 1.0)
