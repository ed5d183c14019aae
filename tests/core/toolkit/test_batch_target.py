"""The batch size that the load asks for, against the numbers of Symphony's paper."""

import pytest

from tidegate.api import Profile, ms_to_ns
from tidegate.toolkit import ArrivalRate, BatchTarget, staggered_target
from tidegate.toolkit.batch_target import REFRESH_NS

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


def test_a_target_holds_for_a_while_unless_the_world_changes() -> None:
    target = BatchTarget(0)
    target.rate.observe(1, rows=1000)
    assert target.rows(1, RESNET, ms_to_ns(25), 8) == 16
    assert target.rows(REFRESH_NS, RESNET, ms_to_ns(25), 1) == 16
    assert target.rows(1 + REFRESH_NS, RESNET, ms_to_ns(25), 1) == 7
    target.forget()
    assert target.rows(2 + REFRESH_NS, RESNET, ms_to_ns(25), 8) == 16
