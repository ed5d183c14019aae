"""Shepherd's Flex, event by event, with l(b) = b + 5 and an SLO of 40 (of `tight`: 12)."""

from msgspec.structs import replace

from tidegate.api import (
    Batch,
    BatchFailed,
    Dispatch,
    Drop,
    Model,
    Preempt,
    Profile,
    Request,
    RequestArrived,
    SetTimer,
    Setup,
    Stage,
    StageFinished,
    TimerFired,
    Worker,
    WorkerLost,
    WorkerReady,
)
from tidegate.testing import Playbook
from tidegate_baselines.shepherd import Shepherd, ShepherdOptions

MODELS = (Model("m", 8, slo_ns=40), Model("n", 8, slo_ns=40), Model("tight", 8, slo_ns=12))
SLO = {model.name: model.slo_ns or 0 for model in MODELS}


def playbook(workers: int = 1, **options: float | bool) -> Playbook:
    hosts = tuple(SLO)
    setup = Setup(
        models=MODELS,
        workers=tuple(Worker(number, f"w{number}", hosts) for number in range(workers)),
        profiles=tuple(Profile(name, "default", tuple(rows + 5 for rows in range(1, 9))) for name in hosts),
    )
    return Playbook(Shepherd(setup, ShepherdOptions.model_validate(options)))


def request(request_id: int, at: int, model: str = "m") -> Request:
    return Request(request_id, model, 1, at, at + SLO[model])


def arrived(request_id: int, at: int, model: str = "m") -> RequestArrived:
    return RequestArrived(at, request(request_id, at, model))


def again(now_ns: int, old: RequestArrived) -> RequestArrived:
    return RequestArrived(now_ns, old.request)


def hopeless(at: int, model: str = "m") -> SetTimer:
    """What a queue is woken for whose head came at that instant."""
    return SetTimer((model, "", ""), at + SLO[model] - 6 + 1)


def run(batch: int, *ids: int, at: int, model: str = "m", worker: int = 0) -> Dispatch:
    return Dispatch(Batch(batch, model, ids, (Stage(worker, model, at, len(ids) + 5),)))


def finished(now_ns: int, batch: int, worker: int = 0) -> StageFinished:
    return StageFinished(now_ns, batch, 0, worker, 0, now_ns)


def freed(now_ns: int, worker: int = 0) -> WorkerReady:
    return WorkerReady(now_ns, worker, now_ns)


def preempted(now_ns: int, batch: int, worker: int = 0) -> BatchFailed:
    return BatchFailed(now_ns, batch, 0, worker, "preempted", retry=True)


def test_a_worker_that_frees_takes_the_largest_batch_however_urgent_others_are() -> None:
    assert (
        playbook()
        >> arrived(0, 0)
        << run(0, 0, at=0)
        >> arrived(1, 1, "tight")
        << hopeless(1, "tight")
        >> arrived(2, 2, "n")
        << hopeless(2, "n")
        >> arrived(3, 3, "n")
        << hopeless(2, "n")
        >> freed(6)
        << run(1, 2, 3, at=6, model="n")
    )


def test_a_batch_that_runs_makes_way_for_one_three_times_as_large() -> None:
    old = arrived(0, 0)
    assert (
        playbook()
        >> old
        << run(0, 0, at=0)
        >> arrived(1, 1, "n")
        << hopeless(1, "n")
        >> arrived(2, 1, "n")
        << hopeless(1, "n")
        >> arrived(3, 2, "n")
        << hopeless(1, "n")
        << Preempt(0)
        >> arrived(4, 3, "n")  # one worker is enough
        << hopeless(1, "n")
        >> preempted(4, 0)
        >> freed(4)
        << SetTimer(0, 4)
        >> again(4, old)
        << hopeless(0)
        >> TimerFired(4, 0)
        << run(1, 1, 2, 3, 4, at=4, model="n")
        >> freed(13)
        << run(2, 0, at=13)
    )


def test_of_its_own_queue_a_batch_makes_way_for_one_that_includes_it() -> None:
    old = arrived(0, 0)
    assert (
        playbook()
        >> old
        << run(0, 0, at=0)
        >> arrived(1, 1)
        << hopeless(1)
        >> arrived(2, 2)
        << hopeless(1)
        << Preempt(0)
        >> preempted(2, 0)
        >> freed(2)
        << SetTimer(0, 2)
        >> again(2, old)
        << hopeless(0)
        >> TimerFired(2, 0)
        << run(1, 0, 1, 2, at=2)
    )


def test_a_batch_is_not_worth_it_that_could_not_be_on_time() -> None:
    play = playbook() >> arrived(0, 0, "tight") << run(0, 0, at=0, model="tight") >> arrived(1, 1, "tight")
    play = play << hopeless(1, "tight")
    # The one that runs could only be run again alone: until 12 there is no time for three.
    assert play >> arrived(2, 5, "tight") << hopeless(1, "tight")


def test_what_made_way_once_does_not_again() -> None:
    old = arrived(0, 0)
    play = playbook(preempt_ratio=2) >> old << run(0, 0, at=0) >> arrived(1, 1, "n") << hopeless(1, "n")
    play = play >> arrived(2, 1, "n") << hopeless(1, "n") << Preempt(0) >> preempted(2, 0) >> freed(2) << SetTimer(0, 2)
    play = play >> again(2, old) << hopeless(0) >> TimerFired(2, 0) << run(1, 1, 2, at=2, model="n")
    play = play >> finished(9, 1) >> freed(9) << run(2, 0, at=9) >> arrived(3, 10, "n") << hopeless(10, "n")
    assert play >> arrived(4, 10, "n") << hopeless(10, "n")


def test_a_batch_makes_way_for_other_clients_where_it_is_on_time_all_the_same() -> None:
    def of(client: str, request_id: int, at: int, model: str) -> RequestArrived:
        return RequestArrived(at, replace(request(request_id, at, model), client=client))

    def after_two(runs: str) -> Playbook:
        play = playbook(preempt_ratio=2) >> of("a", 0, 0, runs) << run(0, 0, at=0, model=runs)
        return play >> of("b", 1, 1, "n") << hopeless(1, "n") >> of("b", 2, 1, "n") << hopeless(1, "n")

    assert after_two("m") << Preempt(0)
    assert after_two("tight")  # would be done at 14, not at 12


def test_the_ratio_is_an_option() -> None:
    play = playbook(preempt_ratio=2) >> arrived(0, 0) << run(0, 0, at=0) >> arrived(1, 1, "n") << hopeless(1, "n")
    assert play >> arrived(2, 1, "n") << hopeless(1, "n") << Preempt(0)


def test_a_batch_that_finishes_first_is_done() -> None:
    play = playbook(preempt_ratio=2) >> arrived(0, 0) << run(0, 0, at=0) >> arrived(1, 1) << hopeless(1) << Preempt(0)
    assert play >> finished(6, 0) >> freed(6) << run(1, 1, at=6) >> finished(12, 1) >> freed(12)


def test_a_worker_that_is_lost_meanwhile_is_given_nothing() -> None:
    play = (
        playbook(2, preempt_ratio=2) >> arrived(0, 0) << run(0, 0, at=0) >> arrived(1, 0) << run(1, 1, at=0, worker=1)
    )
    play = play >> arrived(2, 1) << hopeless(1) << Preempt(0) >> WorkerLost(2, 0) << hopeless(1) << Preempt(1)
    assert play >> preempted(2, 0) >> finished(6, 1, 1) >> freed(6, 1) << run(2, 2, at=6, worker=1)


def test_as_published_a_queue_stalls_behind_its_first_hopeless_request() -> None:
    def after_an_expiry(published: bool) -> Playbook:
        play = playbook(reproduce_published_bug=published) >> arrived(0, 0) << run(0, 0, at=0) >> arrived(1, 1, "tight")
        return play << hopeless(1, "tight")

    mended = after_an_expiry(False) >> TimerFired(8, ("tight", "", "")) << Drop(1, "deadline_unreachable")
    assert mended >> freed(9) >> arrived(2, 10, "tight") << run(1, 2, at=10, model="tight")

    stalled = after_an_expiry(True) >> arrived(2, 7, "tight") << hopeless(7, "tight")
    stalled = stalled >> freed(9) >> arrived(3, 10, "tight") << hopeless(10, "tight")  # the worker is idle
    end = 10 + 12 - 6 + 1
    dropped = [Drop(number, "deadline_unreachable") for number in (1, 2, 3)]
    assert list((stalled >> TimerFired(end, ("tight", "", ""))).commands()) == dropped
