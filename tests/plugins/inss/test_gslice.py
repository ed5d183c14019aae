"""GSLICE's steps, worked out by hand."""

import pytest

from tests.plugins.inss.problems import problem, tenant
from tidegate_inss.gslice import max_min_fair, next_batch, next_share, plan_gslice
from tidegate_inss.prediction import Predictor


def test_a_batch_grows_by_what_is_left_and_shrinks_by_what_is_missing() -> None:
    assert next_batch(4, latency_ms=10, bound_ms=40, most=32) == 7  # three quarters are left
    assert next_batch(4, latency_ms=50, bound_ms=40, most=32) == 3
    assert next_batch(4, latency_ms=37, bound_ms=40, most=32) == 4  # close enough
    assert next_batch(30, latency_ms=10, bound_ms=40, most=32) == 32
    assert next_batch(4, latency_ms=900, bound_ms=40, most=32) == 1


def test_a_share_follows_what_is_farther_from_its_bound() -> None:
    assert next_share(0.2, 50, 40, throughput=120, rate=100) == pytest.approx(0.2 * 1.25)  # late by a quarter
    assert next_share(0.2, 36, 40, throughput=60, rate=100) == pytest.approx(0.2 * 1.4)
    assert next_share(0.2, 30, 40, throughput=130, rate=100) == pytest.approx(0.2 * 0.7)
    assert next_share(0.2, 10, 40, throughput=900, rate=100) == pytest.approx(0.1)  # at most half of it
    assert next_share(0.2, 38, 40, throughput=105, rate=100) == 0.2
    assert next_share(0.9, 80, 40, throughput=900, rate=100) == 1


def test_who_wishes_little_gets_it_and_the_others_get_alike() -> None:
    assert max_min_fair([0.5, 0.1, 0.9], 1.0) == pytest.approx([0.45, 0.1, 0.45])
    assert max_min_fair([0.2, 0.3], 1.0) == pytest.approx([0.2, 0.3])


def test_the_loop_ends_where_latency_and_throughput_are_close_to_their_bounds() -> None:
    given = problem(tenant("calm", 200, 60))
    predictor = Predictor(given)
    ((share,), missing) = plan_gslice(predictor)
    (taken_ms,) = predictor.batch_ms([share])
    assert not missing
    assert taken_ms <= 33
    assert 0.85 * 200 <= 1000 * share.batch / taken_ms <= 1.15 * 200


def test_what_no_memory_holds_is_said() -> None:
    given = problem(tenant("calm", 20, 60, memory_mib=600), tenant("slow", 2, 400, memory_mib=600), memory_mib=1000)
    shares, missing = plan_gslice(Predictor(given))
    assert len(shares) == len(missing) == 1
    assert "memory" in next(iter(missing.values()))
