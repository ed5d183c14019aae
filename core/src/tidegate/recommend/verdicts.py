"""The recommendation in sentences: what to run, its attainment, its savings, and what would change it."""

from typing import Any

from tidegate.recommend.assess import Assessment, ChangedAssessment
from tidegate.recommend.candidates import Candidate
from tidegate.recommend.held_out import HeldOutResult
from tidegate.recommend.recommendation import Recommendation
from tidegate.recommend.simulation_run import MIN_REQUESTS
from tidegate.recommend.triton_tuning import batched
from tidegate.report.number_format import limit, listed, plural, share
from tidegate.schemas import options_of_model
from tidegate.sim.interval import Interval

SETTING_PHRASES = {
    "max_queue_delay_ms": "a delay of {} ms",
    "default_timeout_ms": "a timeout of {} ms",
    "preferred_batch_size": "preferred sizes {}",
}

MIN_ATTAINMENT_GAIN = 0.005
"""Minimum gain in attainment that is called better: 0.005, half a percentage point."""


def verdicts(found: Recommendation) -> list[str]:
    """Return the recommendation as sentences, the answer first."""
    said = [_answer(found)]
    said += filter(None, (_beside(found), _too_few(found), _saved(found), _offers(found)))
    return [*said, *_changes(found)]


def settings(candidate: Candidate) -> str:
    """Return Triton's settings as text: the common ones, and how many models have others."""
    options = candidate.choice.options
    own = len(options.get("models", {}))
    return _settings(options) + (f", {plural(own, 'model')} otherwise" if own else "")


def settings_by_model(found: Recommendation) -> dict[str, str]:
    """Return each model's settings as text; empty if all models share one set."""
    triton = found.chosen.triton
    if triton is None or "models" not in triton.choice.options:
        return {}
    options = triton.choice.options
    return {name: _settings(options_of_model(options, name)) for name in batched(found.question.scenario)}


def _settings(options: dict[str, Any]) -> str:
    words = [
        text.format(", ".join(map(str, value)) if isinstance(value, list) else f"{value:g}")
        for name, text in SETTING_PHRASES.items()
        if (value := options.get(name))
    ]
    return f"with {listed(words)}" if words else "with no delay"


def between(interval: Interval) -> str:
    """Return an interval as text, e.g. `94.4 % (93.4 to 95.3 %)`."""
    low, mean, high = (share(value) for value in (interval.low, interval.mean, interval.high))
    return mean if low == mean == high else f"{mean} ({low} to {high})"


def _answer(found: Recommendation) -> str:
    chosen = found.chosen
    where = chosen.site.words(found.count)
    if found.verdict == "stay":
        least = chosen.tritons
        assert least is not None, "there is a Triton to stay with"
        keeps = f": it keeps {_keeps(least)}" if found.count == chosen.count else ""
        return f"Stay with Triton's own batcher on {where}, {settings(found.candidate)}{keeps}."
    return f"Run {chosen.candidate.title} on {where}: it keeps {_keeps(chosen.ours)}."


def _keeps(its: HeldOutResult) -> str:
    worst = min(its.models, key=lambda name: its.models[name].mean, default="")
    alone = len(its.models) <= 1
    said = f"{between(its.attainment)} of the requests on time"
    return said if alone else f"{said}; {worst} is the worst, {share(its.worst_mean)}"


def _beside(found: Recommendation) -> str:
    """How it stands to the other one."""
    chosen = found.chosen
    if chosen.tritons is None or chosen.triton is None or chosen.gain is None:
        return "Triton by itself cannot run this, so there is nothing to compare with."
    if found.verdict == "run":
        tuned = f"Triton's own batcher, tuned as well as it can be ({settings(chosen.triton)})"
        return f"{tuned}, keeps {_keeps(chosen.tritons)}."
    low, high = 100 * chosen.gain.low, 100 * chosen.gain.high
    if chosen.gain.high < 0:
        what = f"is worse by {-high:.1f} to {-low:.1f} points"
    else:
        what = f"is not shown to be better ({low:+.1f} to {high:+.1f} points)"
    return f"The best of all that Tidegate has, {chosen.candidate.title}, {what}."


def _too_few(found: Recommendation) -> str:
    """Return a sentence that names models with few requests."""
    judged = found.chosen.ours.models
    rare = [model.name for model in found.question.scenario.models if model.share and model.name not in judged]
    if not rare:
        return ""
    remedy = "record for longer" if found.question.recording is not None else "--requests has more in each run"
    return f"{listed(rare)} had fewer than {MIN_REQUESTS} requests in a run, too few to be judged alone: {remedy}."


def _saved(found: Recommendation) -> str:
    """How much hardware would do."""
    chosen, goal = found.chosen, limit(found.question.goal)
    if not chosen.site.divisible:
        return ""
    priced = found.question.buy and chosen.site.bundle is not None and chosen.site.bundle.price is not None

    def needs(count: int) -> str:
        return chosen.site.words(count) + (f" for {chosen.site.cost(count):g}" if priced else "")

    def much(ours: int, theirs: int) -> str:
        saved = chosen.site.cost(theirs) - chosen.site.cost(ours)
        if priced:
            return f"{saved:g} saved, {share(saved / chosen.site.cost(theirs))}"
        gpus = len(chosen.site.gpus(theirs)) - len(chosen.site.gpus(ours))
        return f"{plural(gpus, 'GPU')} saved, {share(gpus / len(chosen.site.gpus(theirs)))}"

    ours, theirs = chosen.least, chosen.tritons_least
    for_all = f"To keep {goal} of every model"
    if ours is None:
        if theirs is None:
            return f"{for_all}, {chosen.site.words(chosen.count)} is too little for either."
        return f"{for_all}, Triton needs {needs(theirs)}; {chosen.candidate.title} needs more than there is."
    if theirs is None:
        most = "any number that was tried" if found.question.buy else chosen.site.words(chosen.count)
        return f"{for_all}, {needs(ours)} will do; Triton cannot with {most}."
    if ours < theirs:
        return f"{for_all}, {needs(ours)} will do; Triton needs {needs(theirs)}: {much(ours, theirs)}."
    needed = f"both need {needs(ours)}" if ours == theirs else f"Triton needs {needs(theirs)}, else {needs(ours)}"
    return f"{for_all}, {needed}."


def _offers(found: Recommendation) -> str:
    """Return sentences on the price of the other hardware."""
    others = [each for each in found.assessed if each is not found.chosen]
    if not others:
        return ""
    return "Other offers: " + "; ".join(_offer(each) for each in others) + "."


def _offer(its: Assessment) -> str:
    if its.least is None:
        return f"{its.site.words(1)} not enough of them"
    return f"{its.site.words(its.least)} for {its.site.cost(its.least):g}"


def _changes(found: Recommendation) -> list[str]:
    """Return sentences on the assessed changes."""
    goal = found.question.goal
    told = [_change(change, goal, found.verdict) for change in found.chosen.changes]
    parts = [said for said in told if said]
    return [f"What would change it: {'; '.join(parts)}."] if parts else []


def _change(change: ChangedAssessment, goal: float, verdict: str) -> str:
    mine, other = (change.ours, change.triton) if verdict == "run" else (change.triton, change.ours)
    if mine is None:
        return f"with {change.name}, it cannot run"
    said = f"with {change.name}, {share(mine.attainment.mean)}"
    if len(mine.models) > 1:
        said += f", {share(mine.worst_mean)} of the worst model"
    if other is not None:
        beside = "Triton" if verdict == "run" else "the best policy"
        said += f" ({beside} {share(other.attainment.mean)})"
        if other.attainment.mean > mine.attainment.mean + MIN_ATTAINMENT_GAIN:
            said += ", so that the answer would be another"
    return said + ("" if mine.keeps(goal) else f", below {limit(goal)}")
