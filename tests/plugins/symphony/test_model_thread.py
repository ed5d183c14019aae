"""When a gathered batch may start, with l(b) = b + 5 and deadlines in the same unit."""

from math import inf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.api import NEVER_NS, Model, Profile, Request
from tidegate.toolkit import ArrivalRate, Gathering
from tidegate_symphony.latency_bounds import LatencyBounds, QueueOutlook
from tidegate_symphony.model_thread import ModelThread

EXACT = Profile("m", "default", tuple(rows + 5 for rows in range(1, 9)))
OUTLOOK = QueueOutlook(LatencyBounds.of(EXACT, 0.99), workers=2, fixed_cost_ns=5, most_rows=8)
Plan = tuple[int, int, int, int, int]
"""(start, count, rows, exec, latest) of a candidate."""


def thread_of(*deadlines: int, rows: int = 1, slo_ns: int | None = 12, rate: ArrivalRate | None = None) -> ModelThread:
    model, gathering = Model("m", 8, slo_ns), Gathering(reserve_ns=0, fills=True)
    thread = ModelThread(("m", "", ""), model, gathering, rate or ArrivalRate(0))
    for number, due_ns in enumerate(deadlines):
        thread.push(Request(number, "m", rows, arrival_ns=number, deadline_ns=due_ns))
    return thread


def plan_of(thread: ModelThread, now_ns: int = 0) -> Plan:
    candidate = thread.update(OUTLOOK, now_ns, inf)
    return candidate.start, candidate.count, candidate.rows, candidate.exec_ns, candidate.latest_ns


@pytest.mark.parametrize(
    ("deadlines", "expected"),
    [
        ((12,), (0, 1, 1, 5, 6)),
        ((12, 13, 14, 15), (0, 4, 4, 2, 3)),
        ((8, 20, 20, 20), (0, 3, 3, 0, 0)),  # the head's frontrun moment has passed
        ((20, 6, 20), (0, 1, 1, 0, 0)),  # who is in a hurry goes first
        ((30,) * 9, (0, 8, 8, 0, 17)),  # full: nothing to wait for
    ],
)
def test_it_waits_until_one_more_could_not_join(deadlines: tuple[int, ...], expected: Plan) -> None:
    assert plan_of(thread_of(*deadlines)) == expected


def test_who_is_due_sooner_stands_before_those_who_came_earlier_and_who_has_ages_where_others_would() -> None:
    def ids(*deadlines: int, slo_ns: int | None = 12) -> list[int]:
        return [request.id for request in thread_of(*deadlines, slo_ns=slo_ns)]

    assert ids(12, 13, 9, 15) == [2, 0, 1, 3]
    assert ids(12, 10**18, 14, 15) == [0, 1, 2, 3], "it would wait for ever behind whoever comes"
    assert ids(NEVER_NS, 5, NEVER_NS, slo_ns=None) == [0, 1, 2], "nobody is in a hurry by the model's word"


def test_rows_count_rather_than_requests() -> None:
    assert plan_of(thread_of(15, 15, 15, rows=3)) == (0, 2, 6, 0, 4), "the third does not fit: the batch is full"
    assert plan_of(thread_of(15, 15, rows=3)) == (0, 2, 6, 3, 4), "a request of one or two rows could still join"


def test_a_batch_that_no_request_fits_into_does_not_wait() -> None:
    rate = ArrivalRate(0)
    rate.observe(0, rows=3)
    assert plan_of(thread_of(15, 15, rows=3, rate=rate)) == (0, 2, 6, 0, 4)
    assert plan_of(thread_of(15, rows=3, rate=rate)) == (0, 1, 3, 4, 7), "the next has three rows: 15 - l(6)"


def test_smaller_requests_from_behind_fill_a_batch() -> None:
    thread = thread_of(30, 30, rows=5)
    thread.push(Request(2, "m", 2, arrival_ns=2, deadline_ns=30))
    thread.push(Request(3, "m", 2, arrival_ns=3, deadline_ns=30))
    thread.push(Request(4, "m", 1, arrival_ns=4, deadline_ns=30))
    candidate = thread.update(OUTLOOK, 4, inf)
    assert (candidate.start, candidate.count, candidate.rows, candidate.fillers) == (0, 1, 8, (2, 4))
    assert thread.bring_batch_forward(candidate) == 3
    assert [request.id for request in thread.pop(3)] == [0, 2, 4]


def test_a_newcomer_that_does_not_fit_ends_the_wait() -> None:
    thread = thread_of(30, rows=5)
    plan_of(thread)
    large = Request(1, "m", 4, arrival_ns=1, deadline_ns=30)
    thread.push(large)
    assert not thread.joins(large, 1, inf)
    assert plan_of(thread, 1) == (0, 1, 5, 1, 20)


def test_without_an_slo_or_a_deadline_there_is_nothing_to_wait_for() -> None:
    assert plan_of(thread_of(NEVER_NS, NEVER_NS, slo_ns=None), 7) == (0, 2, 2, 7, NEVER_NS)
    assert plan_of(thread_of(NEVER_NS), 7) == (0, 1, 1, 7, NEVER_NS)
    assert plan_of(thread_of(20, slo_ns=None), 7) == (0, 1, 1, 7, 14)


def test_enough_is_enough() -> None:
    assert thread_of(30, 30, 30).update(OUTLOOK, 0, enough_rows=4).exec_ns == 30 - 9
    assert thread_of(30, 30, 30).update(OUTLOOK, 0, enough_rows=3).exec_ns == 0


def test_a_promise_to_the_head_does_not_keep_a_batch_small() -> None:
    """Two rows could be promised; eight are expected to take 27, which is on time for all, and hardly longer."""
    steep = Profile("m", "default", tuple(range(20, 28)), tuple(range(30, 46, 2)))
    outlook = QueueOutlook(LatencyBounds.of(steep, 0.99), workers=1, fixed_cost_ns=20, most_rows=8)
    waiting = (32, 40, 41, 42, 43, 44, 45, 46)
    assert thread_of(*waiting, slo_ns=50).update(outlook, 0, inf).rows == 8


def test_what_is_less_sure_has_to_bring_more_rows_on_time() -> None:
    """Two rows take twice as long as one: nothing is gained by risking the first."""
    profile = Profile("m", "default", (10, 20, 30, 40), (12, 25, 38, 50))
    outlook = QueueOutlook(LatencyBounds.of(profile, 0.99), workers=1, fixed_cost_ns=0, most_rows=4)
    assert thread_of(21, 22, 23, 24, slo_ns=50).update(outlook, 0, inf).rows == 1


def test_where_times_hardly_vary_nothing_is_risked() -> None:
    """What is expected may itself be a little short: a batch up to the last moment would be late as a whole."""
    profile = Profile("m", "default", tuple(range(200, 208)), tuple(range(210, 218)))
    outlook = QueueOutlook(LatencyBounds.of(profile, 0.99), workers=1, fixed_cost_ns=20, most_rows=8)
    assert thread_of(211, 240, 240, 240, slo_ns=500).update(outlook, 0, inf).rows == 2


def test_what_can_only_be_tried_is_tried_with_all_that_might_be_on_time() -> None:
    """An expectation may be wrong: of batches of one row alone nobody learns that."""
    assert plan_of(thread_of(5, 6, 6, 6))[:3] == (0, 4, 4)


@example([(0, 1, 12)] * 3 + [(0, 3, 12)] * 2 + [(0, 1, 12)])  # the last fills the row that the one before it leaves
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(6, 40)), min_size=1, max_size=12))
def test_joining_one_by_one_is_gathering_all_at_once(arrivals: list[tuple[int, int, int]]) -> None:
    thread = thread_of()
    now_ns = 0
    for number, (gap_ns, rows, left_ns) in enumerate(arrivals):
        now_ns += gap_ns
        request = Request(number, "m", rows, now_ns, now_ns + left_ns)
        thread.push(request)
        if thread.count_hopeless(OUTLOOK, now_ns):
            return
        if thread.joins(request, now_ns, inf):
            candidate = thread.candidate
            assert candidate is not None
            joined = (candidate.count, candidate.rows, candidate.due_ns, candidate.latest_ns)
            anew = thread.update(OUTLOOK, now_ns, inf)
            assert joined == (anew.count, anew.rows, anew.due_ns, anew.latest_ns)
        else:
            thread.update(OUTLOOK, now_ns, inf)
