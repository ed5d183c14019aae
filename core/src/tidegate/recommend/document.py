"""The recommendation as a JSON document."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tidegate.recommend.assess import Assessment
from tidegate.recommend.candidates import Candidate
from tidegate.recommend.held_out import HeldOutResult, MeasuredCandidate
from tidegate.recommend.recommendation import Recommendation
from tidegate.recommend.successive_halving import HalvingResult
from tidegate.recommend.triton_tuning import sections_of

DOCUMENT_VERSION = 1
"""Version of the JSON document, increased when a field changes its meaning or is removed."""
Document = dict[str, Any]


def recommend_document(found: Recommendation, sentences: Sequence[str]) -> Document:
    """Return the recommendation as a JSON document; `sentences`: its sentences from `verdicts`."""
    return {
        "version": DOCUMENT_VERSION,
        "command": "recommend",
        "question": found.question.asked(),
        "verdict": found.verdict,
        "words": list(sentences),
        "run": _candidate(found.candidate),
        "max_load": found.max_load,
        "hardware": found.chosen.site.words(found.count),
        "cost": found.chosen.site.cost(found.count),
        "assessed": [_assessment(each) for each in found.assessed],
        "chosen": found.assessed.index(found.chosen),
        "unfit": [asdict(each) for each in found.unfit],
        "runs": found.runs,
        "scenario": found.scenario.model_dump(mode="json", exclude_defaults=True),
    }


def _assessment(its: Assessment) -> Document:
    return {
        "hardware": its.site.words(its.count),
        "cost": its.site.cost(its.count),
        "candidate": {**_candidate(its.candidate), **_measured(its.ours)},
        "current": None if its.current is None else _judged(its.current),
        "triton_unmodified": None if its.unmodified is None else _judged(its.unmodified),
        "triton": None if its.triton is None else _triton(its, its.triton),
        "gain": None if its.gain is None else asdict(its.gain),
        "least": None if its.least is None else its.site.words(its.least),
        "least_cost": None if its.least is None else its.site.cost(its.least),
        "tritons_least": None if its.tritons_least is None else its.site.words(its.tritons_least),
        "tritons_least_cost": None if its.tritons_least is None else its.site.cost(its.tritons_least),
        "changes": [
            {
                "change": each.name,
                "candidate": _measured(each.ours),
                "triton": _measured(each.triton),
                "baseline": _measured(each.baseline),
            }
            for each in its.changes
        ],
        "race": _race(its.race),
        "tritons_race": _race(its.tritons_race),
    }


def _candidate(candidate: Candidate) -> Document:
    choice = candidate.choice
    return {"policy": choice.name, "options": choice.options, "planner": candidate.planner or None}


def _judged(its: MeasuredCandidate) -> Document:
    return {**_candidate(its.candidate), **_measured(its.result)}


def _triton(its: Assessment, tuned: Candidate) -> Document:
    batching = sections_of(its.site.question.scenario, tuned.choice)
    return {**_candidate(tuned), "dynamic_batching": batching, **_measured(its.tritons)}


def _measured(its: HeldOutResult | None) -> Document:
    if its is None:
        return {}
    return {
        "attainment": asdict(its.attainment),
        "models": {name: asdict(each) for name, each in its.models.items()},
        "p99_ms": its.p99_ms,
        "busy_share": its.busy_share,
    }


def _race(its: HalvingResult[Candidate]) -> Document:
    return {
        "load": its.load,
        "standings": [{**_candidate(each.entrant), "score": each.score, "runs": each.runs} for each in its.standings],
    }
