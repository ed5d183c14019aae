"""Batching by timeout, event by event, with l(b) = b + 5 ms and an SLO of 20 ms."""

from tests.arrivals import Arrivals
from tidegate.api import (
    Batch,
    Dispatch,
    Model,
    Profile,
    SetTimer,
    Setup,
    Stage,
    TimerFired,
    Worker,
    WorkerReady,
    ms_to_ns,
)
from tidegate.testing import Playbook
from tidegate_baselines.timeout import Timeout, TimeoutOptions

KEY = ("m", "", "")


def playbook(workers: int = 1, **options: float) -> Playbook:
    setup = Setup(
        models=(Model("m", 4, slo_ns=ms_to_ns(20)),),
        workers=tuple(Worker(number, f"w{number}", ("m",)) for number in range(workers)),
        profiles=(Profile.linear("m", alpha_ms=1, beta_ms=5, max_rows=4),),
    )
    return Playbook(Timeout(setup, TimeoutOptions.model_validate(options)))


arrived = Arrivals(slo_ns=ms_to_ns(20), unit_ns=ms_to_ns(1))


def timer(at_ms: float, *, after: bool = False) -> SetTimer:
    return SetTimer(KEY, ms_to_ns(at_ms) + after)


def fires(at_ms: float) -> TimerFired:
    return TimerFired(ms_to_ns(at_ms), KEY)


def freed(at_ms: float) -> WorkerReady:
    return WorkerReady(ms_to_ns(at_ms), 0, ms_to_ns(at_ms))


def run(batch: int, *ids: int, at_ms: float) -> Dispatch:
    return Dispatch(Batch(batch, "m", ids, (Stage(0, "m", ms_to_ns(at_ms), ms_to_ns(len(ids) + 5)),)))


def test_a_batch_starts_when_its_oldest_request_has_waited() -> None:
    assert (
        playbook(timeout_ms=3)
        >> arrived(0, 0)
        << timer(3)
        >> arrived(1, 2)
        << timer(3)
        >> fires(3)
        << run(0, 0, 1, at_ms=3)
        >> arrived(2, 4)
        << timer(7)
        >> fires(7)
        << timer(4 + 20 - 6, after=True)  # no worker is idle: until it is hopeless
        >> freed(10)
        << run(1, 2, at_ms=10)
    )


def test_a_freed_worker_stays_idle_until_then() -> None:
    assert (
        playbook(timeout_ms=3)
        >> arrived(0, 0)
        << timer(3)
        >> fires(3)
        << run(0, 0, at_ms=3)
        >> arrived(1, 8)
        << timer(11)
        >> freed(9)
        >> fires(11)
        << run(1, 1, at_ms=11)
    )


def test_a_full_batch_does_not_wait() -> None:
    play = playbook(timeout_ms=3) >> arrived(0, 0) << timer(3) >> arrived(1, 1) << timer(3) >> arrived(2, 1) << timer(3)
    assert play >> arrived(3, 2) << run(0, 0, 1, 2, 3, at_ms=2)


def test_the_timeout_can_be_a_share_of_the_slo() -> None:
    assert playbook(timeout_ms=0, slo_share=0.25) >> arrived(0, 0) << timer(5)


def test_a_timeout_of_nothing_is_eager() -> None:
    assert playbook(timeout_ms=0) >> arrived(0, 0) << run(0, 0, at_ms=0)
