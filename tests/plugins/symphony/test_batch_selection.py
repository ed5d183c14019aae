"""Which run of a queue is expected to bring most requests on time per time that it takes."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate.api import Model, Profile, Request
from tidegate.toolkit import FormedBatch, Gathering, RequestQueue
from tidegate_symphony.batch_selection import SelectedBatch, most_on_time
from tidegate_symphony.latency_bounds import LatencyBounds

STEEP = LatencyBounds.of(Profile("m", "default", tuple(range(20, 28)), tuple(range(30, 46, 2))), 0.99)
"""Batching pays much: eight rows take 27, one takes 20, and each may take half as long again."""
GATHERING = Gathering(reserve_ns=0, fills=True)


def queue_of(*requests: tuple[int, int]) -> RequestQueue:
    """A queue of requests with these rows and deadlines."""
    queue = RequestQueue(("m", "", ""), Model("m", 8, 50))
    for number, (rows, due_ns) in enumerate(requests):
        queue.push(Request(number, "m", rows, arrival_ns=number, deadline_ns=due_ns))
    return queue


def chosen(queue: RequestQueue, promised: FormedBatch | None = None, *, skips: bool = True) -> FormedBatch | None:
    return most_on_time(queue, STEEP, GATHERING, 0, 8, promised, skips=skips)


def test_a_head_that_is_likely_late_leaves_room_for_a_large_batch() -> None:
    queue = queue_of((1, 12), *[(1, 40)] * 8)
    promised = GATHERING.keep_head(queue, STEEP.least, 0, most_rows=1)
    assert chosen(queue, promised) == FormedBatch(1, 8, 8, 40)
    assert chosen(queue, promised, skips=False) == FormedBatch(0, 6, 6, 12), "as many as the head might be on time with"


def test_a_batch_may_be_larger_than_what_is_expected_allows() -> None:
    """Of eight rows three are on time in 107, of one row not even half a one in 100."""
    flat = LatencyBounds.of(Profile("m", "default", tuple(range(100, 108)), tuple(range(150, 158))), 0.99)
    queue = queue_of(*[(1, 100)] * 8)
    assert most_on_time(queue, flat, GATHERING, 0, 8, None, skips=True) == FormedBatch(0, 8, 8, 100)


def test_rows_that_the_next_request_leaves_are_filled() -> None:
    queue = queue_of(*[(1, 60)] * 5, (5, 60), (2, 60))
    assert chosen(queue) == FormedBatch(0, 5, 7, 60, fillers=(6,))


def test_larger_requests_are_left_behind_where_smaller_ones_bring_more() -> None:
    """Three requests of eight rows take 27, four of one row each take 23."""
    queue = queue_of((1, 60), (1, 60), (6, 60), (1, 60), (1, 60))
    assert chosen(queue) == SelectedBatch(0, 4, 4, 60, ids=(0, 1, 3, 4), promises=STEEP)
    assert chosen(queue, skips=False) == FormedBatch(0, 3, 8, 60)
    assert chosen(queue_of((1, 60), (2, 60), (1, 60))) == FormedBatch(0, 3, 4, 60), "all fit"


def test_smaller_requests_are_compared_with_a_run_that_is_filled() -> None:
    """Four requests of six rows take 25, four of one row each 23, and five of seven rows, the last one behind, 26."""
    queue = queue_of((1, 60), (1, 60), (1, 60), (3, 60), (5, 60), (1, 60))
    assert chosen(queue) == FormedBatch(0, 4, 7, 60, fillers=(5,))


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 60)), min_size=1, max_size=12),
    st.booleans(),
    st.integers(1, 8),
)
def test_no_batch_is_worse_than_the_promised_one_and_none_holds_a_lost_request(
    requests: list[tuple[int, int]], skips: bool, promised_rows: int
) -> None:
    queue = queue_of(*requests)
    promised = GATHERING.keep_head(queue, STEEP.profile, 0, most_rows=promised_rows)

    def rate(batch: FormedBatch | None) -> float:
        if batch is None:
            return 0.0
        ids = batch.ids if isinstance(batch, SelectedBatch) else batch.fillers
        run = [] if isinstance(batch, SelectedBatch) else [*queue][batch.start : batch.start + batch.count]
        run += [request for request in queue if request.id in ids]
        assert batch.due_ns == min(request.deadline_ns for request in run)
        left_ns = [(1.0, request.deadline_ns) for request in run]
        assert batch.rows == sum(request.rows for request in run)
        assert all(request.deadline_ns >= STEEP.profile.lower_bound_ns(batch.rows) for request in run)
        return STEEP.on_time(batch.rows, left_ns) / STEEP.profile.expected_ns(batch.rows)

    found = chosen(queue, promised, skips=skips)
    assert rate(found) > rate(promised) - 1e-9
    assert skips or found is None or found.start == 0
    if skips and any(request.deadline_ns >= STEEP.profile.lower_bound_ns(request.rows) for request in queue):
        assert found is not None
