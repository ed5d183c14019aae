"""The recommendation: which policy on which hardware, or to change nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean
from typing import Literal

from tidegate.host import Plugins
from tidegate.recommend.assess import MAX_BUNDLES, MISSES_NOTHING, Assessment, Assessor
from tidegate.recommend.candidates import Candidate, HardwareSite, UnfitCandidate, default_bundle
from tidegate.recommend.hardware import check_measured
from tidegate.recommend.held_out import MAX_ATTAINMENT_LOSS, HeldOutResult, MeasuredCandidate, is_shown_better
from tidegate.recommend.query import RecommendError, RecommendQuery
from tidegate.recommend.simulation_runs import SimulationRuns
from tidegate.report.number_format import limit as limit_words
from tidegate.workload import Scenario

Verdict = Literal["keep", "run", "triton"]
"""`keep`: change nothing. `run`: the best candidate. `triton`: Triton's own batcher with its best settings."""


@dataclass(frozen=True)
class Recommendation:
    """Hardware, policy, and the assessments behind them."""

    question: RecommendQuery
    verdict: Verdict
    chosen: Assessment
    """Assessment of the recommended hardware."""
    assessed: tuple[Assessment, ...]
    """Assessments of every hardware option."""
    unfit: tuple[UnfitCandidate, ...]
    runs: int
    """Number of simulations."""
    max_load: float | None
    """Factor of the load up to which the recommended candidate meets the goal; None: it misses it, or is unknown."""

    @property
    def recommended(self) -> MeasuredCandidate:
        """Candidate to run, with its results."""
        chosen = self.chosen
        if self.verdict == "keep":
            assert chosen.baseline is not None, "or there would be nothing to keep"
            return chosen.baseline
        if self.verdict == "triton":
            assert chosen.triton is not None, "or it would not be the best"
            assert chosen.tritons is not None, "it was measured"
            return MeasuredCandidate(chosen.triton, chosen.tritons)
        return MeasuredCandidate(chosen.candidate, chosen.ours)

    @property
    def candidate(self) -> Candidate:
        """Candidate to run."""
        return self.recommended.candidate

    @property
    def count(self) -> int:
        """Number of steps of the hardware: GPUs or bundles."""
        least = self.chosen.tritons_least
        if self.verdict == "triton" and self.question.buy and least is not None:
            return least
        return self.chosen.count

    @property
    def scenario(self) -> Scenario:
        """Scenario on the recommended hardware with the recommended policy, and Triton beside it."""
        candidate = self.candidate
        found = self.chosen.site.scenario(candidate.planner, self.count)
        policies = [candidate.choice]
        if not candidate.planner:
            policies += [
                each.candidate.choice
                for _, each in self.chosen.contenders()
                if not each.candidate.planner and each.candidate.choice.title != candidate.choice.title
            ]
        return found.model_copy(update={"policies": policies})


def recommend(question: RecommendQuery, simulations: SimulationRuns, plugins: Plugins | None = None) -> Recommendation:
    """Return the recommendation for a query.

    `simulations`: runner of simulations. `plugins`: policies and planners to try; None: the installed ones. Raises
    RecommendError if nothing can run or no model has an SLO, ScenarioError for a GPU without measurements of a model,
    PluginError and TraceError.
    """
    if all(model.slo_ms is None for model in question.scenario.models):
        raise RecommendError(
            "no model has an SLO, so nothing is better than anything else: say with slo_ms (--set models.*.slo_ms=50) "
            "how soon answers are wanted"
        )
    whole = [model for model in question.scenario.models if model.name not in question.blocks]
    if question.scenario.layout is None:
        check_measured(whole, (product for bundle in question.bundles for product in bundle.gpus))
    plugins = plugins or Plugins.installed()
    assessor = Assessor(simulations)
    sites = [HardwareSite(question, plugins, bundle) for bundle in question.bundles or (default_bundle(question),)]
    if question.buy:
        assessed, unfit = assess_offers(assessor, sites)
    else:
        (site,) = sites
        found = assessor.assess(site, site.most)
        assessed, unfit = ([found], []) if isinstance(found, Assessment) else ([], found)
    if not assessed:
        reasons = "; ".join(f"{', '.join(each.names)}: {each.why}" for each in unfit)
        raise RecommendError(f"nothing can run: {reasons}")
    chosen, verdict = choose(assessed)
    unfit = [*unfit, *chosen.unfit]
    answer = Recommendation(question, verdict, chosen, tuple(assessed), _merged(unfit), simulations.count, None)
    best = answer.recommended
    max_load = assessor.max_load(chosen.site, answer.count, best.candidate, best.result)
    return replace(answer, max_load=max_load, runs=simulations.count)


def choose(assessed: Sequence[Assessment]) -> tuple[Assessment, Verdict]:
    """Return the hardware to take, and the candidate to run on it.

    Of hardware that could be bought: the least cost that meets the goal, or the best attainment if nothing meets it.
    """
    if not assessed[0].site.question.buy:
        (chosen,) = assessed
        return chosen, verdict_on(chosen)
    ours = min(assessed, key=lambda each: (_price(each.site, each.least), -each.ours.attainment.mean))
    tritons = min(assessed, key=lambda each: _price(each.site, each.tritons_least))
    if _price(ours.site, ours.least) < _price(tritons.site, tritons.tritons_least):
        return ours, "run"
    return tritons, "run" if _saves_or_is_better(tritons) else "triton"


def verdict_on(its: Assessment) -> Verdict:
    """Return the candidate to run on existing hardware: it replaces the baseline only if it is shown to be better.

    A recording of less than 30 s shows nothing.
    """
    baseline = its.baseline
    if baseline is None:
        return "run"
    recording = its.site.question.recording
    if is_perfect(baseline.result) or (recording is not None and recording.is_short):
        return "keep"
    is_better = is_shown_better(its.ours, baseline.result)
    if its.tritons is None:
        return "run" if is_better else "keep"
    if is_shown_better(its.tritons, baseline.result) and not is_shown_better(its.ours, its.tritons):
        return "triton"
    return "run" if is_better else "keep"


def is_perfect(its: HeldOutResult) -> bool:
    """Whether a result leaves nothing to gain."""
    return fmean(its.scores) >= MISSES_NOTHING


def _saves_or_is_better(its: Assessment) -> bool:
    """Whether the candidate is shown to be better than Triton on this hardware, or to need less of it."""
    if its.gain is None or its.tritons is None or is_shown_better(its.ours, its.tritons):
        return True
    saves = _price(its.site, its.least) < _price(its.site, its.tritons_least)
    return (
        saves
        and its.gain.mean >= -MAX_ATTAINMENT_LOSS
        and its.ours.attainment.mean >= its.tritons.attainment.mean - MAX_ATTAINMENT_LOSS
    )


def _merged(unfit: Sequence[UnfitCandidate]) -> tuple[UnfitCandidate, ...]:
    """Each reason once."""
    names: dict[str, tuple[str, ...]] = {}
    for each in unfit:
        names[each.why] = tuple(dict.fromkeys((*names.get(each.why, ()), *each.names)))
    return tuple(UnfitCandidate(its, why) for why, its in names.items())


def assess_offers(assessor: Assessor, sites: Sequence[HardwareSite]) -> tuple[list[Assessment], list[UnfitCandidate]]:
    """Assess the options that may be the cheapest, in order; return the others with the reason. Raises TraceError."""
    needed = {number: assessor.enough(site) for number, site in enumerate(sites)}
    order = sorted(needed, key=lambda number: _price(sites[number], needed[number]))
    assessed: dict[int, Assessment] = {}
    unfit: list[UnfitCandidate] = []
    for number in order:
        site, enough = sites[number], needed[number]
        costs = [_price(each.site, count) for each in assessed.values() for count in (each.least, each.tritons_least)]
        limit = min(costs, default=float("inf"))
        most = MAX_BUNDLES if limit == float("inf") else min(MAX_BUNDLES, ceil(limit / site.cost(1)) - 1)
        if enough is None or enough > most:
            winners = [each for its in assessed.values() for each in (its.candidate, its.triton) if each is not None]
            if enough is None or most < 1 or not assessor.keeps(site, most, winners):
                unfit.append(UnfitCandidate((site.words(1),), _why_unfit(site, most, limit)))
                continue
        found = assessor.assess(site, enough)
        if isinstance(found, Assessment):
            assessed[number] = found
        else:
            unfit += found
    return [assessed[number] for number in sorted(assessed)], unfit


def _price(site: HardwareSite, count: int | None) -> float:
    return float("inf") if count is None else site.cost(count)


def _why_unfit(site: HardwareSite, most: int, limit: float) -> str:
    goal = limit_words(site.question.goal)
    if limit == float("inf"):
        return f"not even {site.words(most)} answer {goal} of every model on time"
    if most < 1:
        return f"one costs {site.cost(1):g}, and all that it takes can be had for {limit:g}"
    return (
        f"not even {site.words(most)} for {site.cost(most):g} answer {goal} of every model on time; {limit:g} will do"
    )
