"""Triton's batcher for one model, apart from the instances that take its payloads."""

from typing import Any

import pytest

from tidegate.api import NEVER_NS, Model, Request
from tidegate_baselines.dynamic_batcher import BatcherConfig, DynamicBatcher


def batcher(*preferred: int, **config: int | bool) -> DynamicBatcher:
    options = BatcherConfig(frozenset(preferred or (8,)), **config)  # type: ignore[arg-type]  # each names its own
    return DynamicBatcher(Model("m", 8), options)


def arrive(of: DynamicBatcher, *ids: int, at: int = 0, rows: int = 1, key: str = "", due: int = NEVER_NS) -> list[bool]:
    return [of.push(Request(number, "m", rows, at, due, merge_key=key)) for number in ids]


def form(of: DynamicBatcher, at: int, *, idle: int = 0, instances: int = 1) -> int:
    return of.form(at, instances, idle)


def payloads(of: DynamicBatcher) -> list[tuple[int, ...]]:
    return [tuple(request.id for request in payload.requests) for payload in of.payloads]


def taken(of: DynamicBatcher, at: int) -> tuple[int, ...]:
    return tuple(request.id for request in of.take(at))


def test_without_a_delay_whatever_there_is_goes_and_grows_while_it_waits() -> None:
    of = batcher()
    arrive(of, 1, 2)
    assert form(of, 0) == NEVER_NS
    assert payloads(of) == [(1, 2)]
    arrive(of, 3, at=1)
    form(of, 1)
    assert payloads(of) == [(1, 2, 3)]


def test_a_batch_never_exceeds_the_largest_and_two_may_wait_per_instance() -> None:
    of = batcher()
    arrive(of, *range(20))
    form(of, 0)
    assert payloads(of) == [tuple(range(8)), tuple(range(8, 16))]
    assert taken(of, 0) == tuple(range(8))
    form(of, 0)
    assert payloads(of) == [tuple(range(8, 16)), tuple(range(16, 20))]


@pytest.mark.parametrize("config", [{}, {"max_queue_size": 50}])
def test_until_an_idle_instance_is_woken_requests_join(config: dict[str, int]) -> None:
    of = batcher(begin_ns=10, **config)
    for number in range(7):
        arrive(of, number, at=number)
        assert form(of, number, idle=1) == NEVER_NS
    assert payloads(of) == [tuple(range(7))]
    assert of.payloads[0].begins_ns == 10
    arrive(of, 7, at=10)
    form(of, 10, idle=1)  # it is taken now
    assert payloads(of) == [tuple(range(7))]


def test_what_a_whole_batch_has_no_room_for_wakes_another_instance() -> None:
    of = batcher(begin_ns=10)
    for number in range(9):
        arrive(of, number, at=number)
        form(of, number, instances=2, idle=1)
    assert payloads(of) == [tuple(range(8)), (8,)]
    assert [payload.begins_ns for payload in of.payloads] == [10, 18]


def test_a_preferred_size_goes_at_once_and_no_larger() -> None:
    of = batcher(2, 4)
    arrive(of, *range(7))
    form(of, 0)
    assert payloads(of) == [(0, 1, 2, 3), (4, 5)]


def test_without_a_delay_what_reaches_a_preferred_size_while_it_waits_is_closed() -> None:
    of = batcher(2, 4)
    for number in range(5):
        arrive(of, number)
        form(of, 0, instances=2)
    assert payloads(of) == [(0, 1), (2, 3), (4,)]


def test_another_size_waits_for_more_until_its_oldest_has_waited_long_enough() -> None:
    of = batcher(4, delay_ns=10)
    arrive(of, 1, at=0)
    assert form(of, 0) == 10
    arrive(of, 2, 3, at=4)
    assert form(of, 4) == 10
    assert payloads(of) == []
    form(of, 10)
    assert payloads(of) == [(1, 2, 3)]


def test_with_a_delay_the_batcher_is_not_woken_for_less_than_a_preferred_size() -> None:
    of = batcher(delay_ns=10)
    arrive(of, 1)
    form(of, 0)
    arrive(of, 2)
    form(of, 10)
    assert payloads(of) == [(1, 2)]
    for number in range(3, 10):
        arrive(of, number, at=11)
        form(of, 11)
    assert payloads(of) == [(1, 2)]
    arrive(of, 10, at=11)  # as many as a whole batch: it had none yet when the batcher began to wait
    form(of, 11)
    assert payloads(of) == [tuple(range(1, 9))]


def test_once_a_payload_is_taken_the_batcher_looks_at_what_waits() -> None:
    of = batcher(delay_ns=10)
    arrive(of, 1)
    form(of, 0)
    form(of, 10)
    arrive(of, 2, 3, at=11)
    assert form(of, 12) == NEVER_NS
    assert taken(of, 15) == (1,)
    assert form(of, 15) == 21
    form(of, 21)
    assert payloads(of) == [(2, 3)]


def test_a_preferred_size_does_not_wait() -> None:
    of = batcher(2, delay_ns=10)
    arrive(of, 1, 2, 3)
    form(of, 0, idle=1)
    assert payloads(of) == [(1, 2)]
    assert taken(of, 0) == (1, 2)
    assert form(of, 0) == 10
    assert payloads(of) == []


def test_with_a_delay_a_preferred_size_that_no_instance_takes_is_not_kept() -> None:
    of = batcher(2, delay_ns=10)
    arrive(of, 1, 2, 3)
    form(of, 0)
    assert payloads(of) == [(1, 2, 3)]


def test_after_the_delay_all_that_fits_goes_though_it_is_more_than_any_preferred_size() -> None:
    of = batcher(2, delay_ns=10)
    arrive(of, *range(10))
    form(of, 10)
    assert payloads(of) == [tuple(range(8)), (8, 9)]


def test_rows_count_and_what_would_exceed_every_preferred_size_is_left() -> None:
    of = batcher(4, delay_ns=10)
    arrive(of, 1, 2, 3, rows=3)
    assert form(of, 0, instances=2) == 10
    assert payloads(of) == [(1,), (2,)]


def test_payloads_that_have_waited_too_long_run_together() -> None:
    def two_waiting() -> DynamicBatcher:
        of = batcher(4, delay_ns=10)
        arrive(of, 1, 2, rows=3)
        form(of, 10)
        arrive(of, 3, at=20)
        form(of, 30)
        return of

    assert payloads(two_waiting()) == [(1, 2), (3,)]
    assert taken(two_waiting(), 30) == (1, 2)
    assert taken(two_waiting(), 31) == (1, 2, 3)


def test_another_shape_ends_a_batch() -> None:
    of = batcher(delay_ns=10)
    arrive(of, 1, 2)
    arrive(of, 3, key="wide")
    assert form(of, 0) == 10
    assert payloads(of) == [(1, 2)]
    form(of, 10)
    assert payloads(of) == [(1, 2), (3,)]
    assert taken(of, 99) == (1, 2)


def test_what_times_out_in_the_queue_is_rejected_or_comes_last() -> None:
    rejecting = batcher(timeout_ns=10)
    arrive(rejecting, 1, at=0)
    arrive(rejecting, 2, at=5)
    assert form(rejecting, 5) == 11  # no instance is idle, and a queue policy forbids payloads in advance
    assert payloads(rejecting) == []
    assert rejecting.expire(10) == []
    assert [request.id for request in rejecting.expire(11)] == [1]
    form(rejecting, 11, idle=1)
    assert payloads(rejecting) == [(2,)]

    delaying = batcher(timeout_ns=10, reject=False)
    arrive(delaying, 1, at=0)
    arrive(delaying, 2, at=5)
    assert delaying.expire(11) == []
    form(delaying, 11, idle=1)
    assert payloads(delaying) == [(2, 1)]


def test_a_request_can_only_shorten_its_timeout() -> None:
    of = batcher(timeout_ns=10, allow_timeout_override=True)
    arrive(of, 1, due=3)
    arrive(of, 2, due=99)
    assert [request.id for request in of.expire(4)] == [1]
    assert [request.id for request in of.expire(11)] == [2]


def test_a_full_queue_takes_no_more() -> None:
    of = batcher(max_queue_size=2)
    assert arrive(of, 1, 2, 3) == [True, True, False]


def test_a_cancelled_request_leaves_queue_and_payload() -> None:
    of = batcher(delay_ns=10)
    arrive(of, 1, 2)
    of.remove(1)
    form(of, 10)
    assert payloads(of) == [(2,)]
    of.remove(2)
    assert payloads(of) == []


class _Watched:
    """A request that counts how often anybody looks at any."""

    looks = 0

    def __init__(self, number: int) -> None:
        self._request = Request(number, "m", 1, 0, 500 + number % 7)

    def __getattr__(self, name: str) -> Any:
        _Watched.looks += 1
        return getattr(self._request, name)


@pytest.mark.parametrize(
    "config", [{}, {"delay_ns": 10}, {"timeout_ns": 1000, "allow_timeout_override": True}, {"max_queue_size": 9999}]
)
def test_thousands_of_cancellations_at_once_take_no_search_each(config: dict[str, int]) -> None:
    """All instances are busy, and after each cancellation the batcher looks at what it has."""
    of = batcher(**config)
    for number in range(2000):
        of.push(_Watched(number))  # type: ignore[arg-type]
        form(of, 0)
    _Watched.looks = 0
    for number in reversed(range(2000)):
        of.remove(number)
        assert of.expire(1) == []
        form(of, 1)
    assert payloads(of) == []
    assert _Watched.looks <= 60 * 2000
