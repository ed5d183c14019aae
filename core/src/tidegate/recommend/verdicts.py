"""The recommendation in sentences: what to run, its attainment, its savings, and what would change it."""

from collections.abc import Iterator
from typing import Any

from tidegate.recommend.assess import Assessment, ChangedAssessment, max_load_factor
from tidegate.recommend.candidates import Candidate
from tidegate.recommend.held_out import HeldOutResult, MeasuredCandidate, gain_of
from tidegate.recommend.recommendation import Recommendation, is_perfect
from tidegate.recommend.recording import MIN_ADVISED_LENGTH_S
from tidegate.recommend.simulation_runs import MIN_REQUESTS
from tidegate.recommend.triton_tuning import batched
from tidegate.report.number_format import limit, listed, plural, rate, share
from tidegate.schemas import options_of_model
from tidegate.sim.interval import MAX_CALIBRATION_ERROR, Interval
from tidegate.workload import mean_rate_rps
from tidegate.workload.arrivals import NS_PER_S

SETTING_PHRASES = {
    "max_queue_delay_ms": "a delay of {} ms",
    "default_timeout_ms": "a timeout of {} ms",
    "preferred_batch_size": "preferred sizes {}",
}

MIN_ATTAINMENT_GAIN = 0.005
"""Minimum difference in attainment that is called a difference: 0.005, half a percentage point."""


def verdicts(found: Recommendation) -> list[str]:
    """Return the recommendation as sentences, the answer first."""
    sentences = [
        _answer(found),
        _as_recorded(found),
        _sustained(found),
        _losers(found),
        *_others(found),
        _too_few(found),
    ]
    return list(filter(None, [*sentences, _saved(found), _offers(found), _changes(found)]))


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
    chosen, best = found.chosen, found.recommended
    where, name = chosen.site.words(found.count), _name(found, best)
    keeps = _keeps(best.result, found.question.goal)
    if found.verdict == "keep":
        why = "" if is_perfect(best.result) else f"{_why_keep(found)}. "
        return f"Change nothing: {why}{_capitalized(name) if why else name} on {where} answers {keeps}."
    if found.count != chosen.count:
        return f"Run {name} on {where}."  # it was measured on more
    return f"Run {name} on {where}: it answers {keeps}."


def _why_keep(found: Recommendation) -> str:
    """Return why nothing is recommended in place of what serves now, though it leaves something to gain."""
    recording = found.question.recording
    if recording is None or not recording.is_short:
        return "nothing that was tried is shown to be better"
    return (
        f"the recording is {recording.length_ns / NS_PER_S:.2g} s long, too short to advise a change (record "
        f"{MIN_ADVISED_LENGTH_S:g} s or more under load)"
    )


def _name(found: Recommendation, its: MeasuredCandidate) -> str:
    """Name a contender: a policy, or Triton's own batcher and its settings."""
    chosen = found.chosen
    if chosen.unmodified is not None and its.candidate == chosen.unmodified.candidate:
        return "Triton's own batcher, unmodified,"
    if its.candidate == chosen.triton:
        return f"Triton's own batcher {settings(its.candidate)}"
    current = chosen.current is not None and its.candidate == chosen.current.candidate
    return ("the current policy, " if current else "policy ") + its.candidate.title + ("," if current else "")


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _keeps(its: HeldOutResult, goal: float) -> str:
    """Return the attainment of all requests and of the worst model as text, with the models that miss the goal."""
    text = f"{between(its.attainment)} of the requests on time"
    if len(its.models) <= 1 or its.worst_mean == 1:
        return text
    below = [f"{name} ({share(each.mean)})" for name, each in its.models.items() if each.mean < goal]
    if below:
        return f"{text}; below {limit(goal)}: {listed(below)}"
    return f"{text}, and at least {share(its.worst_mean)} of every model"


def _as_recorded(found: Recommendation) -> str:
    """Return a warning if the simulation of the current policy is far from what was measured."""
    asked, current = found.question, found.chosen.current
    if asked.recording is None or asked.bundles or current is None:
        return ""
    simulated, measured = current.result.attainment.mean, asked.recording.attainment
    if abs(simulated - measured) <= MAX_CALIBRATION_ERROR:
        return ""
    return (
        f"Do not rely on this: {share(measured)} of the recorded requests were on time, but {share(simulated)} in the "
        "simulation of the current policy. Measure profiles (tidegate profile), or record longer."
    )


def _sustained(found: Recommendation) -> str:
    """Up to which load the answer holds."""
    load, goal = found.max_load, limit(found.question.goal)
    if load is None:
        return "" if found.verdict == "keep" else f"It does not keep {goal} of every model at this load."
    rate_rps = mean_rate_rps(found.question.scenario)
    beyond = load >= max_load_factor(found.question)
    holds = "This holds" if found.verdict == "keep" else f"It keeps {goal} of every model"
    if beyond or load >= 1.05:
        least = "at least " if beyond else ""
        rates = f"{rate(load * rate_rps)} requests/s in place of {rate(rate_rps)}"
        return f"{holds} up to {least}{load:.1f} times the load ({rates})."
    return f"{holds} at this load ({rate(rate_rps)} requests/s) and no more than 5 % above it."


def _losers(found: Recommendation) -> str:
    """The models that the recommended candidate serves worse than what serves now."""
    baseline, best = found.chosen.baseline, found.recommended.result
    if found.verdict == "keep" or baseline is None:
        return ""
    worse = [
        f"{name} ({share(best.models[name].mean)}, now {share(now.mean)})"
        for name, now in baseline.result.models.items()
        if name in best.models and best.models[name].mean < now.mean - MIN_ATTAINMENT_GAIN
    ]
    return f"It is worse than now for {listed(worse)}." if worse else ""


def _others(found: Recommendation) -> Iterator[str]:
    """Return the rows of other contenders: the current policy, Triton unmodified and tuned, the best policy."""
    chosen, best = found.chosen, found.recommended
    if chosen.unmodified is None:
        yield "Triton by itself cannot run this, so there is nothing to compare with."
    at_best = found.verdict == "keep" and is_perfect(best.result)
    for _, each in chosen.contenders():
        if each.candidate == best.candidate or (at_best and each not in (chosen.current, chosen.unmodified)):
            continue
        text = f"{_capitalized(_name(found, each))} answers {_keeps(each.result, found.question.goal)}"
        if each.candidate == chosen.triton and chosen.is_triton_tuned:
            text += " (tuned as well as it can be)"
        yield text + (f", {_gain(each.result, best.result)}." if found.verdict == "keep" else ".")


def _gain(ours: HeldOutResult, theirs: HeldOutResult) -> str:
    """How a result that is not recommended stands to the one that is."""
    gain = gain_of(ours, theirs)
    low, high = 100 * gain.low, 100 * gain.high
    if gain.high < 0:
        return f"which is worse by {-high:.1f} to {-low:.1f} percentage points"
    if gain.low > 0:
        return f"which may be better ({low:+.1f} to {high:+.1f} percentage points)"
    return f"which is not shown to be better ({low:+.1f} to {high:+.1f} percentage points)"


def _too_few(found: Recommendation) -> str:
    judged = found.chosen.ours.models
    rare = [model.name for model in found.question.scenario.models if model.weight and model.name not in judged]
    if not rare:
        return ""
    remedy = "record for longer" if found.question.recording is not None else "--requests has more in each run"
    return f"{listed(rare)} had fewer than {MIN_REQUESTS} requests in a run, too few to be judged alone: {remedy}."


def _saved(found: Recommendation) -> str:
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
    name = chosen.candidate.title
    for_all = f"Keeping {goal} of every model"
    if theirs is None:
        if ours is None:
            return f"{for_all} takes more than {chosen.site.words(chosen.count)} with any that was tried."
        most = "any number that was tried" if found.question.buy else chosen.site.words(chosen.count)
        return f"{for_all} takes {needs(ours)} with {name}; Triton cannot with {most}."
    if ours is None:
        return f"{for_all} takes {needs(theirs)} with Triton; {name} needs more than there is."
    if ours != theirs:
        saved = f": {much(ours, theirs)}" if ours < theirs else ""
        return f"{for_all} takes {needs(ours)} with {name}; Triton needs {needs(theirs)}{saved}."
    return f"{for_all} takes {needs(ours)}." if ours != chosen.count or found.question.buy else ""


def _offers(found: Recommendation) -> str:
    others = [each for each in found.assessed if each is not found.chosen]
    if not others:
        return ""
    return "Other offers: " + "; ".join(_offer(each) for each in others) + "."


def _offer(its: Assessment) -> str:
    if its.least is None:
        return f"{its.site.words(1)} not enough of them"
    return f"{its.site.words(its.least)} for {its.site.cost(its.least):g}"


def _changes(found: Recommendation) -> str:
    effects = [(change.name, _change(change, found)) for change in found.chosen.changes]
    parts = [f"with {name}, {effect}" for name, effect in effects if effect]
    same = [name for name, effect in effects if not effect]
    if parts:
        return f"What would change it: {'; '.join(parts)}."
    return f"{_capitalized(listed(same))} would not change it." if same else ""


def _change(change: ChangedAssessment, found: Recommendation) -> str:
    """Return the effect of a change on the recommendation as text; empty if there is none."""
    chosen, goal = found.chosen, found.question.goal
    of_each = {"run": change.ours, "triton": change.triton, "keep": change.baseline}
    mine = of_each.pop(found.verdict)
    if mine is None:
        return "it cannot run"
    names = {"run": chosen.candidate.title, "triton": "tuned Triton" if chosen.is_triton_tuned else "Triton"}
    others = [(each, names[verdict]) for verdict, each in of_each.items() if each is not None and verdict in names]
    other, name = max(others, key=lambda pair: pair[0].attainment.mean, default=(None, ""))
    kept = found.recommended.result.keeps(goal)
    is_other_better = other is not None and other.attainment.mean > mine.attainment.mean + MIN_ATTAINMENT_GAIN
    if not is_other_better and mine.keeps(goal) == kept:
        return ""
    text = share(mine.attainment.mean)
    if len(mine.models) > 1:
        text += f", {share(mine.worst_mean)} of the worst model"
    if kept and not mine.keeps(goal):
        text += f", below {limit(goal)}"
    if other is not None and is_other_better:
        text += f" ({name} {share(other.attainment.mean)}: the answer would change)"
    return text
