"""Symphony, event by event (transcripts), and through its paper's worked example."""

from collections.abc import Iterable

import pytest

from tidegate.api import (
    NEVER_NS,
    Batch,
    CancelTimer,
    Dispatch,
    Drop,
    Model,
    Profile,
    ProfileUpdated,
    QueueKey,
    Request,
    RequestArrived,
    RequestCancelled,
    SetTimer,
    Setup,
    Stage,
    TimerFired,
    Worker,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
    ms_to_ns,
)
from tidegate.api.profile import MAX_SURPRISE_FACTOR
from tidegate.testing import Playbook
from tidegate_symphony.policy import Symphony, SymphonyOptions

# The worked example of section 3.3, in units of its t: l(b) = b + 5, SLO 12. Here one t is a millisecond.
T = ms_to_ns(1)
SLO = 12 * T
LEAST = 6 / MAX_SURPRISE_FACTOR
"""What one row may take in t, however long is expected."""
KEY, OTHER, SLOW_KEY = ("m", "", ""), ("n", "", ""), ("bulk", "", "")


def profile(name: str, kind: str = "default", times: int = 1) -> Profile:
    return Profile(name, kind, tuple(times * T * (rows + 5) for rows in range(1, 9)))


def setup(*workers: Worker) -> Setup:
    models = (Model("m", 8, SLO), Model("n", 8, SLO), Model("bulk", 8))
    profiles = [profile(m.name, kind, times) for m in models for kind, times in (("default", 1), ("slow", 2))]
    return Setup(models, workers, tuple(profiles))


def workers(count: int, *hosts: str) -> list[Worker]:
    return [Worker(number, f"w{number}", hosts or ("bulk", "m", "n")) for number in range(count)]


def playbook(*of: Worker, **options: float | str) -> Playbook:
    """Of the paper's deferral, unless another is asked for."""
    return Playbook(Symphony(setup(*of), SymphonyOptions.model_validate({"deferral": "frontrun", **options})))


def arrived(
    request_id: int, at: float, *, model: str = "m", rows: int = 1, due: float | None = None, key: str = ""
) -> RequestArrived:
    now_ns = round(at * T)
    slo_ns = NEVER_NS if model == "bulk" else now_ns + SLO
    due_ns = slo_ns if due is None else round(due * T)
    return RequestArrived(now_ns, Request(request_id, model, rows, now_ns, due_ns, key))


def timer(at: float, key: QueueKey = KEY, *, after: bool = False) -> SetTimer:
    """At an instant, or right after it."""
    return SetTimer(key, round(at * T) + after)


def fires(at: float, key: QueueKey = KEY) -> TimerFired:
    return TimerFired(round(at * T), key)


def run(
    batch: int, ids: Iterable[int], worker: int, at: float, *, rows: int = 0, model: str = "m", times: int = 1
) -> Dispatch:
    request_ids = tuple(ids)
    stage = Stage(worker, model, round(at * T), times * T * ((rows or len(request_ids)) + 5))
    return Dispatch(Batch(batch, model, request_ids, (stage,)))


def freed(at: float, worker: int) -> WorkerReady:
    return WorkerReady(round(at * T), worker, round(at * T))


# The schedulable window (section 3.1) ---------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_formation", ["skip_head", "keep_head"])
def test_the_first_batch_of_the_worked_example(batch_formation: str) -> None:
    """With four requests frontrun is 12 - l(5) = 2, and it is past 2 when the fourth arrives."""
    assert (
        playbook(*workers(3), batch_formation=batch_formation)
        >> arrived(1, 0)
        << timer(5)  # frontrun of one: 12 - l(2)
        >> arrived(2, 0.75)
        << timer(4)
        >> arrived(3, 1.5)
        << timer(3)
        >> arrived(4, 2.25)
        << run(0, (1, 2, 3, 4), worker=0, at=2.25)
        << CancelTimer(KEY)
        >> arrived(5, 3)
        << timer(3 + 12 - 7)
    )


def test_a_batch_starts_at_its_frontrun_moment_on_the_idle_worker_of_the_smallest_id() -> None:
    assert (
        playbook(*workers(3))
        >> arrived(1, 0)
        << timer(5)
        >> fires(5)
        << run(0, [1], worker=0, at=5)
        << CancelTimer(KEY)
        >> arrived(2, 6)
        << timer(11)
        >> fires(11)
        << run(1, [2], worker=1, at=11)
        << CancelTimer(KEY)
        >> freed(11.5, 0)
        >> arrived(3, 12)
        << timer(17)
        >> fires(17)
        << run(2, [3], worker=0, at=17)
        << CancelTimer(KEY)
    )


def test_what_is_not_to_wait_for_more_does_not() -> None:
    at_once = RequestArrived(0, Request(1, "m", 1, 0, SLO, deferrable=False))
    assert playbook(*workers(1)) >> at_once << run(0, [1], 0, 0) << CancelTimer(KEY)


def test_a_full_batch_does_not_wait() -> None:
    assert playbook(*workers(1)) >> arrived(1, 0, rows=7) << run(0, [1], 0, 0, rows=7) << CancelTimer(KEY)
    assert playbook(*workers(1)) >> arrived(1, 0, rows=8, due=99) << run(0, [1], 0, 0, rows=8) << CancelTimer(KEY)


def test_rows_that_do_not_run_faster_together_do_not_wait_for_each_other() -> None:
    slow = Setup(
        (Model("m", 8, SLO),), tuple(workers(1, "m")), (Profile("m", "default", (100, 280, 550, *[1100] * 5)),)
    )
    play = Playbook(Symphony(slow, SymphonyOptions(deferral="frontrun"))) >> arrived(0, 0)
    (dispatched,) = (command for command in play.commands() if isinstance(command, Dispatch))
    assert dispatched.batch.stages == (Stage(0, "m", 0, 100),)
    for event in (arrived(1, 0), arrived(2, 0)):
        play = play >> event
        play.commands()
    play = play >> freed(1, 0)
    (dispatched,) = (command for command in play.commands() if isinstance(command, Dispatch))
    assert dispatched.batch.request_ids == (1,)


def test_the_reserve_is_kept_free_before_every_deadline() -> None:
    deadline_margin_ms = T / 1e6  # one t
    assert playbook(*workers(1), deadline_margin_ms=deadline_margin_ms) >> arrived(1, 0) << timer(4)


def test_a_cancelled_request_gives_its_time_to_the_others() -> None:
    assert (
        playbook(*workers(1))
        >> arrived(1, 0)
        << timer(5)
        >> arrived(2, 1)
        << timer(4)
        >> RequestCancelled(2 * T, 1)
        << timer(1 + 12 - 7)
        >> RequestCancelled(3 * T, 2)
        << CancelTimer(KEY)
    )


# Without a worker (section 3.2) ---------------------------------------------------------------------------------------


def test_of_the_candidates_that_wait_the_one_whose_latest_is_closest_runs_when_a_worker_frees() -> None:
    assert (
        playbook(*workers(1))
        >> arrived(1, 0, model="bulk")
        << run(0, [1], 0, 0, model="bulk")
        << CancelTimer(SLOW_KEY)
        >> arrived(2, 0.1)
        << timer(5.1)
        >> arrived(3, 0.2, model="n", due=12)
        << timer(5, OTHER)
        >> fires(5, OTHER)
        << timer(6, OTHER, after=True)  # no worker: valid until its latest moment, 12 - l(1)
        >> fires(5.1)
        << timer(6.1, after=True)
        >> freed(5.5, 0)
        << run(1, [3], 0, 5.5, model="n")
        << CancelTimer(OTHER)
    )


def test_a_candidate_before_its_moment_leaves_a_freed_worker_idle() -> None:
    assert (
        playbook(*workers(1))
        >> arrived(1, 0, model="bulk")
        << run(0, [1], 0, 0, model="bulk")
        << CancelTimer(SLOW_KEY)
        >> arrived(2, 0)
        << timer(5)
        >> freed(4, 0)
        >> fires(5)
        << run(1, [2], 0, 5)
        << CancelTimer(KEY)
    )


def test_a_head_that_cannot_be_on_time_is_dropped_and_the_rest_goes_on() -> None:
    """One that has less time left than `LEAST` is lost; one that is expected to be late is skipped."""
    assert (
        playbook(*workers(1))
        >> arrived(1, 0, model="bulk")
        << run(0, [1], 0, 0, model="bulk")
        << CancelTimer(SLOW_KEY)
        >> arrived(2, 0)
        << timer(5)
        >> fires(5)
        << timer(6, after=True)
        >> arrived(3, 5.5)
        >> TimerFired(6 * T + 1, KEY)
        << timer(5.5 + 12 - 7)
        >> arrived(4, 7, due=12)
        << timer(10.5)
        >> TimerFired(round(10.5 * T) + 1, KEY)
        << Drop(2, "deadline_unreachable")
        << Drop(4, "deadline_unreachable")  # it came after 3, and is due before
        << timer(17.5 - 6, after=True)
    )


def test_a_model_without_an_slo_is_served_at_once() -> None:
    assert (
        playbook(*workers(2))
        >> arrived(1, 0, model="bulk")
        << run(0, [1], 0, 0, model="bulk")
        << CancelTimer(SLOW_KEY)
        >> arrived(2, 0, model="bulk")
        << run(1, [2], 1, 0, model="bulk")
        << CancelTimer(SLOW_KEY)
        >> arrived(3, 1, model="bulk")
        << CancelTimer(SLOW_KEY)
        >> arrived(4, 1, model="bulk")
        >> freed(6, 1)
        << run(2, [3, 4], 1, 6, model="bulk")
        << CancelTimer(SLOW_KEY)
    )


# Workers of several kinds, and changes --------------------------------------------------------------------------------

FAST, SLOW = Worker(0, "fast", ("m",)), Worker(1, "slow", ("m",), device_class="slow")


def test_an_idle_worker_on_which_the_batch_would_be_late_is_passed_over() -> None:
    assert (
        playbook(FAST, SLOW)
        >> arrived(1, 0, due=7)
        << run(0, [1], 0, 0)
        << CancelTimer(KEY)
        >> arrived(2, 0)
        << timer(5)
        >> fires(5)
        << timer(6, after=True)  # the slow one would need until 17
        >> freed(5.5, 0)
        << run(1, [2], 0, 5.5)
        << CancelTimer(KEY)
    )


def test_losing_the_fast_worker_brings_every_moment_forward() -> None:
    """On the slow one l(2) is 14: what could wait until 30 - 7 must start by 30 - 14."""
    assert (
        playbook(FAST, SLOW)
        >> arrived(1, 0, due=30)
        << timer(23)
        >> WorkerLost(T, 0)
        << timer(16)
        >> fires(16)
        << run(0, [1], 1, 16, times=2)
        << CancelTimer(KEY)
    )


def test_a_faster_worker_lets_later_plans_wait_longer() -> None:
    assert (
        playbook(SLOW)
        >> arrived(1, 0, due=30)
        << timer(30 - 14)
        >> WorkerJoined(T, FAST)
        >> arrived(2, 1, due=30)
        << timer(30 - 8)
    )


def test_losing_the_last_worker_plans_nothing() -> None:
    assert playbook(FAST) >> arrived(1, 0) << timer(5) >> WorkerLost(T, 0) << CancelTimer(KEY)


def test_a_joining_worker_takes_what_waits() -> None:
    assert (
        playbook(*workers(1))
        >> arrived(1, 0, model="bulk")
        << run(0, [1], 0, 0, model="bulk")
        << CancelTimer(SLOW_KEY)
        >> arrived(2, 0)
        << timer(5)
        >> fires(5)
        << timer(6, after=True)
        >> WorkerJoined(round(5.5 * T), Worker(7, "w7", ("m",)))
        << run(1, [2], 7, 5.5)
        << CancelTimer(KEY)
    )


def test_an_updated_profile_moves_what_is_planned() -> None:
    slower = Profile("m", "default", tuple(T * (rows + 6) for rows in range(1, 9)))
    assert playbook(*workers(1)) >> arrived(1, 0) << timer(5) >> ProfileUpdated(T, slower) << timer(4)


def test_a_strange_timer_is_ignored() -> None:
    assert playbook(*workers(1)) >> TimerFired(0, "not mine") >> TimerFired(0, ("m", "", "gone"))
