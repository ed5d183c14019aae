"""The engine against tiny policies: what it refuses, cancellation, timers, profiles, isolation."""

from collections import deque
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tests.core.engine.script import (
    MODELS,
    PROFILES,
    SETUP,
    WORKERS,
    BestEffort,
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
    Advise,
    AnyCommand,
    Batch,
    BatchFailed,
    CancelTimer,
    Commands,
    Dispatch,
    Drop,
    PolicyOptions,
    Preempt,
    Profile,
    ProfileUpdated,
    RequestArrived,
    RequestCancelled,
    SetTimer,
    Setup,
    Stage,
    TimerFired,
    WorkerLost,
)
from tidegate.engine import NO_WORKER, CancelStage, ClockAdvanced, Fail, InvariantViolation, PolicyReplaced, StartStage
from tidegate.toolkit import FirstComeFirstServed

# What no policy may do ------------------------------------------------------------------------------------------------

TWO_STAGES_CROSSED = Dispatch(Batch(0, "m", (0,), (Stage(0, "m", 5, 10), Stage(1, "tail", 14, 10))))
THE_TAIL_ALONE = Dispatch(Batch(0, "m", (0,), (Stage(1, "tail", 5, 10),)))
NO_STAGES = Dispatch(Batch(0, "m", (0,), ()))


@pytest.mark.parametrize(
    ("number", "commands", "message"),
    [
        (1, [run(7, at_ns=5)], "takes request 7, which is not queued"),
        (1, [run(0, 0, at_ns=5)], "holds a request twice"),
        (1, [run(at_ns=5, last_ns=10)], "has no requests"),
        (1, [run(0, 2, at_ns=5)], "cannot merge request 2"),
        (1, [run(0, 3, at_ns=5)], "cannot merge request 3"),
        (1, [run(0, 1, at_ns=5, last_ns=40)], "has 5 rows; 'm' takes 4"),
        (1, [run(0, at_ns=5, model="unknown")], "'unknown', which is not served here"),
        (1, [run(0, at_ns=5), run(0, batch=1, worker=2, at_ns=5)], "takes request 0, which is not queued"),
        (1, [Drop(7, "deadline_unreachable")], "request 7 is dropped but not queued"),
        (1, ["run it!"], "'run it!' is no command"),
        (2, [run(3, worker=1, at_ns=5, model="n")], "worker 1 does not host 'n'"),
        (2, [run(0, worker=9, at_ns=5)], "worker 9 does not host 'm'"),
        (2, [run(0, at_ns=5), run(1, batch=1, at_ns=14, last_ns=40)], "overlaps what is booked on worker 0"),
        (2, [run(0, at_ns=15), run(1, batch=1, at_ns=5, last_ns=40)], "overlaps what is booked on worker 0"),
        (3, [run(0, at_ns=4)], "starts at 4 before 5"),
        (3, [run(0, at_ns=5, last_ns=0)], "lasts no time"),
        (3, [TWO_STAGES_CROSSED], "stage 1 of batch 0 starts at 14 before 15"),
        (3, [NO_STAGES], r"goes through \[\]"),
        (3, [THE_TAIL_ALONE], "of 1 rows goes through .'tail'.; 'm' has .'m'. for up to 4, .'m', 'tail'. for up to 4"),
        (6, [run(0, batch=3, at_ns=5), run(3, batch=3, worker=2, at_ns=5)], "batch id 3 was used before"),
        (8, [run(0, at_ns=5, last_ns=9)], "plans 9 ns, the profile says 10"),
        (8, [run(4, at_ns=13)], r"cannot end before 1\d, request 4 is due at 14"),
    ],
)
def test_a_forbidden_command_is_refused_with_the_number_of_its_invariant(
    number: int, commands: Sequence[AnyCommand], message: str
) -> None:
    policy = Script()
    engine = engine_of(policy)
    engine.handle(arrived(4, due_ns=14))  # the first: behind others it would be given up
    engine.handle(arrived(0))
    engine.handle(arrived(1, rows=4))
    engine.handle(arrived(2, key="wide"))
    engine.handle(arrived(3, model="n"))
    policy.answers.append(commands)
    allowed = len(commands) - 1
    with pytest.raises(InvariantViolation, match=f"invariant {number}: .*{message}") as refused:
        engine.handle(arrived(5, 5))
    assert refused.value.number == number
    assert (engine.queued, engine.in_flight) == (6 - allowed, allowed), "nothing of it took effect"


def test_best_effort_may_be_late() -> None:
    batch = run(0, at_ns=5, last_ns=1)
    engine = engine_of(BestEffort([batch]))
    assert engine.handle(arrived(0, 5, due_ns=6)) == [start(batch)]
    engine.handle(finished(15, started_ns=5))
    assert (engine.tally.answered, engine.tally.late) == (1, 1)


def test_requests_of_unlike_shapes_cannot_share_a_batch_though_their_merge_keys_are_equal() -> None:
    policy = Script()
    engine = engine_of(policy)
    for number, shape in enumerate(("x:3,48,320", "x:3,48,640")):
        engine.handle(RequestArrived(0, replace(arrived(number).request, shape=shape)))
    policy.answers.append([run(0, 1)])
    with pytest.raises(InvariantViolation, match=r"invariant 1: .* cannot merge request 1"):
        engine.handle(arrived(2))


def test_timers_are_not_fired_by_the_driver() -> None:
    with pytest.raises(InvariantViolation, match="comes from the engine") as refused:
        engine_of(Script()).handle(TimerFired(0, "mine"))
    assert refused.value.number == 3


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (arrived(0, model="unknown"), NO_WORKER),
        (arrived(0, model="tail"), NO_WORKER),  # a partition is no model
        (arrived(0, rows=5), "5 rows; 'm' takes 4"),
    ],
)
def test_a_request_that_can_never_run_fails_at_once(request_: RequestArrived, why: str) -> None:
    policy = Script()
    engine = engine_of(policy)
    assert engine.handle(request_) == [Fail(0, why)]
    assert policy.received == []
    assert (engine.tally.accepted, engine.tally.failed) == (1, 1)


@pytest.mark.parametrize("table", [(), (10, 20)])
def test_every_hosted_partition_needs_a_profile_up_to_its_models_rows(table: tuple[int, ...]) -> None:
    profiles = (Profile("m", "default", table),) if table else ()
    with pytest.raises(ValueError, match="no profile of 'm' on workers of device class 'default' for up to 4 rows"):
        engine_of(Script(setup=Setup(MODELS[:1], WORKERS[2:], profiles)))


# Cancellation ---------------------------------------------------------------------------------------------------------


def test_cancelling_a_queued_request_tells_the_policy() -> None:
    policy = Script()
    engine = engine_of(policy)
    engine.handle(arrived(0))
    assert engine.handle(RequestCancelled(5, 0)) == []
    assert policy.received[-1] == RequestCancelled(5, 0)
    assert (engine.queued, engine.tally.cancelled) == (0, 1)


def test_a_request_cancelled_in_flight_runs_on_unanswered() -> None:
    policy = Script((), [run(0, 1)])
    engine = engine_of(policy)
    engine.handle(arrived(0))
    engine.handle(arrived(1))
    engine.handle(RequestCancelled(5, 0))
    assert len(policy.received) == 2, "the policy planned with its rows, which run on"
    assert engine.handle(failed(10, retry=True)) == []
    assert (engine.queued, engine.tally.cancelled, engine.tally.failed) == (1, 1, 0), "only the other is tried again"


def test_cancelling_an_unknown_or_ended_request_is_no_news() -> None:
    policy = Script([run(0)])
    engine = engine_of(policy)
    engine.handle(arrived(0))
    engine.handle(finished(10))
    engine.handle(RequestCancelled(11, 0))
    engine.handle(RequestCancelled(11, 99))
    assert engine.tally.cancelled == 0
    assert len(policy.received) == 2


# Timers ---------------------------------------------------------------------------------------------------------------


def fired(policy: Script) -> list[TimerFired]:
    return [event for event in policy.received if isinstance(event, TimerFired)]


def test_timers_fire_in_the_order_of_their_instants_then_of_their_setting() -> None:
    policy = Script([SetTimer("c", 20), SetTimer(("a", 1), 10), SetTimer(2, 10)])
    engine = engine_of(policy)
    engine.handle(arrived(0))
    assert engine.next_wake_ns == 10
    engine.handle(ClockAdvanced(25))
    assert fired(policy) == [TimerFired(10, ("a", 1)), TimerFired(10, 2), TimerFired(20, "c")]
    assert engine.next_wake_ns is None


def test_timers_fire_before_the_event_that_comes_late() -> None:
    policy = Script([SetTimer("t", 10)])
    engine = engine_of(policy)
    engine.handle(arrived(0))
    engine.handle(arrived(1, 10))
    assert policy.received[1:] == [TimerFired(10, "t"), arrived(1, 10)]


def test_a_timer_set_again_moves_and_a_cancelled_one_is_forgotten() -> None:
    policy = Script([SetTimer("t", 10), SetTimer("u", 12), SetTimer("t", 30), CancelTimer("u"), CancelTimer("never")])
    engine = engine_of(policy)
    engine.handle(arrived(0))
    assert engine.next_wake_ns == 30
    engine.handle(ClockAdvanced(20))
    assert fired(policy) == []
    engine.handle(ClockAdvanced(30))
    assert fired(policy) == [TimerFired(30, "t")]


def test_a_timer_cancelled_or_moved_by_one_that_fires_first_does_not_fire() -> None:
    policy = Script(
        [SetTimer("first", 10), SetTimer("cancelled", 10), SetTimer("moved", 10)],
        [CancelTimer("cancelled"), SetTimer("moved", 40)],
    )
    engine = engine_of(policy)
    engine.handle(arrived(0))
    engine.handle(ClockAdvanced(15))
    assert fired(policy) == [TimerFired(10, "first")]
    assert engine.next_wake_ns == 40


def test_a_timer_set_for_the_past_fires_in_the_next_round() -> None:
    policy = Script([SetTimer("t", 10)], [SetTimer("t", 5)])
    engine = engine_of(policy)
    engine.handle(arrived(0))
    engine.handle(ClockAdvanced(10))
    assert fired(policy) == [TimerFired(10, "t")]
    engine.handle(ClockAdvanced(10))
    assert fired(policy) == [TimerFired(10, "t")] * 2


# Profiles -------------------------------------------------------------------------------------------------------------

SLOWER = ProfileUpdated(5, Profile("m", "default", (50, 60, 70, 80)))


def test_an_updated_profile_is_told_and_counts_from_then_on() -> None:
    policy = Script((), (), [run(0, at_ns=6)])
    engine = engine_of(policy)
    engine.handle(arrived(0, due_ns=1000))
    engine.handle(SLOWER)
    assert policy.received[-1] == SLOWER
    assert engine.expectations.profiles["m", "default", ""].upper_ns(1) == 50
    with pytest.raises(InvariantViolation, match="plans 10 ns, the profile says 50"):
        engine.handle(arrived(1, 6))


def test_observed_latencies_reach_the_policy() -> None:
    batches = [run(number, batch=number, at_ns=100 * number, last_ns=40) for number in range(9)]
    policy = Script(*(answer for batch in batches for answer in ([batch], ())))
    engine = engine_of(policy, learn=True)
    for number in range(9):
        engine.handle(arrived(number, 100 * number))
        engine.handle(finished(100 * number + 15, number, started_ns=100 * number))
    (updated,) = [event for event in policy.received if isinstance(event, ProfileUpdated)]
    assert policy.received[-2:] == [finished(815, 8, started_ns=800), updated], "told once the stage is over"
    assert updated.profile.upper_ns(1) > 10
    assert engine.expectations.profiles["m", "default", ""] == updated.profile


# Isolation ------------------------------------------------------------------------------------------------------------


NONSENSE = Drop(99, "nonsense")


def test_a_policy_that_breaks_is_replaced_and_nothing_is_lost() -> None:
    policy = Script((), [SetTimer("forgotten", 50)], [NONSENSE])
    engine = engine_of(policy, strict=False)
    engine.handle(arrived(0))
    engine.handle(arrived(1))
    replaced, *rest = engine.handle(arrived(2))
    reason = "Script: InvariantViolation: invariant 1: request 99 is dropped but not queued"
    assert replaced == PolicyReplaced("script", reason, backoff_ns=1_000_000_000)
    assert [type(effect) for effect in rest] == [StartStage] * 3
    assert isinstance(engine.policy, FirstComeFirstServed)
    assert engine.next_wake_ns is None, "its timers went with it"


def test_what_a_broken_policy_booked_runs_before_its_workers_are_given_to_others() -> None:
    runs, booked = run(0), run(1, batch=1, at_ns=10)
    setup = Setup(MODELS, WORKERS[:1], PROFILES)
    engine = engine_of(Script([runs], [booked], [NONSENSE], setup=setup), strict=False)
    engine.handle(arrived(0))
    engine.handle(arrived(1))
    assert [type(effect) for effect in engine.handle(arrived(2))] == [PolicyReplaced]
    assert engine.handle(finished(10)) == [start(booked)]
    (last,) = engine.handle(finished(20, 1, started_ns=10))
    assert isinstance(last, StartStage)
    assert last.batch.request_ids == (2,)


def test_a_broken_policys_worker_is_free_when_its_batch_fails_for_want_of_another() -> None:
    """Worker 1 is booked for a second stage; the first one fails; worker 1 must not stay booked for ever."""
    setup = Setup(MODELS, WORKERS[:2], PROFILES)
    engine = engine_of(Script([two_stages(0)], [NONSENSE], setup=setup), strict=False)
    engine.handle(arrived(0))
    engine.handle(arrived(1))
    (again,) = engine.handle(WorkerLost(5, 0))
    assert isinstance(again, StartStage)
    assert again.batch.stages[0].worker_id == 1
    assert sorted(again.batch.request_ids) == [0, 1]


def test_a_policy_that_breaks_while_a_stage_finishes_does_not_free_its_worker_twice() -> None:
    class BreaksOnProfiles(FirstComeFirstServed):
        def on_profile_updated(self, event: ProfileUpdated) -> Commands:
            raise RuntimeError("made to break")

    setup = Setup(MODELS, WORKERS[:1], PROFILES)
    engine = engine_of(BreaksOnProfiles(setup, PolicyOptions()), strict=False, learn=True)
    engine.handle(arrived(0, rows=4))
    for number in range(1, 3):
        engine.handle(arrived(number, 100 * (number - 1), rows=4))
        engine.handle(finished(100 * number, number - 1, started_ns=100 * (number - 1)))
    engine.handle(arrived(3, 250, rows=4))
    engine.handle(arrived(4, 250, rows=4))
    effects = engine.handle(finished(300, 2, started_ns=200))
    assert [type(effect) for effect in effects] == [StartStage, PolicyReplaced]
    assert (engine.queued, engine.in_flight) == (1, 1)


def test_a_baseline_that_breaks_is_isolated_as_any_other_policy() -> None:
    class Broken(FirstComeFirstServed):
        def on_request_arrived(self, event: RequestArrived) -> Commands:
            raise RuntimeError("made to break")

    engine = engine_of(Broken(SETUP, PolicyOptions()), strict=False)
    assert [type(effect) for effect in engine.handle(arrived(0))] == [PolicyReplaced, StartStage]


def test_advice_is_passed_on() -> None:
    advice = Advise(2, "bad rate 20 %")
    assert engine_of(Script([advice])).handle(arrived(0)) == [advice]


def test_a_preempted_batch_comes_back_however_often() -> None:
    first, second, third = (run(0, batch=number, at_ns=20 * number) for number in range(3))
    policy = Script([first], [Preempt(0)], (), [second], [Preempt(1)], (), [third])
    engine = engine_of(policy)
    engine.handle(arrived(0, 0))
    (cancelled,) = engine.handle(arrived(1, 10))
    assert isinstance(cancelled, CancelStage)
    engine.handle(BatchFailed(20, 0, 0, 0, "preempted", retry=True))
    engine.handle(arrived(2, 30))
    started = engine.handle(BatchFailed(40, 1, 0, 0, "preempted", retry=True))
    assert [type(effect) for effect in started] == [StartStage], "tried a third time: nothing had failed"


def test_only_what_runs_can_be_preempted() -> None:
    engine = engine_of(Script([Preempt(7)]))
    with pytest.raises(InvariantViolation, match="invariant 3"):
        engine.handle(arrived(0, 0))


# Batches that fail ---------------------------------------------------------------------------------------------------


def test_requests_that_are_tried_apart_share_batches_only_within_their_groups() -> None:
    policy = Script((), (), (), [run(0, 1, 2, 3)])
    engine = engine_of(policy)
    for request_id in range(4):
        engine.handle(arrived(request_id))
    refused = BatchFailed(10, 0, 0, 0, "one is bad", apart=((0, 1), (2,)))
    assert engine.handle(refused) == [Fail(3, "one is bad")], "what is in no group has failed"
    again = [event.request for event in policy.received if isinstance(event, RequestArrived)][4:]
    assert [request.id for request in again] == [0, 1, 2]
    first, second, third = [request.merge_key for request in again]
    assert first == second != third != ""
    assert not any(request.deferrable for request in again), "nobody else can join them"
    assert (engine.queued, engine.in_flight, engine.tally.failed) == (3, 0, 1)


def test_what_failed_teaches_nothing_and_answers_nobody() -> None:
    stages = 40
    policy = BestEffort(*[(run(number, batch=number, at_ns=100_000 * number),) for number in range(stages)])
    policy.answers = deque(answer for each in policy.answers for answer in (each, ()))  # then it is told how that ended
    engine = engine_of(policy, learn=True)
    for number in range(stages):
        engine.handle(arrived(number, 100_000 * number))
        engine.handle(failed(100_000 * number + 90_000, number))
    assert not any(isinstance(event, ProfileUpdated) for event in policy.received)
    assert (engine.tally.failed, engine.tally.answered) == (stages, 0)
