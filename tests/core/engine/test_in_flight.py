"""Batches on their way: stages, failures, lost workers, new routes."""

import pytest

from tests.core.engine.script import (
    M_PIPELINES,
    MODELS,
    PROFILES,
    WORKERS,
    Script,
    arrived,
    engine_of,
    failed,
    finished,
    run,
    start,
    two_stages,
)
from tidegate.api import (
    AnyEvent,
    Batch,
    BatchFailed,
    Dispatch,
    Drop,
    Model,
    Pipeline,
    Profile,
    RequestArrived,
    RequestCancelled,
    Reroute,
    Setup,
    Stage,
    StageFinished,
    Worker,
    WorkerJoined,
    WorkerLost,
)
from tidegate.engine import MAX_TRIES, NO_WORKER, ClockAdvanced, Fail, InvariantViolation, StartStage
from tidegate.engine.state_tables import InFlightBatch, Reservations

# Stages
# -----------------------------------------------------------------------------------------------------------------


def test_a_planned_start_in_the_future_is_held() -> None:
    batch = run(0, at_ns=20)
    engine = engine_of(Script([batch]))
    assert engine.handle(arrived(0)) == []
    assert (engine.next_wake_ns, engine.queued, engine.in_flight) == (20, 0, 1)
    assert engine.handle(ClockAdvanced(19)) == []
    assert engine.handle(ClockAdvanced(20)) == [start(batch)]
    assert engine.next_wake_ns is None


def test_a_stage_waits_for_a_straggler_before_it_and_starts_when_that_is_over() -> None:
    slow, waiting = run(0), run(1, batch=1, at_ns=12)
    engine = engine_of(Script([slow], [waiting]))
    engine.handle(arrived(0))
    assert engine.handle(arrived(1, 1)) == []
    assert engine.handle(ClockAdvanced(12)) == []
    assert engine.handle(finished(33)) == [start(waiting)]


def test_bookings_run_in_the_order_of_their_planned_starts() -> None:
    later, sooner = run(0, at_ns=50), run(1, batch=1, at_ns=30)
    engine = engine_of(Script([later], [sooner]))
    engine.handle(arrived(0))
    engine.handle(arrived(1))
    assert engine.next_wake_ns == 30
    assert engine.handle(ClockAdvanced(30)) == [start(sooner)]
    assert engine.handle(ClockAdvanced(50)) == []
    assert engine.handle(finished(55, 1, started_ns=30)) == [start(later)]


def test_two_stages_run_one_after_the_other() -> None:
    batch = two_stages(0, 1)
    policy = Script((), [batch])
    engine = engine_of(policy)
    engine.handle(arrived(0))
    assert engine.handle(arrived(1)) == [start(batch, rows=2)]
    assert engine.handle(finished(15)) == [], "the second stage keeps its planned start"
    assert engine.next_wake_ns == 20
    assert engine.handle(ClockAdvanced(20)) == [start(batch, 1, rows=2)]
    assert engine.tally.answered == 0
    engine.handle(finished(40, stage=1, worker=1, started_ns=20))
    assert (engine.tally.answered, engine.in_flight) == (2, 0)
    assert [event for event in policy.received if isinstance(event, StageFinished)] == [
        finished(15),
        finished(40, stage=1, worker=1, started_ns=20),
    ]


def test_a_late_first_stage_delays_the_second_and_what_is_booked_behind_it() -> None:
    batch, behind = two_stages(0), run(1, batch=1, worker=1, at_ns=20)
    engine = engine_of(Script([batch], [behind]))
    engine.handle(arrived(0))
    engine.handle(arrived(1))
    assert engine.handle(ClockAdvanced(20)) == [], "worker 1 is booked for the second stage first"
    assert engine.handle(finished(25)) == [start(batch, 1)]
    assert engine.handle(finished(35, stage=1, worker=1, started_ns=25)) == [start(behind)]


def test_losing_the_worker_of_a_later_stage_fails_the_batch_once_its_present_stage_is_over() -> None:
    """Until then its present worker runs: whoever was given it would overlap (invariant 2)."""
    doomed, behind = two_stages(0), run(1, batch=1, at_ns=10)
    policy = Script([doomed], [behind])
    engine = engine_of(policy)
    engine.handle(arrived(0))
    engine.handle(arrived(1))
    assert engine.handle(WorkerLost(5, 1)) == []
    assert engine.handle(ClockAdvanced(10)) == []
    engine.handle(WorkerJoined(11, WORKERS[1]))  # back, but without the booking
    assert engine.handle(finished(12)) == [start(behind)]
    assert policy.received[-3:] == [
        finished(12),
        BatchFailed(12, 0, 1, 1, "worker w1 was lost", retry=True),
        RequestArrived(12, arrived(0).request),
    ]
    assert (engine.queued, engine.in_flight) == (1, 1)


def test_losing_the_worker_of_a_later_stage_fails_a_batch_that_does_not_run() -> None:
    waiting = two_stages(0, at_ns=20)
    policy = Script([waiting])
    engine = engine_of(policy)
    engine.handle(arrived(0))
    engine.handle(WorkerLost(5, 1))
    assert policy.received[-2:] == [
        BatchFailed(5, 0, 0, 1, "worker w1 was lost", retry=True),
        RequestArrived(5, arrived(0).request),
    ]
    assert engine.handle(ClockAdvanced(20)) == []


# Failures -------------------------------------------------------------------------------------------------------------


def test_a_failed_batch_answers_its_requests_with_the_failure() -> None:
    engine = engine_of(Script((), [run(0, 1)]))
    engine.handle(arrived(0))
    engine.handle(arrived(1))
    assert engine.handle(failed(10)) == [Fail(0, "out of memory"), Fail(1, "out of memory")]
    assert (engine.tally.failed, engine.in_flight) == (2, 0)


def test_a_request_whose_worker_failed_is_tried_again_but_not_for_ever() -> None:
    policy = Script([run(0)], (), [run(0, batch=1, worker=2, at_ns=10)])
    engine = engine_of(policy)
    engine.handle(arrived(0))
    assert engine.handle(failed(10, retry=True)) == [start(run(0, batch=1, worker=2, at_ns=10))]
    assert policy.received[1:] == [failed(10, retry=True), RequestArrived(10, arrived(0).request)]
    assert MAX_TRIES == 2
    assert engine.handle(failed(20, 1, worker=2, retry=True)) == [Fail(0, "out of memory")]
    assert engine.tally.accepted == engine.tally.failed == 1


def test_a_request_whose_time_is_over_is_not_tried_again() -> None:
    engine = engine_of(Script((), [run(0, 1)]))
    engine.handle(arrived(0, due_ns=20))
    engine.handle(arrived(1, due_ns=100))
    assert engine.handle(failed(20, retry=True)) == [Fail(0, "out of memory")]
    assert engine.queued == 1


def test_a_lost_worker_gives_back_what_ran_and_what_was_booked() -> None:
    runs, booked, elsewhere = run(0), run(1, batch=1, at_ns=10), run(2, batch=2, worker=2)
    policy = Script([runs], [booked], [elsewhere])
    engine = engine_of(policy)
    for request_id in range(3):
        engine.handle(arrived(request_id))
    engine.handle(WorkerLost(5, 0))
    told = policy.received[3:]
    assert [type(event) for event in told] == [WorkerLost, BatchFailed, RequestArrived, BatchFailed, RequestArrived]
    assert (engine.queued, engine.in_flight) == (2, 1)
    assert engine.handle(ClockAdvanced(10)) == [], "the booked start is forgotten"
    assert engine.handle(finished(12)) == [], "a straggler of the lost worker"
    assert engine.tally.answered == 0


def test_the_last_worker_takes_its_queue_along() -> None:
    policy = Script()
    engine = engine_of(policy)
    engine.handle(arrived(0, model="n"))
    engine.handle(arrived(1))
    assert engine.handle(WorkerLost(5, 0)) == [Fail(0, NO_WORKER)]
    assert policy.received[-2:] == [WorkerLost(5, 0), RequestCancelled(5, 0)]
    assert engine.handle(arrived(2, 6, model="n")) == [Fail(2, NO_WORKER)]
    engine.handle(WorkerJoined(7, WORKERS[0]))
    assert engine.handle(arrived(3, 8, model="n")) == []
    assert engine.queued == 2


def test_a_request_fails_that_is_too_wide_for_the_pipelines_that_workers_are_left_for() -> None:
    pipelines = (Pipeline(("wide",), max_rows=4), Pipeline(("narrow",), max_rows=1))
    workers = (Worker(0, "w0", ("wide",)), Worker(1, "w1", ("narrow",)))
    profiles = tuple(Profile(pipeline.partitions[0], "default", (10,) * pipeline.max_rows) for pipeline in pipelines)
    policy = Script(setup=Setup((Model("m", max_rows=4, pipelines=pipelines),), workers, profiles))
    engine = engine_of(policy)
    assert engine.handle(arrived(0, rows=2)) == engine.handle(arrived(1)) == []
    why = "2 rows; the workers that are left take 1 of 'm'"
    assert engine.handle(WorkerLost(5, 0)) == [Fail(0, why)]
    assert policy.received[-2:] == [WorkerLost(5, 0), RequestCancelled(5, 0)]
    assert engine.handle(arrived(2, 6, rows=2)) == [Fail(2, why)]
    assert engine.queued == 1


def test_a_policy_may_drop_the_rest_of_a_queue_that_goes_with_its_worker() -> None:
    engine = engine_of(Script((), (), (), [Drop(1, "gave up")]))
    engine.handle(arrived(0, model="n"))
    engine.handle(arrived(1, model="n"))
    assert engine.handle(WorkerLost(5, 0)) == [Fail(0, NO_WORKER), Drop(1, "gave up")]
    assert engine.tally.ended == 2


def test_losing_an_unknown_worker_is_no_news() -> None:
    policy = Script()
    assert engine_of(policy).handle(WorkerLost(0, 9)) == []
    assert policy.received == []


def test_a_worker_that_joins_again_was_lost_meanwhile() -> None:
    policy = Script([run(0)])
    engine = engine_of(policy)
    engine.handle(arrived(0))
    engine.handle(WorkerJoined(5, WORKERS[0]))
    assert [type(event) for event in policy.received[1:]] == [WorkerLost, BatchFailed, RequestArrived, WorkerJoined]
    assert (engine.queued, engine.in_flight) == (1, 0)


def test_a_worker_without_profiles_cannot_join() -> None:
    policy = Script()
    engine = engine_of(policy)
    with pytest.raises(ValueError, match="no profile of 'm' on workers of device class 'new'"):
        engine.handle(WorkerJoined(5, Worker(9, "w9", ("m",), device_class="new")))
    assert policy.received == []


@pytest.mark.parametrize(
    "straggler", [finished(10, 7), finished(10, stage=1), failed(10, 7), finished(10, 1, worker=2)], ids=str
)
def test_stragglers_are_ignored(straggler: AnyEvent) -> None:
    policy = Script([run(0)], [run(1, batch=1, worker=2, at_ns=30)])  # batch 1 has not started
    engine = engine_of(policy)
    engine.handle(arrived(0))
    engine.handle(arrived(1))
    assert engine.handle(straggler) == []
    assert len(policy.received) == 2
    assert engine.in_flight == 2


# New routes -----------------------------------------------------------------------------------------------------------

TAILS = Setup(
    MODELS,
    (Worker(0, "w0", ("m", "n")), Worker(1, "w1", ("m", "tail")), Worker(2, "w2", ("tail",))),
    PROFILES,
)
"""Two workers host the second partition."""


def tail(worker: int, at_ns: int, last_ns: int = 10) -> Stage:
    return Stage(worker, "tail", at_ns, last_ns)


def test_the_rest_of_a_path_may_begin_earlier_than_planned() -> None:
    policy = Script([two_stages(0)], [Reroute(0, (tail(1, 6),))], setup=TAILS)
    engine = engine_of(policy)
    engine.handle(arrived(0))
    (started,) = engine.handle(finished(6))
    assert isinstance(started, StartStage)
    assert started.batch.stages[1] == tail(1, 6)


def test_the_rest_of_a_path_may_go_elsewhere_and_leaves_its_worker_to_others() -> None:
    other = run(1, batch=1, worker=1, at_ns=11)
    policy = Script([two_stages(0)], [], [Reroute(0, (tail(2, 11),)), other], setup=TAILS)
    engine = engine_of(policy)
    engine.handle(arrived(0))
    engine.handle(arrived(1, 1))
    started = [effect for effect in engine.handle(finished(11)) if isinstance(effect, StartStage)]
    assert [(effect.batch.id, effect.stage) for effect in started] == [(0, 1), (1, 0)]


def test_what_waits_behind_a_batch_that_is_led_away_begins() -> None:
    behind = Dispatch(Batch(1, "m", (1,), (Stage(1, "m", 20, 10),)))
    policy = Script([two_stages(0)], [behind], [], [Reroute(0, (tail(2, 30),))], setup=TAILS)
    engine = engine_of(policy)
    engine.handle(arrived(0))
    engine.handle(arrived(1, 1))
    assert engine.handle(ClockAdvanced(22)) == [], "the first stage is late, and the batch keeps its place"
    assert engine.handle(arrived(2, 23)) == []
    started = engine.handle(finished(24))
    assert [effect.batch.id for effect in started if isinstance(effect, StartStage)] == [1]
    (last,) = engine.handle(ClockAdvanced(30))
    assert isinstance(last, StartStage)
    assert (last.batch.id, last.stage) == (0, 1)


def test_a_batch_is_led_around_a_lost_worker() -> None:
    policy = Script([two_stages(0)], [Reroute(0, (tail(2, 10),))], setup=TAILS)
    engine = engine_of(policy)
    engine.handle(arrived(0))
    assert engine.handle(WorkerLost(3, 1)) == []
    (started,) = engine.handle(finished(10))
    assert isinstance(started, StartStage)
    engine.handle(finished(20, stage=1, worker=2, started_ns=10))
    assert engine.tally.answered == 1
    assert not any(isinstance(event, BatchFailed) for event in policy.received)


def test_a_batch_that_is_doomed_can_be_saved_when_its_stage_is_over() -> None:
    policy = Script([two_stages(0)], [], [Reroute(0, (tail(2, 10),))], setup=TAILS)
    engine = engine_of(policy)
    engine.handle(arrived(0))
    engine.handle(WorkerLost(3, 1))
    engine.handle(WorkerJoined(4, TAILS.workers[1]))
    policy.answers.append([Reroute(0, (tail(2, 10),))])
    assert [type(effect) for effect in engine.handle(finished(10))] == [StartStage]


def test_a_batch_whose_next_worker_is_lost_is_not_saved_by_another_end() -> None:
    """Told of another batch's failure, the policy plans the end of one that is about to fail as well."""
    ahead = Dispatch(Batch(1, "m", (1,), (Stage(1, "m", 20, 10), tail(2, 30))))
    first = Dispatch(Batch(0, "m", (0,), (Stage(1, "m", 0, 10),)))
    policy = Script([first], [ahead], [], [Reroute(1, (tail(2, 35),))], setup=TAILS)
    engine = engine_of(policy)
    engine.handle(arrived(0))
    engine.handle(arrived(1, 1))
    engine.handle(WorkerLost(5, 1))
    assert engine.tally.ended + engine.queued == 2
    assert [event.batch_id for event in policy.received if isinstance(event, BatchFailed)] == [0, 1]
    assert engine.in_flight == 0


def test_a_batch_that_is_doomed_begins_nothing_though_its_next_worker_is_free() -> None:
    """Told of the end of its stage, the policy leads another batch elsewhere, which was before it on the next
    worker."""
    pipelines = (*M_PIPELINES, Pipeline(("m", "tail", "n"), max_rows=4))
    setup = Setup(
        (Model("m", max_rows=4, pipelines=pipelines), MODELS[1]),
        (Worker(0, "w0", ("m",)), Worker(1, "w1", ("tail",)), Worker(2, "w2", ("n",))),
        PROFILES,
    )
    doomed = Dispatch(Batch(0, "m", (0,), (Stage(0, "m", 0, 10), tail(1, 10), Stage(2, "n", 20, 10))))
    behind = Dispatch(Batch(1, "m", (1,), (Stage(0, "m", 20, 10), tail(1, 40))))
    policy = Script([doomed], [behind], [], [Reroute(1, (tail(1, 45),))], setup=setup)
    engine = engine_of(policy)
    engine.handle(arrived(0))
    engine.handle(arrived(1, 1))
    engine.handle(WorkerLost(3, 2))
    assert not any(isinstance(effect, StartStage) for effect in engine.handle(finished(10)))
    engine.validate()
    assert engine.in_flight == 1


def test_what_was_to_start_as_its_worker_is_lost_may_go_elsewhere() -> None:
    """The loss is known before planned starts are looked at: the batch has not begun, and nobody is told so."""
    later = run(0, at_ns=10)
    policy = Script([later], [Reroute(0, (Stage(2, "m", 10, 10),))])
    engine = engine_of(policy)
    engine.handle(arrived(0))
    (started,) = engine.handle(WorkerLost(10, 0))
    assert isinstance(started, StartStage)
    assert started.batch.stages[0].worker_id == 2
    engine.validate()


def test_a_batch_that_waits_does_not_begin_a_stage_as_others_of_the_same_loss_fail() -> None:
    """It is doomed as well: its worker, free of those before it, is not to run a stage of it in vain."""
    parts = ("a", "b", "c")
    setup = Setup(
        (Model("p", max_rows=4, pipelines=(Pipeline(parts, max_rows=4),)),),
        (Worker(0, "ac0", ("a", "c")), Worker(1, "b1", ("b",)), Worker(2, "c2", ("c",)), Worker(3, "a3", ("a",))),
        tuple(Profile(part, "default", (10, 20, 30, 40)) for part in parts),
    )
    ahead = Dispatch(Batch(0, "p", (0,), (Stage(0, "a", 0, 10), Stage(1, "b", 10, 10), Stage(2, "c", 20, 10))))
    waits = Dispatch(Batch(1, "p", (1,), (Stage(3, "a", 0, 10), Stage(1, "b", 20, 10), Stage(0, "c", 30, 10))))
    engine = engine_of(Script([ahead], [waits], setup=setup))
    engine.handle(arrived(0, model="p"))
    engine.handle(arrived(1, model="p"))
    assert engine.handle(finished(10, 1, worker=3)) == []
    assert engine.handle(WorkerLost(25, 0)) == []
    engine.validate()
    assert (engine.queued, engine.in_flight) == (2, 0)


@pytest.mark.parametrize(
    ("number", "stages", "message"),
    [
        (3, (Stage(0, "m", 5, 10), tail(1, 15)), "from stage 0 on, which has begun"),
        (3, (Stage(1, "m", 10, 10),), "it has to go through \\['tail'\\]"),
        (3, (tail(1, 9),), "starts at 9 before 10"),
        (2, (tail(0, 10),), "worker 0 does not host 'tail'"),
        (2, (tail(2, 32),), "overlaps what is booked on worker 2"),
    ],
)
def test_a_route_that_cannot_be_is_refused_and_the_old_one_stands(
    number: int, stages: tuple[Stage, ...], message: str
) -> None:
    blocking = Dispatch(Batch(2, "m", (2,), (Stage(0, "m", 20, 10), tail(2, 30))))
    policy = Script([two_stages(0)], [blocking], [Reroute(0, stages)], setup=TAILS)
    engine = engine_of(policy)
    engine.handle(arrived(0))
    engine.handle(arrived(2, 1))
    with pytest.raises(InvariantViolation, match=f"invariant {number}: .*{message}"):
        engine.handle(arrived(3, 2))
    (started,) = engine.handle(finished(10))
    assert started == StartStage(two_stages(0).batch, 1, 1)


def test_only_what_is_on_its_way_can_be_rerouted() -> None:
    engine = engine_of(Script([Reroute(7, ())]))
    with pytest.raises(InvariantViolation, match="batch 7 is rerouted but is not on its way"):
        engine.handle(arrived(0))


def test_of_two_stages_that_are_planned_alike_the_one_that_is_over_is_struck() -> None:
    stage, alike = (Stage(0, "m", start_ns=10, duration_ns=5) for _ in range(2))
    first, second = (
        InFlightBatch(Batch(number, "m", (number,), (each,)), [], 1) for number, each in ((1, stage), (2, alike))
    )
    booked = Reservations(WORKERS[0], frozenset({"m"}), set())
    booked.book(stage, first)
    booked.book(alike, second)
    assert booked.strike(alike)
    assert (booked.flights, booked.stages[0] is stage) == ([first], True)
    assert not booked.strike(alike)
