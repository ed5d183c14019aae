"""Triton's batcher as a policy: its instances, event by event, with l(b) = 10 b in ns; options are in ms."""

from typing import Any

from tests.arrivals import Arrivals
from tidegate.api import (
    Batch,
    CancelTimer,
    Dispatch,
    Drop,
    Model,
    Profile,
    RequestCancelled,
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
from tidegate_baselines.triton import Triton, TritonOptions

MS = 1_000_000
NO_TIMER = CancelTimer("m")


def playbook(workers: int = 1, *, merge_limit: int | None = None, **options: Any) -> Playbook:
    setup = Setup(
        models=(Model("m", 4, merge_limit=merge_limit), Model("n", 4)),
        workers=tuple(Worker(number, f"w{number}", ("m", "n")) for number in range(workers)),
        profiles=tuple(Profile(name, "default", (10, 20, 30, 40)) for name in "mn"),
    )
    return Playbook(Triton(setup, TritonOptions.model_validate(options)))


arrived = Arrivals()


def run(batch: int, *ids: int, at: int, model: str = "m", worker: int = 0) -> Dispatch:
    return Dispatch(Batch(batch, model, ids, (Stage(worker, model, at, 10 * len(ids)),)))


def freed(now_ns: int, worker: int = 0) -> WorkerReady:
    return WorkerReady(now_ns, worker, now_ns)


def test_an_instance_that_is_free_takes_what_there_is_however_late() -> None:
    assert (
        playbook()
        >> arrived(0, 0)
        << run(0, 0, at=0)
        << NO_TIMER
        >> arrived(1, 1, due_ns=2)
        << NO_TIMER
        >> arrived(2, 2, due_ns=3)
        << NO_TIMER
        >> freed(10)
        << run(1, 1, 2, at=10)
        << NO_TIMER
        << CancelTimer("n")
    )


def test_a_batch_waits_for_a_preferred_size_and_is_woken_after_the_delay() -> None:
    assert (
        playbook(preferred_batch_size=[2], max_queue_delay_ms=5)
        >> arrived(0, 0)
        << SetTimer("m", 5 * MS)
        >> arrived(1, 1)
        << run(0, 0, 1, at=1)
        << NO_TIMER
        >> freed(21)
        << NO_TIMER
        << CancelTimer("n")
        >> arrived(2, 30)
        << SetTimer("m", 5 * MS + 30)
        >> TimerFired(5 * MS + 30, "m")
        << run(1, 2, at=5 * MS + 30)
        << NO_TIMER
    )


def test_of_several_models_the_batch_that_waits_longest() -> None:
    assert (
        playbook()
        >> arrived(0, 0)
        << run(0, 0, at=0)
        << NO_TIMER
        >> arrived(1, 1, "n")
        << CancelTimer("n")
        >> arrived(2, 2)
        << NO_TIMER
        >> freed(10)
        << run(1, 1, at=10, model="n")
        << NO_TIMER
        << CancelTimer("n")
    )


def test_of_several_models_the_one_that_has_had_the_fewest_turns_where_that_is_wanted() -> None:
    assert (
        playbook(queue_order="fewest")
        >> arrived(0, 0)
        << run(0, 0, at=0)
        << NO_TIMER
        >> arrived(1, 1)
        << NO_TIMER
        >> arrived(2, 2, "n")
        << CancelTimer("n")
        >> freed(10)
        << run(1, 2, at=10, model="n")
        << NO_TIMER
        << CancelTimer("n")
        >> arrived(3, 11, "n")
        << CancelTimer("n")
        >> freed(20)
        << run(2, 1, at=20)
        << NO_TIMER
        << CancelTimer("n")
    )


def test_turns_of_before_count() -> None:
    assert (
        playbook(2, queue_order="fewest", models={"n": {"executed": 8}})
        >> arrived(0, 0)
        << run(0, 0, at=0)
        << NO_TIMER
        >> arrived(1, 1)
        << run(1, 1, at=1, worker=1)
        << NO_TIMER
        >> arrived(2, 2, "n")
        << CancelTimer("n")
        >> arrived(3, 3)
        << NO_TIMER
        >> freed(10)
        << run(2, 3, at=10)
        << NO_TIMER
        << CancelTimer("n")
    )


def test_requests_join_until_an_idle_instance_begins() -> None:
    assert (
        playbook(begin_ms=1)
        >> arrived(0, 0)
        << SetTimer("m", MS)
        >> arrived(1, 7)
        << SetTimer("m", MS)
        >> TimerFired(MS, "m")
        << run(0, 0, 1, at=MS)
        << NO_TIMER
        >> arrived(2, MS + 1)
        << NO_TIMER
        >> freed(MS + 20)
        << run(1, 2, at=MS + 20)
        << NO_TIMER
        << CancelTimer("n")
    )


def test_an_instance_that_becomes_free_does_not_wait_for_the_one_that_is_woken() -> None:
    assert (
        playbook(2, begin_ms=1)
        >> arrived(0, 0)
        << SetTimer("m", MS)
        >> TimerFired(MS, "m")
        << run(0, 0, at=MS)
        << NO_TIMER
        >> arrived(1, MS + 5)
        << SetTimer("m", 2 * MS + 5)
        >> freed(MS + 10)
        << run(1, 1, at=MS + 10)
        << NO_TIMER
        << CancelTimer("n")
    )


def test_what_its_queue_policy_forbids_is_dropped() -> None:
    assert (
        playbook(max_queue_size=1, default_timeout_ms=1)
        >> arrived(0, 0)
        << run(0, 0, at=0)
        << NO_TIMER
        >> arrived(1, 1)
        << SetTimer("m", MS + 2)
        >> arrived(2, 2)
        << Drop(2, "queue full")
        >> TimerFired(MS + 2, "m")
        << Drop(1, "timeout")
        << NO_TIMER
    )


def test_models_are_batched_otherwise_where_that_is_said_and_else_as_all_are() -> None:
    book = playbook(max_queue_delay_ms=5, max_queue_size=1, models={"n": {"max_queue_delay_ms": 2}})
    assert (
        book
        >> arrived(0, 0)
        << SetTimer("m", 5 * MS)
        >> arrived(1, 1, "n")
        << SetTimer("n", 2 * MS + 1)
        >> arrived(2, 2, "n")
        << Drop(2, "queue full")
    )


def test_what_nobody_merges_has_no_batcher_that_waits_refuses_or_gives_up() -> None:
    assert (
        playbook(merge_limit=1, max_queue_delay_ms=5, max_queue_size=1, default_timeout_ms=1)
        >> arrived(0, 0)
        << run(0, 0, at=0)
        << NO_TIMER
        >> arrived(1, 1)
        << NO_TIMER
        >> arrived(2, 2)
        << NO_TIMER
        >> freed(2 * MS)
        << run(1, 1, at=2 * MS)
        << NO_TIMER
        << CancelTimer("n")
    )


def test_instances_come_and_go() -> None:
    assert (
        playbook()
        >> arrived(0, 0)
        << run(0, 0, at=0)
        << NO_TIMER
        >> arrived(1, 1)
        << NO_TIMER
        >> arrived(2, 1)
        << NO_TIMER
        >> WorkerLost(2, 0)
        >> RequestCancelled(3, 1)
        << NO_TIMER
        >> WorkerJoined(4, Worker(1, "w1", ("m",)))
        << run(1, 2, at=4, worker=1)
        << NO_TIMER
    )
