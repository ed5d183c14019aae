"""What Symphony's batches wait for, event by event: what the load needs, and what can be promised."""

import pytest

from tests.plugins.symphony.test_policy import (
    KEY,
    LEAST,
    OTHER,
    SLO,
    T,
    arrived,
    fires,
    freed,
    playbook,
    profile,
    run,
    timer,
    workers,
)
from tidegate.api import (
    CancelTimer,
    Dispatch,
    Drop,
    Model,
    Profile,
    RequestArrived,
    RequestCancelled,
    SetTimer,
    Setup,
    TimerFired,
    Worker,
    WorkerJoined,
    WorkerLost,
)
from tidegate.testing import Playbook
from tidegate_symphony.policy import Symphony, SymphonyOptions

# Adaptive deferral ----------------------------------------------------------------------------------------------------


def crowd(play: Playbook, rows: int, *, model: str = "m", at: float = 0, frees: int = 9) -> None:
    """Let many rows arrive, so that the load is large; all of them are gone again, and so many workers are idle."""
    waiting, busy = set(), []
    for number in range(1000 * (1 + ord(model[0])), 1000 * (1 + ord(model[0])) + rows):
        waiting.add(number)
        for command in (play >> arrived(number, at, model=model, due=10**6)).commands():
            if isinstance(command, Dispatch):
                waiting -= set(command.batch.request_ids)
                busy.append(command.batch.stages[0].worker_id)
    for number in waiting:
        (play >> RequestCancelled(round(at * T), number)).commands()
    for worker in busy[:frees]:
        assert play >> freed(at, worker)


def answers(play: Playbook, *requests: RequestArrived) -> list[int | tuple[int, ...]]:
    """What each request is answered with: the instant of a timer, or the requests of a batch that starts."""
    given: list[int | tuple[int, ...]] = []
    for request in requests:
        command = (play >> request).commands()[0]
        assert isinstance(command, SetTimer | Dispatch)
        given.append(command.at_ns // T if isinstance(command, SetTimer) else command.batch.request_ids)
    return given


def test_where_batches_of_one_bear_the_load_nobody_waits_for_an_idle_worker() -> None:
    assert (
        playbook(*workers(2), deferral="adaptive")
        >> arrived(1, 0)
        << run(0, [1], 0, 0)
        << CancelTimer(KEY)
        >> arrived(2, 1)
        << run(1, [2], 1, 1)
        << CancelTimer(KEY)
    )


def test_what_found_no_idle_worker_shares_a_batch_on_the_next() -> None:
    assert (
        playbook(*workers(1), deferral="adaptive")
        >> arrived(1, 0)
        << run(0, [1], 0, 0)
        << CancelTimer(KEY)
        >> arrived(2, 1)
        << timer(7, after=True)  # 13 - l(1)
        >> arrived(3, 2)
        << timer(6, after=True)
        >> freed(6, 0)
        << run(1, [2, 3], 0, 6)
        << CancelTimer(KEY)
    )


def test_to_consolidate_is_to_wait_though_workers_are_idle() -> None:
    play = playbook(*workers(2), deferral="adaptive", pack_workers=True)
    assert play >> arrived(1, 0) << timer(5) >> arrived(2, 1) << timer(4)


def test_nobody_is_held_for_longer_than_a_second_in_which_nobody_comes() -> None:
    """A client may have all the time in the world: that is no reason to leave it alone on an idle worker."""
    ages = 10**12
    assert (
        playbook(*workers(2), deferral="adaptive", pack_workers=True)
        >> arrived(1, 0, due=ages)
        << timer(1000)
        >> arrived(2, 500, due=ages)
        << timer(1500)
        >> fires(1500)
        << run(0, [1, 2], 0, 1500)
        << CancelTimer(KEY)
    )
    play = playbook(*workers(2), deferral="adaptive")
    crowd(play, 40)
    assert answers(play, arrived(1, 10, due=ages)) == [1010], "what was needed a second ago is not needed any more"


def test_a_batch_waits_for_what_the_load_needs() -> None:
    """0.4 rows a t: alone they would ask for 2.4 of two workers, in pairs for 1.4."""
    play = playbook(*workers(2), deferral="adaptive")
    crowd(play, 40)
    assert answers(play, arrived(1, 10), arrived(2, 11)) == [10 + 12 - 7, (1, 2)]
    crowded = playbook(*workers(2), deferral="frontrun")
    crowd(crowded, 40)
    assert answers(crowded, arrived(1, 10), arrived(2, 11)) == [15, 14], "the paper's goes on waiting"


def test_where_no_size_bears_the_load_a_batch_waits_while_that_pays() -> None:
    """After a second 0.93 rows a t: λβ is 4.7 rows, with nobody else who would use the worker."""
    play = playbook(*workers(1), deferral="adaptive")
    crowd(play, 1600)
    same = [arrived(number, 1000) for number in range(1, 6)]
    assert answers(play, *same) == [1005, 1004, 1003, 1002, (1, 2, 3, 4, 5)]


@pytest.mark.parametrize(
    ("idle", "answer"),
    [
        (1, [(1,)]),  # the last idle worker: 2 * 5 / 25 rows
        (5, [1005, (1, 2)]),  # one of five: 2 * 5 / (25 / 5) = 2 rows
    ],
)
def test_how_long_a_batch_waits_depends_on_who_else_would_use_the_worker(
    idle: int, answer: list[int | tuple[int, ...]]
) -> None:
    """Of two models come, after a second, nearly two rows a t each, which five workers do not bear."""
    play = playbook(*workers(5), deferral="adaptive", contention_weight=25)
    crowd(play, 3400, model="n")
    crowd(play, 3400, frees=idle)
    assert answers(play, *(arrived(number, 1000) for number in range(1, 1 + len(answer)))) == answer


def test_the_load_of_other_workers_is_nobodys_business() -> None:
    apart = Worker(0, "w0", ("m",)), Worker(1, "w1", ("n",))
    answered = []
    for of in (apart, workers(2)):
        play = playbook(*of, deferral="adaptive", contention_weight=25)
        crowd(play, 8)
        crowd(play, 3200, model="n")
        answered.append(answers(play, arrived(1, 1000, model="n")) + answers(play, arrived(2, 1000)))
    assert answered == [[1005, (2,)], [(1,), (2,)]], "where they share workers, m would use what n keeps idle"


def test_a_worker_more_bears_what_one_fewer_did_not() -> None:
    play = playbook(*workers(1), deferral="adaptive")
    crowd(play, 24)
    assert answers(play, arrived(1, 10)) == [15]
    for number in (1, 2):
        (play >> WorkerJoined(11 * T, Worker(number, f"w{number}", ("m",)))).commands()
    assert answers(play, arrived(2, 12)) == [(1, 2)]
    for number in (1, 2):
        (play >> WorkerLost(13 * T, number)).commands()
    (play >> freed(14, 0)).commands()
    assert answers(play, arrived(3, 14)) == [14 + 12 - 7]


# What is expected, and what is planned --------------------------------------------------------------------------------


def doubtful(*of: Worker, planned: int) -> Playbook:
    """`m` is expected to take b + 5, as ever, and planned to take so many times as long."""
    expected = profile("m").expected
    uncertain = Profile("m", "default", expected, tuple(planned * taken_ns for taken_ns in expected))
    world = Setup((Model("m", 8, SLO),), of, (uncertain,))
    return Playbook(Symphony(world, SymphonyOptions()))


def test_what_can_be_promised_to_nobody_runs_on_an_idle_worker_all_the_same() -> None:
    """It is planned to take 18, with 12 left, and expected to take 6."""
    assert (
        doubtful(*workers(1, "m"), planned=3)
        >> arrived(1, 0)
        << run(0, [1], 0, 0, times=3)
        << CancelTimer(KEY)
        >> arrived(2, 1)
        << timer(7, after=True)  # it is waited for a worker until it is expected to be late: 13 - 6
        >> freed(7, 0)
        << run(1, [2], 0, 7, times=3)
        << CancelTimer(KEY)
    )


def test_what_is_expected_to_be_late_is_tried_and_dropped_only_when_it_cannot_be_on_time() -> None:
    for tried in (True, False):
        play = doubtful(*workers(1, "m"), planned=3)
        assert play >> arrived(1, 0) << run(0, [1], 0, 0, times=3) << CancelTimer(KEY)
        assert play >> arrived(2, 0) << timer(6, after=True) >> fires(6)
        assert play >> TimerFired(6 * T + 1, KEY) << timer(12 - LEAST, after=True)
        if tried:
            assert play >> freed(8, 0) << run(1, [2], 0, 8, times=3) << CancelTimer(KEY)
        else:
            assert (
                play
                >> TimerFired(round((12 - LEAST) * T) + 1, KEY)
                << Drop(2, "deadline_unreachable")
                << CancelTimer(KEY)
            )


def test_what_can_only_be_tried_comes_after_what_is_expected_to_be_on_time() -> None:
    play = playbook(*workers(1, "m", "n"), deferral="adaptive")
    assert play >> arrived(1, 0) << run(0, [1], 0, 0) << CancelTimer(KEY)
    assert play >> arrived(2, 0) << timer(6, after=True)
    assert play >> TimerFired(6 * T + 1, KEY) << timer(12 - LEAST, after=True)
    assert play >> arrived(3, 7, model="n") << timer(13, OTHER, after=True)
    assert play >> freed(8, 0) << run(1, [3], 0, 8, model="n") << CancelTimer(OTHER)


def test_nobody_joins_who_would_break_a_promise_and_everybody_does_where_there_is_none() -> None:
    """One is planned to take 12 of the 12 that there are, two 14."""
    play = doubtful(*workers(2, "m"), planned=2)
    assert answers(play, arrived(1, 0), arrived(2, 0)) == [(1,), (2,)]
    assert (
        play
        >> arrived(3, 1)
        << timer(1, after=True)
        >> arrived(4, 1)
        >> TimerFired(T + 1, KEY)
        << timer(6, after=True)  # 13 - 7: two are expected to be on time until then
        >> freed(5, 0)
        << run(2, [3, 4], 0, 5, times=2)
        << CancelTimer(KEY)
    )
