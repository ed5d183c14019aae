"""When a gathered batch may start, with l(b) = b + 5 and deadlines in the same unit."""

import pytest

from tidegate.api import NEVER, Gathering, Model, Profile, Request, RequestQueue
from tidegate_symphony.model_thread import Candidate

PROFILE = Profile("m", "default", tuple(rows + 5 for rows in range(1, 9)))


def candidate(*deadlines: int, now_ns: int = 0, rows: int = 1, slo_ns: int | None = 12) -> Candidate:
    waiting = RequestQueue(("m", ""), Model("m", 8, slo_ns))
    for number, due_ns in enumerate(deadlines):
        waiting.push(Request(number, "m", rows, arrival_ns=number, deadline_ns=due_ns))
    batch = Gathering(reserve_ns=0).keep_head(waiting, PROFILE, now_ns)
    assert batch is not None
    return Candidate.of(batch, waiting, PROFILE, now_ns)


@pytest.mark.parametrize(
    ("deadlines", "expected"),
    [
        ((12,), Candidate(0, 1, 1, exec_ns=5, latest_ns=6)),
        ((12, 13, 14, 15), Candidate(0, 4, 4, exec_ns=2, latest_ns=3)),
        ((8, 20, 20, 20), Candidate(0, 3, 3, exec_ns=0, latest_ns=0)),  # the head's frontrun moment has passed
        ((20, 6, 20), Candidate(0, 1, 1, exec_ns=13, latest_ns=14)),
        ((30,) * 9, Candidate(0, 8, 8, exec_ns=0, latest_ns=17)),  # full: nothing to wait for
    ],
)
def test_it_waits_until_one_more_could_not_join(deadlines: tuple[int, ...], expected: Candidate) -> None:
    assert candidate(*deadlines) == expected


def test_rows_count_rather_than_requests() -> None:
    assert candidate(15, 15, 15, rows=3) == Candidate(0, 2, 6, exec_ns=3, latest_ns=4)


def test_without_an_slo_or_a_deadline_there_is_nothing_to_wait_for() -> None:
    assert candidate(NEVER, NEVER, slo_ns=None, now_ns=7) == Candidate(0, 2, 2, 7, NEVER)
    assert candidate(NEVER, now_ns=7) == Candidate(0, 1, 1, 7, NEVER)
    assert candidate(20, slo_ns=None, now_ns=7) == Candidate(0, 1, 1, 7, 14)
