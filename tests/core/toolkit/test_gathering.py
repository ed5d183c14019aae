"""Gathering a batch out of one queue, with l(b) = b + 5 and deadlines in the same unit."""

import pytest

from tidegate.api import NEVER_NS, Model, Profile, Request
from tidegate.toolkit import FormedBatch, Gathering, RequestQueue

PROFILE = Profile("m", "default", tuple(rows + 5 for rows in range(1, 9)))
GATHERING = Gathering(reserve_ns=0)


def queue(*deadlines: int, rows: int = 1) -> RequestQueue:
    waiting = RequestQueue(("m", "", ""), Model("m", 8, 12))
    for number, due_ns in enumerate(deadlines):
        waiting.push(Request(number, "m", rows, arrival_ns=number, deadline_ns=due_ns))
    return waiting


@pytest.mark.parametrize(
    ("deadlines", "gathered"),
    [
        ((12,), FormedBatch(0, 1, 1, due_ns=12)),
        ((12, 13, 14, 15), FormedBatch(0, 4, 4, due_ns=12)),
        ((8, 20, 20, 20), FormedBatch(0, 3, 3, due_ns=8)),  # the head lets only two others join
        ((20, 8, 20, 20), FormedBatch(0, 3, 3, due_ns=8)),  # so does a tighter one behind it
        ((20, 6, 20), FormedBatch(0, 1, 1, due_ns=20)),  # one that cannot join ends the run
        ((30,) * 9, FormedBatch(0, 8, 8, due_ns=30)),  # full
        ((NEVER_NS, NEVER_NS), FormedBatch(0, 2, 2, due_ns=NEVER_NS)),
        ((5,), None),
    ],
)
def test_keep_head(deadlines: tuple[int, ...], gathered: FormedBatch | None) -> None:
    assert GATHERING.keep_head(queue(*deadlines), PROFILE, now_ns=0) == gathered


@pytest.mark.parametrize(
    ("target", "start", "count"),
    [
        (1, 0, 1),
        (2, 2, 4),  # the first two leave time for one each
        (4, 2, 4),
        (8, 2, 4),  # no more than four are there: they need not leave time for eight
    ],
)
def test_a_window_skips_what_keeps_the_batch_below_its_target(target: int, start: int, count: int) -> None:
    gathered = GATHERING.window(queue(6, 6, 20, 20, 20, 20), PROFILE, 0, target)
    assert gathered is not None
    assert (gathered.start, gathered.count) == (start, count)


def test_a_window_settles_for_what_is_left() -> None:
    assert GATHERING.window(queue(6, 6), PROFILE, 0, 4) == FormedBatch(1, 1, 1, due_ns=6)
    assert GATHERING.window(queue(5, 5), PROFILE, 0, 4) is None


def test_rows_count_rather_than_requests() -> None:
    assert GATHERING.keep_head(queue(15, 15, 15, rows=3), PROFILE, 0) == FormedBatch(0, 2, 6, due_ns=15)


def test_a_window_asks_for_time_for_whole_requests() -> None:
    """Two of five rows do not fit into eight: the head has time for what its batch would be."""
    gathered = GATHERING.window(queue(10, 20, 20, rows=5), PROFILE, 0, 8)
    assert gathered == FormedBatch(0, 1, 5, due_ns=10)


def test_smaller_requests_fill_the_rows_that_a_run_leaves() -> None:
    waiting = queue(30, 30, rows=5)
    for number, rows, due_ns in ((2, 4, 30), (3, 2, 11), (4, 2, 30), (5, 1, 13)):
        waiting.push(Request(number, "m", rows, arrival_ns=number, deadline_ns=due_ns))
    fills = Gathering(reserve_ns=0, fills=True)
    assert GATHERING.keep_head(waiting, PROFILE, 0) == FormedBatch(0, 1, 5, due_ns=30)
    assert fills.keep_head(waiting, PROFILE, 0) == FormedBatch(0, 1, 8, due_ns=13, fillers=(4, 5)), (
        "3 has too little time"
    )


def test_a_batch_can_be_limited_but_a_single_request_runs_however_large() -> None:
    assert GATHERING.keep_head(queue(30, 30, 30), PROFILE, 0, most_rows=2) == FormedBatch(0, 2, 2, due_ns=30)
    assert GATHERING.window(queue(30, 30, rows=3), PROFILE, 0, 2, most_rows=2) == FormedBatch(0, 1, 3, due_ns=30)


def test_the_reserve_shortens_every_deadline() -> None:
    gathering = Gathering(reserve_ns=2)
    assert gathering.keep_head(queue(14), PROFILE, 0) == GATHERING.keep_head(queue(12), PROFILE, 0)
    (request,) = queue(8)
    assert not gathering.is_hopeless(request, PROFILE, now_ns=0)
    assert gathering.is_hopeless(request, PROFILE, now_ns=1)
