"""Assessment of one choice of hardware: the best candidate, the best-tuned Triton, and the least hardware for each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean

from tidegate.api import PlanningError
from tidegate.recommend.candidates import (
    NO_PLANNER,
    Candidate,
    HardwareSite,
    UnfitCandidate,
    candidates_on,
    policy_choices,
)
from tidegate.recommend.held_out import HELD_OUT_SEEDS, HeldOutResult, MeasuredCandidate, gain_of, held_out_result
from tidegate.recommend.query import RecommendQuery
from tidegate.recommend.recording import TRAFFIC_WINDOWS
from tidegate.recommend.simulation_runs import SimulationOutcome, SimulationRun, SimulationRuns
from tidegate.recommend.successive_halving import (
    MAX_HEAT_SURVIVORS,
    SEEDS_BY_ROUND,
    EntrantStanding,
    HalvingResult,
    RunOfEntrant,
    successive_halving,
)
from tidegate.recommend.triton_tuning import batched, choices_of, in_proportion, nearby, triton_choices
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
UNMODIFIED_TRITON_LABEL = "Triton, unmodified"
TUNED_TRITON_LABEL = "Triton, tuned"
REPORTED_WINDOW_FACTOR = 2
"""Length of the windows of reported figures, as a multiple of the search's windows."""
FEWER_SEEDS = HELD_OUT_SEEDS[:4]
"""Held-out seeds for comparisons of many candidates."""
LOAD, SLO = 1.1, 0.9
"""Changes to assess: 10 % more load; SLOs 10 % shorter."""
MISSES_NOTHING = 0.999
"""Score above which a result cannot be improved: a request in a thousand is late."""
MAX_LOAD_FACTOR, MAX_RECORDED_LOAD_FACTOR = 64.0, float(TRAFFIC_WINDOWS)
"""Largest factor of the load that is tried; a recording has only this many windows."""
LOAD_RESOLUTION = 1.05
"""Factor within which the highest load is searched."""


@dataclass(frozen=True)
class ChangedAssessment:
    """Assessment of the same hardware with one thing changed."""

    name: str
    ours: HeldOutResult | None
    triton: HeldOutResult | None
    """Result of Triton; None: Triton cannot run there."""
    baseline: HeldOutResult | None
    """Result of what serves now; None: it cannot run there."""


@dataclass(frozen=True)
class Assessment:
    """Results for one choice of hardware: the best candidate, Triton's best, and what follows."""

    site: HardwareSite
    count: int
    """Number of steps of the site in use: GPUs, or bundles."""
    candidate: Candidate
    ours: HeldOutResult
    current: MeasuredCandidate | None
    """The policy that served the recorded traffic; None: there is none, or it cannot run on this hardware."""
    unmodified: MeasuredCandidate | None
    """Triton's own batcher, unmodified; None: Triton cannot run this without a proxy, or cannot run on it."""
    triton: Candidate | None
    """Best settings of Triton's own batcher, which may be those that it has; None: Triton cannot run this by itself."""
    tritons: HeldOutResult | None
    gain: Interval | None
    least: int | None
    """Least number of steps of the site that meets the goal; None: unknown, or all of them do not suffice."""
    tritons_least: int | None
    changes: tuple[ChangedAssessment, ...]
    race: HalvingResult[Candidate]
    tritons_race: HalvingResult[Candidate]
    unfit: tuple[UnfitCandidate, ...]

    @property
    def baseline(self) -> MeasuredCandidate | None:
        """Current scheduler: the current policy, otherwise Triton's own batcher, unmodified."""
        return self.current or self.unmodified

    @property
    def is_triton_tuned(self) -> bool:
        """Whether other settings of Triton's own batcher than those it has are the best."""
        return self.triton is not None and (self.unmodified is None or self.triton != self.unmodified.candidate)

    def contenders(self) -> list[tuple[str, MeasuredCandidate]]:
        """Return all that was judged on the held-out seeds, each once, with its label."""
        found = [(self.candidate.title, MeasuredCandidate(self.candidate, self.ours))]
        if self.current is not None:
            label = f"{self.current.candidate.title} (current)"
            if self.current.candidate == self.candidate:
                found = [(label, found[0][1])]
            else:
                found.append((label, self.current))
        if self.unmodified is not None:
            found.append((UNMODIFIED_TRITON_LABEL, self.unmodified))
        if self.triton is not None and self.tritons is not None and self.is_triton_tuned:
            found.append((TUNED_TRITON_LABEL, MeasuredCandidate(self.triton, self.tritons)))
        return found


class Assessor:
    """Assesses hardware sites by simulated runs."""

    def __init__(self, simulations: SimulationRuns) -> None:
        self._simulations = simulations

    def assess(self, site: HardwareSite, enough: int) -> Assessment | list[UnfitCandidate]:
        """Assess a site; return the rejected candidates if none can run there. Raises TraceError.

        `enough`: number of steps to use; None: all.
        """
        candidates, unfit = candidates_on(site, enough)
        won = self._race("policies and planners", site, candidates, enough)
        unfit += _by_reason(won.broken)
        if not won.standings:
            return unfit
        question = site.question
        able = [each for each in (self._able(site, enough, question.unmodified_triton, unfit),) if each is not None]
        as_it_is = [(each, self._measured(site, each, enough)) for each in able]
        is_perfect = any(fmean(result.scores) >= MISSES_NOTHING for _, result in as_it_is) and not question.buy
        tuned = HalvingResult[Candidate](1.0, [], []) if is_perfect or not able else self._tuned(site, enough)
        best = won.standings[0].entrant
        rivals = [*able, *(each.entrant for each in tuned.standings[:TRITON_FINALISTS] if each.entrant not in able)]
        least = tritons_least = None
        if site.question.buy:
            least = self._least(site, [best], enough, min(GPU_SEARCH_FACTOR * enough, MAX_BUNDLES))
            tritons_least = self._least(site, rivals, least or enough, min(TRITONS_MOST * enough, MAX_BUNDLES))
        count = least or enough
        ours = self._measured(site, best, count)
        theirs = [(rival, self._measured(site, rival, count)) for rival in rivals]
        current = self._current(site, count, unfit)
        unmodified = MeasuredCandidate(*theirs[0]) if able else None
        if not site.question.buy:  # whether all that there is will do is known from these
            goal = site.question.goal
            keeping = [each for each, its in theirs if its.keeps(goal)]
            least = self._least(site, [best] if ours.keeps(goal) else [], enough, enough, known=enough)
            tritons_least = self._least(site, keeping, enough, enough, known=enough)
        # Of equals the first, which is Triton unmodified.
        triton, measured_triton = max(theirs, key=lambda pair: sum(pair[1].scores), default=(None, None))
        baseline = current or unmodified
        return Assessment(
            site,
            count,
            best,
            ours,
            current,
            unmodified,
            triton,
            measured_triton,
            None if measured_triton is None else gain_of(ours, measured_triton),
            least,
            tritons_least,
            tuple(self._changes(site, count, best, triton, None if baseline is None else baseline.candidate)),
            won,
            tuned,
            tuple(unfit),
        )

    def max_load(self, site: HardwareSite, count: int, candidate: Candidate, result: HeldOutResult) -> float | None:
        """Return the factor of the load up to which a candidate keeps the goal of every model; None: not even of 1.

        At most `max_load_factor`. `count`: steps of the site.
        """
        goal = site.question.goal
        if not result.keeps(goal):
            return None
        most = max_load_factor(site.question)

        def keeps(load: float) -> bool:
            runs = [
                self._run_of(site, candidate, count, seed, load=load, goal=_hopeless(goal, len(FEWER_SEEDS)))
                for seed in FEWER_SEEDS
            ]
            outcomes = self._simulations.run(f"{candidate.choice.name}, at {load:.1f} times the load", runs)
            return not any(each.missed or each.broken for each in outcomes) and held_out_result(outcomes).keeps(goal)

        good, bad = 1.0, 1.2
        while keeps(bad):
            good, bad = bad, min(1.5 * bad, most)
            if good == most:
                return most
        while bad / good > LOAD_RESOLUTION:
            middle = sqrt(good * bad)
            good, bad = (middle, bad) if keeps(middle) else (good, middle)
        return good

    def _able(
        self, site: HardwareSite, count: int, choice: PolicyChoice, unfit: list[UnfitCandidate]
    ) -> Candidate | None:
        """Return a choice as a candidate on whole GPUs; None, with the reason in `unfit`, where it cannot run there."""
        candidate = Candidate(choice)
        try:
            (outcome,) = self._simulations.run(f"{choice.name}: able?", [self._run_of(site, candidate, count, 0)])
        except (PlanningError, ScenarioError) as error:
            unfit.append(UnfitCandidate((f"policy {choice.name}",), str(error)))
            return None
        if outcome.broken:
            unfit += _by_reason([(candidate, outcome.broken)])
            return None
        return candidate

    def _current(self, site: HardwareSite, count: int, unfit: list[UnfitCandidate]) -> MeasuredCandidate | None:
        """The policy that served the recorded traffic, judged."""
        choice = site.question.current
        candidate = None if choice is None else self._able(site, count, choice, unfit)
        return None if candidate is None else MeasuredCandidate(candidate, self._measured(site, candidate, count))

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
        return tuned_by_model(scenario, found, self._run_of_entrant(site, count), self._simulations)

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
        return successive_halving(label, able, self._run_of_entrant(site, count), self._simulations)

    def _run_of_entrant(self, site: HardwareSite, count: int) -> RunOfEntrant[Candidate]:
        def run_of(each: Candidate, seed: int, load: float, goal: float | None = None, /) -> SimulationRun:
            return self._run_of(site, each, count, seed, load=load, goal=goal)

        return run_of

    def _run_of(
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
            runs = [self._run_of(site, each, count, 0, goal=site.question.goal) for each in first]
        except (PlanningError, ScenarioError):
            return True  # whole GPUs are no measure of it: the planners are asked, with one bundle
        outcomes = self._simulations.run(f"{site.words(count)}: enough?", runs)
        return any(outcome.worst >= site.question.goal for outcome in outcomes)

    def _least(
        self, site: HardwareSite, candidates: Sequence[Candidate], start: int, most: int, *, known: int | None = None
    ) -> int | None:
        """The least with which one of the candidates keeps the goal, near `start`; `known`: so much is known to do."""
        if not (site.divisible and candidates):
            return None
        goal = site.question.goal
        hopeless = _hopeless(goal, len(FEWER_SEEDS))

        def keeps(count: int) -> bool:
            if count == known:
                return True
            try:
                runs = [
                    self._run_of(site, each, count, seed, goal=hopeless) for each in candidates for seed in FEWER_SEEDS
                ]
            except (PlanningError, ScenarioError):
                return False
            outcomes = self._simulations.run(f"{site.words(count)}: enough?", runs)
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
        runs = [self._run_of(site, candidate, count, seed, load=load, slo=slo, longer=longer) for seed in seeds]
        return held_out_result(self._simulations.run(f"{candidate.choice.name}, held-out seeds", runs))

    def _changes(
        self,
        site: HardwareSite,
        count: int,
        best: Candidate,
        triton: Candidate | None,
        baseline: Candidate | None,
    ) -> list[ChangedAssessment]:
        def of(candidate: Candidate | None, number: int, load: float, slo: float) -> HeldOutResult | None:
            if candidate is None or number < 1:
                return None
            try:
                return self._measured(site, candidate, number, load=load, slo=slo, longer=1, seeds=FEWER_SEEDS)
            except (PlanningError, ScenarioError):
                return None

        asked = [("10 % more load", count, LOAD, 1.0), ("SLOs 10 % shorter", count, 1.0, SLO)]
        if site.divisible and count > 1:
            asked.append((f"{site.words(count - 1)} in place of {site.words(count)}", count - 1, 1.0, 1.0))
        return [
            ChangedAssessment(
                name,
                of(best, number, load, slo),
                of(triton, number, load, slo),
                of(baseline, number, load, slo),
            )
            for name, number, load, slo in asked
        ]


def max_load_factor(question: RecommendQuery) -> float:
    """Return the largest factor of the load that is tried."""
    return MAX_LOAD_FACTOR if question.recording is None else MAX_RECORDED_LOAD_FACTOR


def _hopeless(goal: float, seeds: int) -> float:
    """Return the attainment with one seed below which the mean of this many seeds cannot reach the goal."""
    return max(0.0, 1 - seeds * (1 - goal))


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
        if (name := f"policy {candidate.choice.name}") not in names:
            names.append(name)
    return [UnfitCandidate(tuple(names), why) for why, names in reasons.items()]


def least_count(keeps: Callable[[int], bool], most: int) -> int | None:
    """Return the least number from 1 to `most` for which `keeps` holds, if it is monotone; None if none does."""
    if most < 1 or not keeps(most):
        return None
    bad, good = 0, most
    while good - bad > 1:
        middle = (good + bad) // 2
        if keeps(middle):
            good = middle
        else:
            bad = middle
    return good


def least_around(keeps: Callable[[int], bool], start: int, most: int) -> int | None:
    """Return the same as `least_count`, faster if the result is near `start`.

    `keeps`: monotone condition; `most`: largest number to try. Steps double from `start`, then bisection.
    """
    start = min(start, most)
    if start < 1:
        return None
    step = 1
    if keeps(start):
        good = start
        while (bad := max(0, good - step)) and keeps(bad):
            good, step = bad, 2 * step
    else:
        bad = start
        while True:
            if bad == most:
                return None
            good = min(bad + step, most)
            if keeps(good):
                break
            bad, step = good, 2 * step
    between = least_count(lambda count: bad + count >= good or keeps(bad + count), good - bad)
    assert between is not None, "all of it keeps the goal"
    return bad + between


def first_enough(keeps: Callable[[int], bool], most: int) -> int | None:
    """Return a number for which `keeps` holds, at most twice the least one; None if none up to `most`."""
    count = 1
    while not keeps(count):
        if count >= most:
            return None
        count = min(2 * count, most)
    return count


MAX_TUNED_MODELS = 16
"""Maximum number of models that get their own settings: those with the most misses."""
MAX_RETESTED_SETTINGS = 2
"""Maximum number of a model's better settings that are run with more seeds."""
ROUND_SEEDS = (SEEDS_BY_ROUND[0], (*SEEDS_BY_ROUND[0], *SEEDS_BY_ROUND[1]))
"""Seeds of the first and of the second run of a model's settings."""
PER_MODEL_LABEL = "Triton's own batcher, model by model"


def tuned_by_model(
    scenario: Scenario, common: HalvingResult[Candidate], run_of: RunOfEntrant[Candidate], simulations: SimulationRuns
) -> HalvingResult[Candidate]:
    """Return a race of common settings with the best settings by model added to its finishers.

    `common`: result of the race of common settings. `run_of`: returns the run of a candidate. `simulations`: simulates
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
        runs = [run_of(each, seed, load, goal) for each in candidates for seed in seeds for load in loads]
        got = simulations.run(PER_MODEL_LABEL, runs)
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
