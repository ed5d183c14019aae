"""Recommendations for measured candidates, and their sentences."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidegate.recommend.assess import Assessment, ChangedAssessment
from tidegate.recommend.candidates import Candidate
from tidegate.recommend.held_out import HeldOutResult, MeasuredCandidate, gain_of
from tidegate.recommend.recommendation import Recommendation, verdict_on
from tidegate.recommend.successive_halving import HalvingResult
from tidegate.recommend.verdicts import verdicts
from tidegate.sim.interval import interval_of
from tidegate.workload import PolicyChoice, Scenario

SCENARIO = Scenario.model_validate(
    {
        "duration_s": 1,
        "workers": [{"count": 1}],
        "models": [
            {"name": name, "slo_ms": 50, "profile": {"alpha_ms": 1, "beta_ms": 1, "max_batch": 8}}
            for name in ("a", "b")
        ],
        "arrivals": {"process": "poisson", "rate_rps": 200},
    }
)
NOISE = (-0.002, 0.0, 0.002, 0.001, -0.001, 0.0)


def result(a: float, b: float) -> HeldOutResult:
    """The attainment of both models, with the same luck as others on each seed."""
    models = {
        name: interval_of([min(1.0, mean + noise * (mean < 1)) for noise in NOISE])
        for name, mean in (("a", a), ("b", b))
    }
    scores = tuple(min(1.0, ((a + b) / 2 + min(a, b)) / 2 + noise * (a + b < 2)) for noise in NOISE)
    worst = interval_of([min(1.0, min(a, b) + noise) for noise in NOISE])
    overall = interval_of([min(1.0, (a + b) / 2 + noise * (a + b < 2)) for noise in NOISE])
    return HeldOutResult(overall, worst, models, None, 0.5, scores)


def candidate(name: str, **options: Any) -> Candidate:
    return Candidate(PolicyChoice(name=name, options=options))


EIGHT_SECONDS = SimpleNamespace(attainment=0.9, is_short=True, length_ns=8_000_000_000)


def assessment(
    *,
    best: tuple[float, float],
    unmodified: tuple[float, float],
    tuned: tuple[float, float] | None = None,
    current: tuple[float, float] | None = None,
    changes: tuple[ChangedAssessment, ...] = (),
    recording: SimpleNamespace | None = None,
) -> Assessment:
    as_it_is = MeasuredCandidate(candidate("triton"), result(*unmodified))
    triton = as_it_is
    if tuned is not None:
        triton = MeasuredCandidate(candidate("triton", max_queue_delay_ms=5.0), result(*tuned))
    site = SimpleNamespace(
        divisible=False,
        bundle=None,
        words=lambda _: "1 worker",
        question=SimpleNamespace(buy=False, recording=recording),
    )
    race: HalvingResult[Candidate] = HalvingResult(1.0, [], [])
    ours = result(*best)
    return Assessment(
        site=cast("Any", site),
        count=1,
        candidate=candidate("symphony"),
        ours=ours,
        current=None if current is None else MeasuredCandidate(candidate("fifs"), result(*current)),
        unmodified=as_it_is,
        triton=triton.candidate,
        tritons=triton.result,
        gain=gain_of(ours, triton.result),
        least=None,
        tritons_least=None,
        changes=changes,
        race=race,
        tritons_race=race,
        unfit=(),
    )


def said_of(its: Assessment, max_load: float | None = None, recorded: float | None = None) -> list[str]:
    """`recorded`: attainment of the recording; None: a scenario is asked about."""
    recording: Any = its.site.question.recording
    if recorded is not None:
        recording = SimpleNamespace(attainment=recorded, is_short=False)
    question = SimpleNamespace(scenario=SCENARIO, recording=recording, bundles=(), goal=0.99, buy=False)
    found = Recommendation(cast("Any", question), verdict_on(its), its, (its,), (), 1, max_load)
    return verdicts(found)


@pytest.mark.parametrize(
    ("its", "verdict"),
    [
        (assessment(best=(1, 1), unmodified=(1, 1)), "keep"),
        (assessment(best=(1, 1), unmodified=(0.5, 0.5), current=(1, 1)), "keep"),
        (assessment(best=(0.95, 0.95), unmodified=(0.9, 0.9)), "run"),
        (assessment(best=(0.95, 0.95), unmodified=(0.9, 0.9), current=(0.95, 0.95)), "keep"),
        (assessment(best=(0.95, 0.95), unmodified=(0.9, 0.9), tuned=(0.95, 0.95)), "triton"),
        (assessment(best=(0.97, 0.97), unmodified=(0.9, 0.9), tuned=(0.95, 0.95)), "run"),
        (assessment(best=(0.8, 0.8), unmodified=(0.9, 0.9), tuned=(0.9, 0.9)), "keep"),
        (assessment(best=(0.8, 0.8), unmodified=(0.9, 0.9), current=(0.8, 0.8)), "triton"),
        (assessment(best=(0.95, 0.95), unmodified=(0.9, 0.9), recording=EIGHT_SECONDS), "keep"),
    ],
)
def test_a_change_must_be_shown_to_be_better_than_what_serves_now(its: Assessment, verdict: str) -> None:
    assert verdict_on(its) == verdict


def test_the_current_policy_and_unmodified_triton_are_always_in_the_answer() -> None:
    for its in (
        assessment(best=(1, 1), unmodified=(1, 1), tuned=(1, 1), current=(1, 1)),
        assessment(best=(0.97, 0.97), unmodified=(0.9, 0.9), tuned=(0.95, 0.95), current=(0.8, 0.8)),
    ):
        assert [label for label, _ in its.contenders()] == [
            "symphony", "fifs (current)", "Triton, unmodified", "Triton, tuned",
        ]  # fmt: skip
        said = " ".join(said_of(its))
        assert "the current policy, fifs," in said.lower()
        assert "Triton's own batcher, unmodified," in said


def test_where_nothing_is_missed_nothing_is_advised() -> None:
    said = said_of(assessment(best=(1, 1), unmodified=(1, 1), tuned=(1, 1)), max_load=2.24)
    assert said == [
        "Change nothing: Triton's own batcher, unmodified, on 1 worker answers 100.0 % of the requests on time.",
        "This holds up to 2.2 times the load (448 requests/s in place of 200).",
    ]


@pytest.mark.parametrize(("recorded", "is_warned"), [(0.959, True), (0.975, False), (1.0, False)])
def test_a_simulation_far_from_the_recording_is_not_to_be_relied_on(recorded: float, is_warned: bool) -> None:
    said = said_of(assessment(best=(1, 1), unmodified=(1, 1), current=(1, 1)), max_load=2.0, recorded=recorded)
    warning = "Do not rely on this: 95.9 % of the recorded requests were on time, but 100.0 % in the simulation of the "
    assert said[1].startswith(warning) is is_warned


def test_the_headline_names_the_models_that_it_does_not_hold_for() -> None:
    its = assessment(best=(0.999, 0.92), unmodified=(0.8, 0.95))
    headline, *others = said_of(its)
    assert headline.startswith("Run policy symphony on 1 worker: it answers 95.9")
    assert "below 99 %: b (92.0 %)" in headline
    assert "It is worse than now for b (92.0 %, now 95.0 %)." in others
    (headline, *_) = said_of(assessment(best=(0.999, 0.992), unmodified=(0.8, 0.95)), max_load=1.0)
    assert headline.endswith("of the requests on time, and at least 99.2 % of every model.")


def test_a_short_recording_gives_no_advice_and_says_so() -> None:
    said = said_of(assessment(best=(0.95, 0.95), unmodified=(0.9, 0.9), recording=EIGHT_SECONDS))
    assert said[0].startswith(
        "Change nothing: the recording is 8 s long, too short to advise a change (record 30 s or more under load). "
    )
    assert any("Policy symphony answers" in each and "which may be better" in each for each in said)


def test_what_is_not_better_is_named_with_its_gain() -> None:
    said = said_of(assessment(best=(0.95, 0.95), unmodified=(0.95, 0.95), tuned=(0.95, 0.95)))
    assert said[0].startswith("Change nothing: nothing that was tried is shown to be better. Triton's own batcher")
    assert any("Policy symphony answers" in each and "is not shown to be better" in each for each in said)


def test_changes_that_change_nothing_are_named_together() -> None:
    good, bad = result(1, 1), result(0.9, 0.9)
    changes = (
        ChangedAssessment("10 % more load", good, good, good),
        ChangedAssessment("SLOs 10 % shorter", good, bad, bad),
    )
    said = said_of(assessment(best=(1, 1), unmodified=(1, 1), changes=changes))
    assert said[-1] == (
        "What would change it: with SLOs 10 % shorter, 90.0 %, 90.0 % of the worst model, below 99 % "
        "(symphony 100.0 %: the answer would change)."
    )
    said = said_of(assessment(best=(1, 1), unmodified=(1, 1), changes=changes[:1]))
    assert said[-1] == "10 % more load would not change it."
