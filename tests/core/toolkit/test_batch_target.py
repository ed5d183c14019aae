"""The batch size that the load asks for, against the numbers of Symphony's paper."""

from math import e

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api import Profile, ms_to_ns
from tidegate.toolkit import ArrivalRate, BatchTarget, staggered_target
from tidegate.toolkit.batch_target import MEMORY_NS, MIN_MASS_NS, REFRESH_NS

RESNET = Profile.linear("resnet50", alpha_ms=1.053, beta_ms=5.072, max_rows=64)
INCEPTION = Profile.linear("inceptionresnetv2", alpha_ms=5.090, beta_ms=18.368, max_rows=64)
FLOOD = 1.0  # rows per ns: gathering takes no time, the next worker does


@pytest.mark.parametrize(("profile", "slo_ms", "paper"), [(RESNET, 25, 16), (INCEPTION, 70, 8)])
def test_under_overload_it_is_the_staggered_batch_size_of_table_2(profile: Profile, slo_ms: int, paper: int) -> None:
    assert staggered_target(profile, ms_to_ns(slo_ms), FLOOD, workers=8) == paper


def test_more_workers_allow_for_larger_batches_and_less_load_for_smaller_ones() -> None:
    by_workers = [staggered_target(RESNET, ms_to_ns(25), FLOOD, workers) for workers in (1, 2, 8, 1000)]
    assert by_workers == sorted(by_workers)
    assert by_workers[0] == 7  # no coordination: 2 l(b) <= SLO (table 2)
    by_rate = [staggered_target(RESNET, ms_to_ns(25), rps / 1e9, 8) for rps in (0, 10, 500, 2000, 5000)]
    assert by_rate == sorted(by_rate)
    assert by_rate[0] == 1


def test_the_rate_is_right_from_the_start_and_follows_the_load() -> None:
    rate = ArrivalRate(0)
    assert rate.rows_per_ns == 0
    for number in range(1, 101):
        rate.observe(number * 1_000_000, rows=2)
    assert rate.rows_per_ns == pytest.approx(2 / 1_000_000, rel=0.01)
    for number in range(1, 5001):
        rate.observe(100_000_000 + number * 2_000_000, rows=1)
    assert rate.rows_per_ns == pytest.approx(1 / 2_000_000, rel=0.01)


def test_the_rate_fades_while_nothing_arrives_and_the_first_few_make_no_crowd() -> None:
    rate = ArrivalRate(0)
    assert rate.rows_per_ns_at(0) == rate.rows_per_ns_at(10**12) == 0
    rate.observe(0, rows=8)
    assert rate.rows_per_ns_at(0) == 8 / MIN_MASS_NS
    rate.observe(1, rows=8)
    assert rate.rows_per_ns > 1, "sixteen in a nanosecond"
    assert rate.rows_per_ns_at(1) == pytest.approx(16 / MIN_MASS_NS)
    for number in range(1, 5001):
        rate.observe(number * 1_000_000, rows=1)
    assert rate.rows_per_ns_at(5_000_000_000) == pytest.approx(rate.rows_per_ns)
    assert rate.rows_per_ns_at(5_000_000_000 + MEMORY_NS) == pytest.approx(rate.rows_per_ns / e, rel=0.01)
    assert rate.rows_per_ns_at(10**12) == pytest.approx(0)
    assert rate.rows_per_ns == pytest.approx(1 / 1_000_000, rel=0.01), "asking changes nothing"


@given(st.lists(st.tuples(st.integers(0, 2_000_000_000), st.integers(1, 64)), max_size=20), st.integers(0, 10**11))
def test_a_faded_rate_is_what_it_was_at_the_last_arrival_and_no_more_later(
    arrivals: list[tuple[int, int]], idle_ns: int
) -> None:
    rate, now_ns = ArrivalRate(0), 0
    for gap_ns, rows in arrivals:
        now_ns += gap_ns
        rate.observe(now_ns, rows)
    at_once = rate.rows_per_ns_at(now_ns)
    assert 0 <= at_once <= rate.rows_per_ns * (1 + 1e-9) or now_ns == 0
    if now_ns >= MEMORY_NS:
        assert at_once == pytest.approx(rate.rows_per_ns)
    assert rate.rows_per_ns_at(now_ns + idle_ns) <= at_once * (1 + 1e-9)


def test_a_target_holds_for_a_while_unless_the_world_changes() -> None:
    target = BatchTarget(ArrivalRate(0))
    target.rate.observe(1, rows=1000)
    assert target.rows(1, RESNET, ms_to_ns(25), 8) == 16
    assert target.rows(REFRESH_NS, RESNET, ms_to_ns(25), 1) == 16
    assert target.rows(1 + REFRESH_NS, RESNET, ms_to_ns(25), 1) == 7
    target.forget()
    assert target.rows(2 + REFRESH_NS, RESNET, ms_to_ns(25), 8) == 16


def test_rows_come_in_requests_of_which_only_some_can_join() -> None:
    rate = ArrivalRate(0)
    assert (rate.least_rows, rate.rows_per_request) == (1, 1.0)
    for rows in (2, 8, 8):
        rate.observe(1_000_000, rows)
    assert rate.least_rows == 2
    assert rate.rows_per_request == pytest.approx(6)
    assert rate.rows_per_ns_joining(1) == 0
    assert rate.rows_per_ns_joining(7) == pytest.approx(rate.rows_per_ns / 9)
    assert rate.rows_per_ns_joining(8) == pytest.approx(rate.rows_per_ns)


def test_the_smallest_request_is_forgotten_when_no_such_has_come_for_a_while() -> None:
    rate = ArrivalRate(0)
    rate.observe(0, 2)
    for second in range(1, 5):
        rate.observe(second * (MEMORY_NS + 1), 8)
    assert rate.least_rows == 8
