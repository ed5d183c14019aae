"""The recommendation: which policy on which hardware, or Triton without Tidegate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tidegate.host import Plugins
from tidegate.recommend.assess import Assessment, Assessor
from tidegate.recommend.candidates import Candidate, HardwareSite, UnfitCandidate, default_bundle
from tidegate.recommend.hardware import check_measured
from tidegate.recommend.purchase_options import assess_offers
from tidegate.recommend.query import RecommendError, RecommendQuery
from tidegate.recommend.simulation_runs import SimulationRuns
from tidegate.workload import Scenario

MAX_ATTAINMENT_LOSS = 0.001
"""Attainment that may be lost for a recommendation with fewer GPUs, if the goal is still met: 0.1 pp."""


@dataclass(frozen=True)
class Recommendation:
    """The recommendation: hardware, policy, and the assessments behind it."""

    question: RecommendQuery
    verdict: Literal["run", "stay"]
    """`run`: run the candidate. `stay`: nothing was shown to be better than Triton's own batcher, tuned."""
    chosen: Assessment
    """Assessment of the recommended hardware."""
    assessed: tuple[Assessment, ...]
    """Assessments of every hardware option."""
    unfit: tuple[UnfitCandidate, ...]
    runs: int
    """Number of simulations."""

    @property
    def candidate(self) -> Candidate:
        """Candidate to run; for `stay` Triton's own batcher with its best settings."""
        if self.verdict == "stay":
            assert self.chosen.triton is not None, "or there would be nothing to stay with"
            return self.chosen.triton
        return self.chosen.candidate

    @property
    def count(self) -> int:
        """Number of steps of the hardware: GPUs or bundles."""
        least = self.chosen.tritons_least
        if self.verdict == "stay" and self.question.buy and least is not None:
            return least
        return self.chosen.count

    @property
    def scenario(self) -> Scenario:
        """Scenario on the recommended hardware with the recommended policy, and Triton beside it."""
        candidate = self.candidate
        found = self.chosen.site.scenario(candidate.planner, self.count)
        policies = [candidate.choice]
        if self.verdict == "run" and self.chosen.triton is not None and not candidate.planner:
            policies.append(self.chosen.triton.choice)
        return found.model_copy(update={"policies": policies})


def recommend(question: RecommendQuery, trials: SimulationRuns, plugins: Plugins | None = None) -> Recommendation:
    """Return the recommendation for a query.

    `trials`: simulates runs. `plugins`: policies and planners to try; None: the installed ones. Raises RecommendError
    if nothing can run or no model has an SLO, ScenarioError for a GPU without measurements of a model, PluginError and
    TraceError.
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
    assessor = Assessor(trials)
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
    return Recommendation(question, verdict, chosen, tuple(assessed), _merged([*unfit, *chosen.unfit]), trials.count)


def choose(assessed: Sequence[Assessment]) -> tuple[Assessment, Literal["run", "stay"]]:
    """Return the hardware to take, and whether to run the candidate there or to stay with Triton.

    The choice is the least cost that meets the goal, or the best attainment if nothing meets it. A candidate must be
    better than Triton or need less hardware; otherwise the result is `stay`.
    """
    buying = assessed[0].site.question.buy
    ours = min(assessed, key=lambda each: (_cost(each, each.least), -each.ours.attainment.mean))
    if not buying:
        return ours, "run" if _is_better(ours) else "stay"
    tritons = min(assessed, key=lambda each: _cost(each, each.tritons_least))
    if _cost(ours, ours.least) < _cost(tritons, tritons.tritons_least):
        return ours, "run"
    return tritons, "run" if _is_better(tritons) else "stay"


def _cost(assessment: Assessment, count: int | None) -> float:
    return float("inf") if count is None else assessment.site.cost(count)


def _is_better(its: Assessment) -> bool:
    """Whether the candidate is shown to be better than Triton on this hardware, or to need less of it."""
    if its.gain is None or its.tritons is None:
        return True
    if its.gain.low > 0 and its.ours.attainment.mean >= its.tritons.attainment.mean - MAX_ATTAINMENT_LOSS:
        return True
    saves = _cost(its, its.least) < _cost(its, its.tritons_least)
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
