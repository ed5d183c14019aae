"""The batch sizes that carry a load: no larger than they have to be, whatever arrives."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api import Profile, ms_to_ns
from tidegate.toolkit import ArrivalRate
from tidegate_symphony.latency_bounds import LatencyBounds, QueueOutlook
from tidegate_symphony.required_batch_size import (
    LOADS_PER_REFRESH,
    MIN_ARRIVALS_FOR_BATCHING,
    REFRESH_NS,
    ROWS_PER_REFRESH,
    SPARE_WORKERS_FACTOR,
    QueueLoad,
    RequiredBatchSize,
)

MOST_ROWS = 32


class Rate(ArrivalRate):
    """A rate that is known."""

    def __init__(self, rows_per_s: float) -> None:
        super().__init__(0)
        self.rows_per_s = rows_per_s

    def rows_per_ns_at(self, now_ns: int) -> float:
        """What it was made with."""
        return self.rows_per_s / 1e9


def outlook_of(profile: Profile, fixed_cost_ns: float, most_rows: int) -> QueueOutlook:
    return QueueOutlook(LatencyBounds.of(profile, 0.99), workers=1, fixed_cost_ns=fixed_cost_ns, most_rows=most_rows)


def load_of(rate: ArrivalRate, outlook: QueueOutlook) -> QueueLoad:
    load = QueueLoad.of(rate)
    load.outlook = outlook
    return load


def outlook(load: QueueLoad) -> QueueOutlook:
    assert load.outlook is not None, "it was made with one"
    return load.outlook


@dataclass(frozen=True)
class Kind:
    """What arrives of a kind: rows per second at `alpha_ms` each, with `beta_ms` for each batch."""

    rows_per_s: float
    alpha_ms: float
    beta_ms: float

    def load(self, factor: float = 1.0) -> QueueLoad:
        profile = Profile.linear("m", alpha_ms=self.alpha_ms, beta_ms=self.beta_ms, max_rows=MOST_ROWS)
        most_rows = min(MOST_ROWS, profile.efficient_batch_rows)
        return load_of(Rate(factor * self.rows_per_s), outlook_of(profile, profile.fixed_cost_ns, most_rows))


def sizes(workers: int, loads: Sequence[QueueLoad], now_ns: int = 0) -> list[float]:
    need = RequiredBatchSize(workers, loads)
    need.refresh(now_ns, ROWS_PER_REFRESH)
    return [load.needed_rows for load in loads]


def asked(loads: Sequence[QueueLoad], rows: Sequence[float]) -> float:
    """How many workers the loads keep busy in batches of these sizes."""
    return sum(
        load.rate.rows_per_ns_at(0) * outlook(load).profile.expected_ns(int(each)) / each
        for load, each in zip(loads, rows, strict=True)
    )


def least_rows(load: QueueLoad) -> float:
    """The size at which a batch's requests wait, in sum, as long as workers are spared; nobody who waits waits less."""
    return min(outlook(load).most_rows, sqrt(2 * load.rate.rows_per_ns_at(0) * outlook(load).fixed_cost_ns))


def capacity(workers: int) -> float:
    return workers / (1 + SPARE_WORKERS_FACTOR / sqrt(workers))


RESNET = Kind(1, alpha_ms=1, beta_ms=5)
"""A row alone takes 6 ms: four workers bear 580 of them per second with some room, and 3008 in batches of 32."""

kinds = st.builds(
    Kind,
    rows_per_s=st.floats(0, 3000),
    alpha_ms=st.floats(0.01, 20),
    beta_ms=st.one_of(st.just(0.0), st.floats(0.01, 50)),
)
several = st.lists(kinds, min_size=1, max_size=6)
counts = st.integers(1, 64)


@pytest.mark.parametrize(
    ("rows_per_s", "rows"),
    [(0, 1), (100, 1), (579, 1), (581, 2), (1000, 3), (2000, 7), (2500, 13), (2900, 26), (3100, inf)],
)
def test_what_four_workers_need(rows_per_s: float, rows: float) -> None:
    (needed,) = sizes(4, [RESNET.load(rows_per_s)])
    assert needed == pytest.approx(rows, rel=0.1)


def test_more_of_what_comes_often_and_costs_much_by_the_batch() -> None:
    often, seldom, cheap = sizes(2, [Kind(400, 1, 5).load(), Kind(50, 1, 5).load(), Kind(400, 1, 0.5).load()])
    assert often > seldom
    assert often > cheap
    assert cheap < inf


@given(counts, several)
def test_batches_of_one_suffice_where_they_bear_the_load_and_no_size_where_the_largest_do_not(
    workers: int, several: list[Kind]
) -> None:
    loads = [kind.load() for kind in several]
    found = sizes(workers, loads)
    if asked(loads, [1] * len(loads)) <= capacity(workers):
        assert found == [1] * len(loads)
    elif asked(loads, [outlook(load).most_rows if outlook(load).fixed_cost_ns else 1 for load in loads]) > capacity(
        workers
    ):
        assert found == [inf] * len(loads)
    else:
        assert all(1 <= rows <= outlook(load).most_rows for load, rows in zip(loads, found, strict=True))


@given(counts, several)
def test_the_sizes_found_bear_the_load_and_smaller_ones_do_not(workers: int, several: list[Kind]) -> None:
    loads = [kind.load() for kind in several]
    found = sizes(workers, loads)
    if inf in found:
        return
    assert asked(loads, found) <= capacity(workers)
    smaller = [max(1, int(0.9 * rows)) for rows in found]
    if smaller != found and any(rows > max(1, least_rows(load)) for load, rows in zip(loads, found, strict=True)):
        assert asked(loads, smaller) > capacity(workers)


@given(counts, several, st.floats(1.3, 5))
def test_a_larger_load_needs_larger_batches(workers: int, several: list[Kind], factor: float) -> None:
    """Up to the precision of the search, which is a twentieth of the size, and to whole rows."""
    less = sizes(workers, [kind.load() for kind in several])
    more = sizes(workers, [kind.load(factor) for kind in several])
    assert all(larger >= 0.95 * size - 1 for size, larger in zip(less, more, strict=True))


@given(
    counts,
    st.lists(
        st.builds(
            QueueLoad,
            rate=st.one_of(st.sampled_from([0.0, 1e-300, 1e-30, 1e30, 1e300]), st.floats(0, 1e9)).map(Rate),
            outlook=st.builds(
                outlook_of,
                profile=st.lists(st.integers(1, 10**11), min_size=4, max_size=4).map(
                    lambda table: Profile("m", "default", tuple(sorted(table)))
                ),
                fixed_cost_ns=st.one_of(st.sampled_from([0.0, 1e-9, 1e15]), st.floats(0, 1e9)),
                most_rows=st.integers(1, 4),
            ),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_the_search_ends_whatever_comes(workers: int, loads: list[QueueLoad]) -> None:
    """Also where the profile is no straight line, so that its fixed cost says nothing of what larger batches spare."""
    assert all(rows == inf or 1 <= rows <= 4 for rows in sizes(workers, loads))


def test_larger_batches_that_spare_much_but_have_no_fixed_cost() -> None:
    """Three rows take hardly longer than one, four very long: the straight line from end to end shows no fixed cost."""
    profile = Profile("m", "default", (10_000_000, 11_000_000, 12_000_000, 100_000_000))
    assert profile.fixed_cost_ns == 0
    assert profile.efficient_batch_rows == 3
    assert sizes(1, [load_of(Rate(150), outlook_of(profile, 0.0, 3))]) == [inf], (
        "waiting is not known to spare anything"
    )


def test_it_is_looked_at_every_few_milliseconds_and_less_often_where_there_are_many() -> None:
    load = RESNET.load(100)
    need = RequiredBatchSize(4, [load])
    need.refresh(0, ROWS_PER_REFRESH)
    assert isinstance(load.rate, Rate)
    load.rate.rows_per_s = 1000
    need.refresh(REFRESH_NS - 1, ROWS_PER_REFRESH)
    assert load.needed_rows == 1
    need.refresh(REFRESH_NS, ROWS_PER_REFRESH)
    assert load.needed_rows == 3
    need.loads.extend(RESNET.load(0) for _ in range(LOADS_PER_REFRESH))
    load.rate.rows_per_s = 100
    need.refresh(3 * REFRESH_NS - 1, ROWS_PER_REFRESH)
    assert load.needed_rows == 3
    need.refresh(3 * REFRESH_NS, ROWS_PER_REFRESH)
    assert load.needed_rows == 1


def test_few_rows_are_no_reason_to_look_at_it_anew_at_once() -> None:
    load = RESNET.load(100)
    need = RequiredBatchSize(4, [load])
    need.refresh(0, 1)
    assert isinstance(load.rate, Rate)
    load.rate.rows_per_s = 1000
    need.refresh(REFRESH_NS, ROWS_PER_REFRESH - 1)
    assert load.needed_rows == 1
    need.refresh(REFRESH_NS, 1)
    assert load.needed_rows == 3
    load.rate.rows_per_s = 100
    need.refresh((1 + MIN_ARRIVALS_FOR_BATCHING) * REFRESH_NS - 1, 1)
    assert load.needed_rows == 3
    need.refresh((1 + MIN_ARRIVALS_FOR_BATCHING) * REFRESH_NS, 1)
    assert load.needed_rows == 1


def test_a_rate_that_has_come_to_an_end_needs_nothing() -> None:
    """The rate fades also where nothing arrives that could tell it so: of two kinds one goes on."""
    ended, goes_on = ArrivalRate(0), ArrivalRate(0)
    for at_ms in range(1000):
        ended.observe(ms_to_ns(at_ms), 1)
        goes_on.observe(ms_to_ns(at_ms), 1) if at_ms % 20 == 0 else None
    loads = [load_of(rate, outlook(RESNET.load())) for rate in (ended, goes_on)]
    at_once = sizes(4, loads, ms_to_ns(1000))
    assert at_once[0] > 1
    assert sizes(4, loads, ms_to_ns(4000)) == [1, 1]
