"""Why a request was late, dropped or on time: the timeline that is told of it."""

import pytest

from tests.core.engine.script import arrived, failed, finished, run
from tests.proxy.app.dashboard.event_buffers import MS, SETUP, moments_of
from tidegate.api import Commands, Drop, RequestCancelled, SetTimer
from tidegate.engine import AnyStimulus, ClockAdvanced
from tidegate_proxy.app.dashboard.latency_explanation import LatencyExplanation
from tidegate_proxy.app.dashboard.timeline_builder import build_timeline_steps


def told(request_id: int, stimuli: list[AnyStimulus], *answers: Commands) -> LatencyExplanation:
    steps = build_timeline_steps(
        request_id, moments_of(stimuli, *answers), SETUP.models, SETUP.workers, lambda ns: ns / MS
    )
    timeline = list(steps)[-1]
    assert timeline is not None
    return timeline


def parts(timeline: LatencyExplanation) -> dict[str, float]:
    return {part.what: part.ms for part in timeline.parts}


def test_on_time_with_another() -> None:
    timeline = told(
        0,
        [arrived(0, 0, due_ns=60 * MS), arrived(1, 5 * MS), finished(25 * MS, started_ns=5 * MS)],
        [],
        [run(0, 1, at_ns=5 * MS, last_ns=20 * MS)],
    )
    assert timeline.verdict == (
        "In time, with 35.0 ms to spare. It waited 5.0 ms until its batch was formed with 1 other."
    )
    assert parts(timeline) == {"batch": 5.0, "ran": 20.0}
    assert (timeline.batch, timeline.batch_rows, [each.id for each in timeline.companions]) == (0, 2, [1])
    assert timeline.companions[0].waited_ms == 0
    assert (timeline.wrong, timeline.latency_ms, timeline.due_ms) == ("", 25.0, 60.0)
    assert [step.what for step in timeline.steps] == ["arrived", "waits", "joined", "sent", "ran", "answered"]


def test_late_as_its_batch_ran_longer_than_planned() -> None:
    timeline = told(0, [arrived(0, 0, due_ns=30 * MS), finished(45 * MS)], [run(0, last_ns=10 * MS)])
    assert timeline.verdict == (
        "Late by 15.0 ms. When its batch was formed, after 0.00 ms, it was expected to end 20.0 ms early: it ran "
        "35.0 ms longer than planned."
    )
    assert timeline.wrong == "m with 1 row on w0 (its batch): planned 10.0 ms, took 45.0 ms, 350% more"
    assert parts(timeline) == {"ran": 10.0, "longer": 35.0}


def test_late_as_the_batch_before_it_ran_longer() -> None:
    timeline = told(
        1,
        [
            arrived(0, 0),
            arrived(1, 2 * MS, due_ns=40 * MS),
            finished(40 * MS, 0),
            finished(50 * MS, 1, started_ns=40 * MS),
        ],
        [run(0, batch=0, last_ns=10 * MS)],
        [run(1, batch=1, at_ns=10 * MS, last_ns=10 * MS)],
    )
    assert timeline.outcome == "late"
    assert "it began 30.0 ms later than planned, as batch 0 before it on w0 ran 30.0 ms longer than planned" in (
        timeline.verdict
    )
    assert timeline.wrong == "m with 1 row on w0 (batch 0 before it): planned 10.0 ms, took 40.0 ms, 300% more"
    assert parts(timeline) == {"worker": 38.0, "ran": 10.0}
    assert timeline.meanwhile == [("m", 1, 40.0)]


def test_late_already_when_its_batch_was_formed() -> None:
    timeline = told(
        1,
        [arrived(0, 0, model="n"), arrived(1, 1 * MS, due_ns=15 * MS), finished(10 * MS, 0), finished(20 * MS, 1)],
        [run(0, batch=0, last_ns=10 * MS, model="n")],
        [],
        [run(1, batch=1, at_ns=10 * MS, last_ns=10 * MS)],
    )
    assert timeline.verdict == (
        "Late by 5.0 ms. It could not be on time any more when its batch was formed, 9.0 ms after its arrival: the "
        "batch was expected to end 5.0 ms too late. While it waited its workers ran 1 batch of other models."
    )


def test_dropped() -> None:
    timeline = told(
        1,
        [arrived(0, 0), arrived(1, 1 * MS, due_ns=15 * MS), finished(10 * MS, 0)],
        [run(0, batch=0, last_ns=10 * MS)],
        [],
        [Drop(1, "deadline_unreachable")],
    )
    assert timeline.outcome == "dropped"
    assert timeline.verdict == (
        "Given up after 9.0 ms (deadline_unreachable): 5.0 ms were left until its deadline, in which it could not "
        "be answered. While it waited its workers ran 1 batch."
    )
    assert parts(timeline) == {"batch": 9.0}


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (failed(5 * MS), "It failed after 5.0 ms: out of memory."),
        (RequestCancelled(5 * MS, 0), "Its client left after 5.0 ms."),
        (ClockAdvanced(5 * MS), "It has not ended: its batch was formed after 0.00 ms, and has not been answered."),
    ],
)
def test_other_ends(last: AnyStimulus, said: str) -> None:
    assert told(0, [arrived(0, 0), last, arrived(1, 6 * MS)], [run(0, last_ns=10 * MS)]).verdict.startswith(said[:30])


def test_one_that_was_tried_again_is_told_of_its_last_batch() -> None:
    timeline = told(
        0,
        [arrived(0, 0), failed(4 * MS, retry=True), finished(20 * MS, 1, worker=1, started_ns=4 * MS)],
        [run(0, last_ns=10 * MS)],
        [],
        [run(0, batch=1, worker=1, at_ns=4 * MS, last_ns=16 * MS)],
    )
    assert (timeline.batch, [stage.worker for stage in timeline.stages]) == (1, ["w1"])
    assert parts(timeline) == {"batch": 4.0, "ran": 16.0}


def test_nothing_is_told_of_what_is_not_known() -> None:
    steps = build_timeline_steps(7, moments_of([arrived(0, 0)]), SETUP.models, SETUP.workers, float)
    assert list(steps)[-1] is None


def test_a_stream_that_is_met_in_its_middle() -> None:
    """Batches of requests that came before are no fault, and their workers are known once they are free."""
    moments = moments_of(
        [arrived(0, 0), arrived(1, 4000 * MS), finished(4001 * MS, started_ns=4000 * MS)],
        [],
        [run(0, 1, at_ns=4000 * MS, last_ns=20 * MS)],
    )
    timeline = list(build_timeline_steps(1, moments, SETUP.models, SETUP.workers, float))[-1]
    assert timeline is not None
    assert (timeline.outcome, timeline.companions) == ("on time", [])


def test_one_that_tidegate_overslept() -> None:
    timeline = told(
        0,
        [arrived(0, 0, due_ns=30 * MS), ClockAdvanced(200 * MS)],
        [SetTimer("t", 5 * MS)],
        [Drop(0, "deadline_unreachable")],
    )
    assert timeline.verdict == (
        "Given up after 200.0 ms (deadline_unreachable): its deadline had passed. Meanwhile Tidegate woke up "
        "195.0 ms late: its machine was busy, or stood still."
    )
