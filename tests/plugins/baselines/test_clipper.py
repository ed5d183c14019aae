"""Clipper, event by event: how the batch size is found."""

from tests.arrivals import Arrivals
from tidegate.api import Batch, Dispatch, Drop, Model, Profile, Setup, Stage, StageFinished, Worker, WorkerReady
from tidegate.testing import Playbook
from tidegate_baselines.clipper import Clipper, ClipperOptions

SLO = 100
SETUP = Setup(
    models=(Model("m", 4, slo_ns=SLO), Model("free", 4)),
    workers=(Worker(0, "w0", ("free", "m")),),
    profiles=tuple(Profile(name, "default", (10, 20, 30, 40)) for name in ("m", "free")),
)
arrived = Arrivals(slo_ns=10_000)


def playbook(**options: float) -> Playbook:
    return Playbook(Clipper(SETUP, ClipperOptions.model_validate(options)))


def run(batch: int, *request_ids: int, at: int) -> Dispatch:
    return Dispatch(Batch(batch, "m", request_ids, (Stage(0, "m", at, 10 * len(request_ids)),)))


def took(batch: int, started_ns: int, ended_ns: int) -> StageFinished:
    return StageFinished(ended_ns, batch, 0, 0, started_ns, ended_ns)


def freed(now_ns: int) -> WorkerReady:
    return WorkerReady(now_ns, 0, now_ns)


def test_the_size_rises_while_full_batches_take_no_longer_than_the_slo() -> None:
    assert (
        playbook()
        >> arrived(0, 0)
        << run(0, 0, at=0)
        >> arrived(1, 1)
        >> arrived(2, 2)
        >> arrived(3, 3)
        >> arrived(4, 4)
        >> took(0, 0, SLO)
        >> freed(SLO)
        << run(1, 1, 2, at=SLO)
        >> took(1, SLO, 2 * SLO)
        >> freed(2 * SLO)
        << run(2, 3, 4, at=2 * SLO)  # it might have had three
        >> arrived(5, 210)
        >> took(2, 2 * SLO, 3 * SLO)
        >> freed(3 * SLO)
        << run(3, 5, at=3 * SLO)
    )


def test_a_batch_that_takes_longer_makes_the_next_smaller_by_a_share() -> None:
    assert (
        playbook(increase_rows=3, backoff_factor=0.3)
        >> arrived(0, 0)
        << run(0, 0, at=0)
        >> arrived(1, 1)
        >> arrived(2, 2)
        >> arrived(3, 3)
        >> arrived(4, 4)
        >> arrived(5, 5)
        >> arrived(6, 6)
        >> took(0, 0, 10)
        >> freed(10)
        << run(1, 1, 2, 3, 4, at=10)
        >> took(1, 10, 10 + SLO + 1)
        >> arrived(7, 111)
        >> freed(111)
        << run(2, 5, 6, at=111)  # 0.7 * 4
    )


def test_what_waited_beyond_its_deadline_is_dropped_when_a_worker_looks() -> None:
    short = Arrivals(slo_ns=20)
    assert (
        playbook()
        >> short(0, 0)
        << run(0, 0, at=0)
        >> short(1, 1)
        >> short(2, 10)
        >> took(0, 0, 25)
        >> freed(25)
        << Drop(1, "deadline_unreachable")
        << run(1, 2, at=25)
    )


def test_a_batch_that_was_not_full_teaches_no_larger_size() -> None:
    assert (
        playbook()
        >> arrived(0, 0)
        << run(0, 0, at=0)
        >> took(0, 0, 10)
        >> freed(10)
        >> arrived(1, 11)  # the size is two from now on
        << run(1, 1, at=11)
        >> took(1, 11, 20)
        >> freed(20)
        >> arrived(2, 21)
        << run(2, 2, at=21)
        >> arrived(3, 22)
        >> arrived(4, 22)
        >> arrived(5, 22)
        >> took(2, 21, 30)
        >> freed(30)
        << run(3, 3, 4, at=30)
    )
