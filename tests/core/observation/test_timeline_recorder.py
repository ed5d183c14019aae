"""What happened to a request, and why: told as it was."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.core.engine.script import SETUP, Script, arrived, engine_of, finished, two_stages
from tests.core.engine.script import run as batch
from tests.core.engine.worlds import Ledger, with_other_plans, world
from tests.examples import examples
from tidegate.api import (
    BatchFailed,
    Drop,
    PolicySpec,
    RequestArrived,
    RequestCancelled,
    SetTimer,
    Worker,
    WorkerLost,
)
from tidegate.engine import ClockAdvanced, Engine
from tidegate.host import Plugins, make_policy
from tidegate.observation import RequestTimeline, TimelineRecorder

PLUGINS = Plugins.installed()


def engine(*answers: object) -> Engine:
    policy = Script(*answers)  # type: ignore[arg-type]
    return Engine(policy, name="script", strict=True, learn=False, timelines=TimelineRecorder())


def steps(engine: Engine, request_id: int = 0) -> list[tuple[int, str]]:
    timeline = engine.timeline(request_id)
    assert timeline is not None
    return [(step.at_ns, step.what) for step in timeline.steps]


def texts(engine: Engine, request_id: int = 0) -> dict[str, str]:
    timeline = engine.timeline(request_id)
    assert timeline is not None
    return {step.what: step.text for step in timeline.steps}


@pytest.mark.parametrize(
    ("due_ns", "said"),
    [
        (300_000_000, "due at 300.000 ms;"),
        (296_000_000, "due at 296.000 ms (the SLO is 300.000 ms, 4.000 ms are left for the response);"),
        (100_000_000, "due at 100.000 ms;"),  # the client's own
    ],
)
def test_a_deadline_before_the_slo_names_the_response_margin(due_ns: int, said: str) -> None:
    (model, *_) = SETUP.models
    setup = replace(SETUP, models=(replace(model, slo_ns=300_000_000),))
    told = Engine(Script(setup=setup), name="script", strict=True, learn=False, timelines=TimelineRecorder())
    told.handle(arrived(0, due_ns=due_ns))
    assert said in texts(told)["arrived"]


def test_a_request_that_waits_for_a_timer() -> None:
    told = engine([SetTimer(("m", "", ""), 5_000_000)], [], [batch(0, 1, at_ns=5_000_000)])
    told.handle(arrived(0, due_ns=5_000_025))
    told.handle(arrived(1, 1_000_000))
    told.handle(ClockAdvanced(5_000_000))
    told.handle(finished(5_000_030, started_ns=5_000_000))
    assert steps(told) == [
        (0, "arrived"),
        (0, "waits"),
        (5_000_000, "joined"),
        (5_000_000, "sent"),
        (5_000_030, "ran"),
        (5_000_030, "answered"),
    ]
    said = texts(told)
    assert said["arrived"] == "1 row for 'm', due at 5.000 ms; 0 of its model wait, 3 of 3 workers are idle"
    assert "batch to grow, until 5.000 ms at the latest (the timer of its queue)" in said["waits"]
    why = "the timer of its queue fired, set at 0.000 ms for 5.000 ms"
    assert said["joined"] == f"joined batch 0 with 1 other, 2 rows: {why}"
    assert "0.000 ms late" in said["answered"]
    assert said["sent"].startswith("sent to worker w0, planned to end at ")
    timeline = told.timeline(0)
    assert timeline is not None
    assert timeline.outcome == "late"
    # The other tells it from its own arrival on.
    assert texts(told, 1)["joined"].endswith("the timer of its queue fired, set at -1.000 ms for 4.000 ms")


def test_a_request_that_starts_with_another() -> None:
    told = engine([], [batch(0, 1)])
    told.handle(arrived(0))
    told.handle(arrived(1))
    assert texts(told)["waits"] == "waits, as the policy has it; 3 of 3 workers are idle"
    assert texts(told)["joined"].endswith(": request 1 arrived")
    assert texts(told, 1)["joined"].endswith(": it had just arrived")
    assert "waits" not in texts(told, 1)


def test_a_batch_that_is_planned_for_later_is_joined_when_the_policy_forms_it() -> None:
    told = engine([], [batch(0, 1, at_ns=5_000_000)])
    told.handle(arrived(0, due_ns=9_000_000))
    told.handle(arrived(1, 1_000_000))
    told.handle(ClockAdvanced(5_000_000))
    assert steps(told) == [(0, "arrived"), (0, "waits"), (1_000_000, "joined"), (5_000_000, "sent")]
    assert texts(told)["joined"] == "joined batch 0 with 1 other, 2 rows, to start at 5.000 ms: request 1 arrived"
    assert texts(told, 1)["joined"].endswith("to start at 4.000 ms: it had just arrived")


def test_a_batch_whose_worker_is_lost_before_it_starts() -> None:
    told = engine([batch(0, at_ns=5_000_000)])
    told.handle(arrived(0, due_ns=9_000_000))
    told.handle(WorkerLost(3, 0))
    assert [what for _, what in steps(told)] == ["arrived", "joined", "again", "waits"]
    assert texts(told)["again"] == "is tried again: worker w0 was lost"


def test_where_no_worker_is_idle_that_is_what_a_request_waits_for() -> None:
    """A timer is set besides: to drop the request, or to look at it once more."""
    busy = [[batch(number, batch=number, worker=number)] for number in range(3)]
    told = engine(*busy, [SetTimer(("m", "", ""), 5_000_000)])
    for number in range(4):
        told.handle(arrived(number, due_ns=9_000_000))
    says = "waits for a worker: none of 3 is idle; its policy looks again at 5.000 ms (the timer of its queue)"
    assert texts(told, 3)["waits"] == says


def test_a_timer_that_is_not_of_its_queue_is_named() -> None:
    for key, name in (("tick", "timer tick"), (("n", "x:7", ""), "timer n/x:7")):
        told = engine([SetTimer(key, 5)], [batch(0, at_ns=5)])
        told.handle(arrived(0))
        told.handle(ClockAdvanced(5))
        assert texts(told)["joined"].startswith(f"joined batch 0 alone: {name} fired, set at ")


def test_a_request_that_is_dropped_says_for_what() -> None:
    told = engine([], [Drop(0, "deadline_unreachable")])
    told.handle(arrived(0))
    told.handle(arrived(1, 7))
    assert steps(told)[-1] == (7, "dropped")
    assert texts(told)["dropped"] == "dropped (deadline_unreachable): request 1 arrived"


def test_a_batch_that_fails_and_is_tried_again() -> None:
    told = engine([batch(0)], [], [batch(0, batch=1, worker=1, at_ns=4)])
    told.handle(arrived(0))
    told.handle(BatchFailed(4, 0, 0, 0, "broken", retry=True))
    assert [what for _, what in steps(told)] == [
        *("arrived", "joined", "sent", "ran", "batch failed", "again", "joined", "sent"),
    ]
    assert texts(told)["batch failed"] == "batch 0 failed: broken"


def test_a_worker_that_is_lost_between_two_stages() -> None:
    told = engine([two_stages(0)])
    told.handle(arrived(0))
    assert texts(told)["sent"].startswith("sent to worker w0, stage 1 of 2 (m), planned to end at")
    told.handle(WorkerLost(3, 0))
    assert "worker w0 was lost" in texts(told)["worker lost"]


def test_a_client_that_leaves() -> None:
    told = engine([])
    told.handle(arrived(0))
    told.handle(RequestCancelled(3, 0))
    assert steps(told)[-1] == (3, "cancelled")


def test_a_request_that_waits_for_its_turn() -> None:
    """The crowd has all of the batch of a worker that is busy; the neighbor comes later."""
    setup = Script().setup
    setup = replace(setup, workers=(Worker(0, "w0", ("m", "n")),))
    policy = make_policy(PLUGINS.policy("fifs"), setup, {})
    told = Engine(policy, name="fifs", strict=True, learn=False, timelines=TimelineRecorder())
    for number in range(30):
        event = arrived(number)
        told.handle(RequestArrived(0, replace(event.request, client="crowd")))
    told.handle(RequestArrived(1, replace(arrived(30).request, client="neighbor")))
    held = [number for number in range(31) if "held" in texts(told, number)]
    assert held, "somebody is held back"
    first = held[0]
    assert "others" in texts(told, first)["held"]
    told.handle(finished(10, started_ns=0))
    shown = [number for number in held if "its turn" in texts(told, number)]
    assert shown
    assert texts(told, shown[0])["its turn"] == "its turn has come: batch 0 ended on worker w0"


def test_an_engine_without_timelines_says_so() -> None:
    with pytest.raises(ValueError, match="make it with Engine"):
        engine_of(Script()).timeline(0)


def test_only_the_latest_are_kept() -> None:
    told = Engine(Script(), name="script", strict=True, timelines=TimelineRecorder(most=3))
    for number in range(5):
        told.handle(arrived(number))
    assert [number for number in range(5) if told.timeline(number)] == [2, 3, 4]


@pytest.mark.parametrize("spec", PLUGINS.policies.values(), ids=lambda spec: spec.name)
@given(rng=st.randoms(use_true_random=False))
@settings(max_examples=examples(0.034))
def test_every_request_has_a_timeline_that_ends_as_it_did(spec: PolicySpec, rng: random.Random) -> None:
    scenario = with_other_plans(rng, world(spec, rng))
    timelines = TimelineRecorder()
    made = make_policy(spec, scenario.setup, {})
    told = Engine(made, name=spec.name, strict=True, first_lead_ns=scenario.first_lead_ns, timelines=timelines)
    driver = Ledger(told, scenario)
    ends = Counter(
        {"on time": "answered", "late": "answered"}.get(timeline.outcome, timeline.outcome) for timeline in timelines
    )
    assert ends == driver.ended
    for timeline in timelines:
        check(timeline)


def check(timeline: RequestTimeline) -> None:
    whats = [step.what for step in timeline.steps]
    assert whats[0] == "arrived"
    assert whats.count("arrived") == 1
    assert whats[-1] in {"answered", "dropped", "failed", "cancelled"}
    instants = [step.at_ns for step in timeline.steps]
    assert instants == sorted(instants)
    if timeline.outcome in ("on time", "late"):
        assert whats.index("joined") < whats.index("sent") < whats.index("ran")
