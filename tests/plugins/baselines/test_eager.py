"""Eager batching, event by event, with l(b) = b + 5 and an SLO of 12."""

from collections.abc import Iterable

import pytest

from tests.arrivals import Arrivals
from tidegate.api import (
    NEVER_NS,
    Batch,
    Dispatch,
    Drop,
    Model,
    Profile,
    ProfileUpdated,
    Request,
    RequestArrived,
    SetTimer,
    Setup,
    Stage,
    TimerFired,
    Worker,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
)
from tidegate.testing import Playbook
from tidegate_baselines.eager import Eager, EagerOptions

KEY, OTHER = ("m", "", ""), ("n", "", "")
MODELS = (Model("m", 8, slo_ns=12), Model("n", 8, slo_ns=12))
FAST = Worker(0, "fast", ("m", "n"))
SLOW = Worker(1, "slow", ("m", "n"), device_class="slow")


def profile(model: str, kind: str = "default", beta: int = 5) -> Profile:
    return Profile(model, kind, tuple(rows + beta for rows in range(1, 9)))


def playbook(*workers: Worker) -> Playbook:
    profiles = [profile(name, kind, beta) for name in "mn" for kind, beta in (("default", 5), ("slow", 10))]
    return Playbook(Eager(Setup(MODELS, workers, tuple(profiles)), EagerOptions()))


arrived = Arrivals(slo_ns=12)


def run(batch: int, *ids: int, at: int, model: str = "m", worker: Worker = FAST) -> Dispatch:
    stage = Stage(worker.id, model, at, len(ids) + (5 if worker.device_class == "default" else 10))
    return Dispatch(Batch(batch, model, ids, (stage,)))


def freed(now_ns: int, worker: int = 0) -> WorkerReady:
    return WorkerReady(now_ns, worker, now_ns)


def test_an_idle_worker_takes_what_there_is_and_what_waits_runs_together_if_it_is_on_time() -> None:
    assert (
        playbook(FAST)
        >> arrived(0, 0)
        << run(0, 0, at=0)
        >> arrived(1, 1)
        << SetTimer(KEY, 8)  # hopeless then: 13 - l(1) has passed
        >> arrived(2, 2)
        << SetTimer(KEY, 8)
        >> arrived(3, 3)
        << SetTimer(KEY, 8)
        >> freed(6)
        << run(1, 1, 2, at=6)  # with 3 it would last until 14
        << SetTimer(KEY, 3 + 12 - 6 + 1)
    )


def test_what_would_be_late_even_alone_is_dropped() -> None:
    assert (
        playbook(FAST)
        >> arrived(0, 0)
        << run(0, 0, at=0)
        >> arrived(1, 1)
        << SetTimer(KEY, 8)
        >> arrived(2, 5)
        << SetTimer(KEY, 8)
        >> TimerFired(8, KEY)
        << Drop(1, "deadline_unreachable")
        << SetTimer(KEY, 12)
        >> arrived(3, 9, due_ns=9)
        << SetTimer(KEY, 12)
        >> freed(10)
        << run(1, 2, at=10)
        << Drop(3, "deadline_unreachable")
        >> TimerFired(12, KEY)
    )


def test_of_several_queues_the_one_whose_latest_start_is_closest() -> None:
    assert (
        playbook(FAST)
        >> arrived(0, 0)
        << run(0, 0, at=0)
        >> arrived(1, 1)
        << SetTimer(KEY, 8)
        >> arrived(2, 2, "n")
        << SetTimer(OTHER, 9)
        >> arrived(3, 2, "n")
        << SetTimer(OTHER, 9)
        >> arrived(4, 3, "n")
        << SetTimer(OTHER, 9)
        >> freed(6)
        << run(1, 2, 3, 4, at=6, model="n")  # must start by 14 - l(3) = 6, the other by 13 - l(1) = 7
    )


def test_a_request_without_a_deadline_waits_for_as_long_as_it_takes() -> None:
    assert (
        playbook(FAST)
        >> arrived(0, 0)
        << run(0, 0, at=0)
        >> arrived(1, 1, due_ns=NEVER_NS)
        >> arrived(2, 1, "n")
        << SetTimer(OTHER, 8)
        >> freed(6)
        << run(1, 2, at=6, model="n")
        >> freed(12)
        << run(2, 1, at=12)
    )


def test_an_idle_worker_on_which_it_would_be_late_is_passed_over() -> None:
    assert (
        playbook(FAST, SLOW)
        >> arrived(0, 0)
        << run(0, 0, at=0)
        >> arrived(1, 1)
        << run(1, 1, at=1, worker=SLOW)
        >> freed(12, worker=1)
        >> arrived(2, 13, due_ns=20)
        << SetTimer(KEY, 15)
        >> freed(14)
        << run(2, 2, at=14)
    )


def test_losing_the_fast_worker_makes_hopeless_what_counted_on_it() -> None:
    assert (
        playbook(FAST, SLOW)
        >> arrived(0, 0)
        << run(0, 0, at=0)
        >> arrived(1, 1, due_ns=11)
        << SetTimer(KEY, 6)
        >> WorkerLost(2, 0)
        << Drop(1, "deadline_unreachable")
    )


def test_a_joining_worker_takes_what_waits_and_a_new_profile_is_believed() -> None:
    assert (
        playbook(FAST)
        >> arrived(0, 0)
        << run(0, 0, at=0)
        >> arrived(1, 1)
        << SetTimer(KEY, 8)
        >> ProfileUpdated(2, profile("m", beta=6))
        << SetTimer(KEY, 7)
        >> WorkerJoined(3, SLOW)
        >> ProfileUpdated(3, profile("m", "slow", beta=9))
        << Dispatch(Batch(1, "m", (1,), (Stage(1, "m", 3, 10),)))
    )


@pytest.mark.parametrize(("batch_formation", "ids"), [("keep_head", range(1, 7)), ("skip_head", range(3, 11))])
def test_window_begins_where_there_is_time_for_the_size_that_the_load_needs(
    batch_formation: str, ids: Iterable[int]
) -> None:
    ms = 1_000_000
    setup = Setup(
        (Model("m", 8, slo_ns=40 * ms),),
        (Worker(0, "w0", ("m",)),),
        (Profile.linear("m", alpha_ms=1, beta_ms=5, max_rows=8),),
    )
    play = Playbook(Eager(setup, EagerOptions.model_validate({"batch_formation": batch_formation})))
    for number in range(13):  # one a millisecond asks for batches of 8
        (play >> RequestArrived(number * ms, Request(number, "m", 1, number * ms, (number + 40) * ms))).commands()
    dispatch = (play >> WorkerReady(30 * ms, 0, 30 * ms)).commands()[0]
    assert isinstance(dispatch, Dispatch)
    assert dispatch.batch.request_ids == tuple(ids)
