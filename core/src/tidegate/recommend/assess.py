"""Assessment of one choice of hardware: the best candidate, the best-tuned Triton, and the least hardware for each."""

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.api import PlanningError
from tidegate.recommend.by_model import tuned_by_model
from tidegate.recommend.candidates import (
    NO_PLANNER,
    Candidate,
    HardwareSite,
    UnfitCandidate,
    candidates_on,
    policy_choices,
)
from tidegate.recommend.held_out import HELD_OUT_SEEDS, HeldOutResult, gain_of, held_out_result
from tidegate.recommend.min_hardware import first_enough, least_around, least_count
from tidegate.recommend.simulation_run import SimulationRun
from tidegate.recommend.simulation_runs import SimulationRuns
from tidegate.recommend.successive_halving import MAX_HEAT_SURVIVORS, HalvingResult, RunOfEntrant, successive_halving
from tidegate.recommend.triton_tuning import in_proportion, nearby, triton_choices
from tidegate.sim.interval import Interval
from tidegate.workload import PolicyChoice, Scenario, ScenarioError

MAX_BUNDLES = 256
"""Maximum number of bundles to buy."""
GPU_SEARCH_FACTOR = 2
"""Factor by which the search for the least hardware exceeds what sufficed in one run, as other seeds may need more."""
TRITONS_MOST = 4
"""Maximum hardware to try for Triton, as a multiple of what suffices with Tidegate."""
TRITON_FINALISTS = 3
"""Number of Triton's best settings that are compared with the best candidate."""
REPORTED_WINDOW_FACTOR = 2
"""Length of the windows of reported figures, as a multiple of the search's windows."""
FEWER_SEEDS = HELD_OUT_SEEDS[:4]
"""Held-out seeds for comparisons of many candidates."""
LOAD, SLO = 1.1, 0.9
"""Changes to assess: 10 % more load; SLOs 10 % shorter."""


@dataclass(frozen=True)
class ChangedAssessment:
    """Assessment of the same hardware with one thing changed."""

    name: str
    ours: HeldOutResult | None
    triton: HeldOutResult | None
    """Result of Triton; None: Triton cannot run there."""


@dataclass(frozen=True)
class Assessment:
    """Results for one choice of hardware: the best candidate, Triton's best, and what follows."""

    site: HardwareSite
    count: int
    """Number of steps of the site in use: GPUs, or bundles."""
    candidate: Candidate
    ours: HeldOutResult
    triton: Candidate | None
    """Best settings of Triton's own batcher; None: Triton cannot run this by itself, or not on this site."""
    tritons: HeldOutResult | None
    gain: Interval | None
    least: int | None
    """Least number of steps of the site that meets the goal; None: unknown, or all of them do not suffice."""
    tritons_least: int | None
    changes: tuple[ChangedAssessment, ...]
    race: HalvingResult[Candidate]
    tritons_race: HalvingResult[Candidate]
    unfit: tuple[UnfitCandidate, ...]


class Assessor:
    """Assesses hardware sites by simulated runs."""

    def __init__(self, trials: SimulationRuns) -> None:
        self._trials = trials

    def assess(self, site: HardwareSite, enough: int) -> Assessment | list[UnfitCandidate]:
        """Assess a site; return the rejected candidates if none can run there. Raises TraceError.

        `enough`: number of steps to use; None: all.
        """
        candidates, unfit = candidates_on(site, enough)
        won = self._race("policies and planners", site, candidates, enough)
        unfit += _by_reason(won.broken)
        if not won.standings:
            return unfit
        tuned = self._tuned(site, enough)
        best = won.standings[0].entrant
        rivals = [standing.entrant for standing in tuned.standings[:TRITON_FINALISTS]]
        least = tritons_least = None
        if site.question.buy:
            least = self._least(site, [best], enough, min(GPU_SEARCH_FACTOR * enough, MAX_BUNDLES))
            tritons_least = self._least(site, rivals, least or enough, min(TRITONS_MOST * enough, MAX_BUNDLES))
        count = least or enough
        ours = self._measured(site, best, count)
        theirs = [(rival, self._measured(site, rival, count)) for rival in rivals]
        if not site.question.buy:  # whether all that there is will do is known from these
            goal = site.question.goal
            keeping = [each for each, its in theirs if its.keeps(goal)]
            least = self._least(site, [best] if ours.keeps(goal) else [], enough, enough, known=enough)
            tritons_least = self._least(site, keeping, enough, enough, known=enough)
        triton, measured_triton = max(theirs, key=lambda pair: sum(pair[1].scores), default=(None, None))
        return Assessment(
            site,
            count,
            best,
            ours,
            triton,
            measured_triton,
            None if measured_triton is None else gain_of(ours, measured_triton),
            least,
            tritons_least,
            tuple(self._changes(site, count, best, triton)),
            won,
            tuned,
            tuple(unfit),
        )

    def _tuned(self, site: HardwareSite, count: int) -> HalvingResult[Candidate]:
        """Triton's settings: one for all models, then in proportion to each model's SLO, finer, and model by model."""
        scenario = site.scenario(NO_PLANNER, count)

        def raced(
            label: str, tried: Sequence[PolicyChoice], before: HalvingResult[Candidate]
        ) -> HalvingResult[Candidate]:
            entered = [*tried, *(standing.entrant.choice for standing in before.standings[:TRITON_FINALISTS])]
            unlike = [choice for number, choice in enumerate(entered) if choice not in entered[:number]]
            return self._race(f"Triton's own batcher{label}", site, _tritons(unlike), count)

        found = raced("", triton_choices(scenario), HalvingResult(1.0, [], []))
        if not found.standings:
            return found
        # Who is far behind with one for all is so in proportion, too.
        near = [standing.entrant.choice for standing in found.standings[:MAX_HEAT_SURVIVORS] if standing.runs]
        found = raced(", by SLO", [in_proportion(scenario, each) for each in near], found)
        found = raced(", finer", nearby(found.standings[0].entrant.choice), found)
        return tuned_by_model(scenario, found, self._trial_of(site, count), self._trials)

    def _race(
        self, label: str, site: HardwareSite, entrants: Sequence[Candidate], count: int
    ) -> HalvingResult[Candidate]:
        able = []
        for each in entrants:
            try:
                site.scenario(each.planner, count)
            except (PlanningError, ScenarioError):
                continue  # it is among what does not fit
            able.append(each)
        if not able:
            return HalvingResult(1.0, [], [])
        return successive_halving(label, able, self._trial_of(site, count), self._trials)

    def _trial_of(self, site: HardwareSite, count: int) -> RunOfEntrant[Candidate]:
        def trial_of(each: Candidate, seed: int, load: float, goal: float | None = None, /) -> SimulationRun:
            return self._trial(site, each, count, seed, load=load, goal=goal)

        return trial_of

    def _trial(
        self,
        site: HardwareSite,
        candidate: Candidate,
        count: int,
        seed: int,
        *,
        load: float = 1.0,
        slo: float = 1.0,
        longer: int = 1,
        goal: float | None = None,
    ) -> SimulationRun:
        question = site.question
        scenario = tightened(site.scenario(candidate.planner, count), slo)
        return SimulationRun(
            scenario, candidate.choice, seed, load, question.recording, question.requests * longer, goal
        )

    def enough(self, site: HardwareSite) -> int | None:
        """Return the least number of bundles with which a policy with defaults meets the goal in a run.

        Raises TraceError.
        """

        def keeps(count: int) -> bool:
            return self.keeps(site, count)

        most = first_enough(keeps, MAX_BUNDLES)
        return None if most is None else least_count(keeps, most)

    def keeps(self, site: HardwareSite, count: int, others: Sequence[Candidate] = ()) -> bool:
        """Whether a policy with its default options, or one of `others`, meets the goal on `count` steps, by one run
        each.

        Raises TraceError if the trace is too short.
        """
        choices = policy_choices(site.plugins, site.question.only)
        first = [*(Candidate(choice) for choice in choices if not choice.options), *others]
        try:
            trials = [self._trial(site, each, count, 0, goal=site.question.goal) for each in first]
        except (PlanningError, ScenarioError):
            return True  # whole GPUs are no measure of it: the planners are asked, with one bundle
        outcomes = self._trials.run(f"{site.words(count)}: enough?", trials)
        return any(outcome.worst >= site.question.goal for outcome in outcomes)

    def _least(
        self, site: HardwareSite, candidates: Sequence[Candidate], start: int, most: int, *, known: int | None = None
    ) -> int | None:
        """The least with which one of the candidates keeps the goal, near `start`; `known`: so much is known to do."""
        if not (site.divisible and candidates):
            return None
        goal = site.question.goal
        # Who is so far below it with one seed cannot be above it in the mean.
        hopeless = max(0.0, 1 - len(FEWER_SEEDS) * (1 - goal))

        def keeps(count: int) -> bool:
            if count == known:
                return True
            try:
                trials = [
                    self._trial(site, each, count, seed, goal=hopeless) for each in candidates for seed in FEWER_SEEDS
                ]
            except (PlanningError, ScenarioError):
                return False
            outcomes = self._trials.run(f"{site.words(count)}: enough?", trials)
            size = len(FEWER_SEEDS)
            groups = [outcomes[start : start + size] for start in range(0, len(outcomes), size)]
            return any(
                not any(outcome.missed or outcome.broken for outcome in group) and held_out_result(group).keeps(goal)
                for group in groups
            )

        return least_around(keeps, start, most)

    def _measured(
        self,
        site: HardwareSite,
        candidate: Candidate,
        count: int,
        *,
        load: float = 1.0,
        slo: float = 1.0,
        longer: int = REPORTED_WINDOW_FACTOR,
        seeds: Sequence[int] = HELD_OUT_SEEDS,
    ) -> HeldOutResult:
        runs = [self._trial(site, candidate, count, seed, load=load, slo=slo, longer=longer) for seed in seeds]
        return held_out_result(self._trials.run(f"{candidate.choice.name}, held-out seeds", runs))

    def _changes(
        self, site: HardwareSite, count: int, best: Candidate, triton: Candidate | None
    ) -> list[ChangedAssessment]:
        def of(candidate: Candidate | None, number: int, load: float, slo: float) -> HeldOutResult | None:
            if candidate is None or number < 1:
                return None
            try:
                return self._measured(site, candidate, number, load=load, slo=slo, longer=1, seeds=FEWER_SEEDS)
            except (PlanningError, ScenarioError):
                return None

        asked = [("10 % more load", count, LOAD, 1.0), ("SLOs a tenth tighter", count, 1.0, SLO)]
        if site.divisible and count > 1:
            asked.append((f"{site.words(count - 1)} in place of {site.words(count)}", count - 1, 1.0, 1.0))
        return [
            ChangedAssessment(name, of(best, number, load, slo), of(triton, number, load, slo))
            for name, number, load, slo in asked
        ]


def _tritons(choices: Sequence[PolicyChoice]) -> list[Candidate]:
    return [Candidate(choice) for choice in choices]


def tightened(scenario: Scenario, slo: float) -> Scenario:
    """Return the scenario with its SLOs multiplied by `slo`."""
    if slo == 1:
        return scenario
    models = [
        model if model.slo_ms is None else model.model_copy(update={"slo_ms": model.slo_ms * slo})
        for model in scenario.models
    ]
    return scenario.model_copy(update={"models": models})


def _by_reason(broken: Sequence[tuple[Candidate, str]]) -> list[UnfitCandidate]:
    """Return rejected candidates grouped by reason."""
    reasons: dict[str, list[str]] = {}
    for candidate, why in broken:
        _, colon, reason = why.partition(": ")
        names = reasons.setdefault(reason if colon else why, [])
        if candidate.choice.name not in names:
            names.append(candidate.choice.name)
    return [UnfitCandidate(tuple(names), why) for why, names in reasons.items()]
