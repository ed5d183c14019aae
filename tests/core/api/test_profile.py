"""Profiles: tables of expected latency, looked up and inverted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api import Profile, ms_to_ns

tables = st.lists(st.integers(1, 10**9), min_size=1, max_size=40).map(lambda latencies: tuple(sorted(latencies)))


def ms(*milliseconds: float) -> tuple[int, ...]:
    return tuple(ms_to_ns(value) for value in milliseconds)


def test_linear_is_alpha_times_rows_plus_beta() -> None:
    profile = Profile.linear("m", alpha_ms=1.053, beta_ms=5.072, max_rows=64)
    assert profile.upper_ns(1) == 6_125_000
    assert profile.upper_ns(16) == 21_920_000
    assert profile.max_rows == 64


@given(tables, st.integers(0, 2 * 10**9))
def test_the_inverse_is_the_most_rows_within_a_budget(table: tuple[int, ...], budget_ns: int) -> None:
    profile = Profile("m", "default", table)
    rows = profile.largest_rows_within(budget_ns)
    assert rows == sum(latency_ns <= budget_ns for latency_ns in table)
    assert rows == 0 or profile.upper_ns(rows) <= budget_ns
    assert rows == profile.max_rows or profile.upper_ns(rows + 1) > budget_ns


def test_above_its_table_a_profile_knows_nothing() -> None:
    with pytest.raises(IndexError):
        Profile("m", "default", (1, 2)).upper_ns(3)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ((), "'m': latencies must be given and positive"),
        ((0, 1), "'m': latencies must be given and positive"),
        ((2, 3, 2), "'m': latency must not fall as rows grow"),
    ],
)
def test_a_table_that_no_scheduler_could_use_is_refused(table: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Profile("m", "default", table)


@pytest.mark.parametrize(
    ("points", "table"),
    [
        ({1: 5, 2: 7, 4: 8}, ms(5, 7, 7.5, 8, 8.5, 9)),  # lines between the points; the last slope goes on
        ({2: 7, 4: 8}, ms(7, 7, 7.5, 8, 8.5, 9)),  # below the smallest its value holds
        ({4: 8, 1: 5, 2: 7}, ms(5, 7, 7.5, 8, 8.5, 9)),  # in any order
        ({3: 6}, ms(6, 6, 6, 6, 6, 6)),
        ({1: 5, 3: 4, 5: 9}, ms(5, 5, 5, 6.5, 9, 11.5)),  # made monotone: noise cannot make a larger batch faster
        ({1: 5, 2: 4}, ms(5, 5, 5, 5, 5, 5)),
        ({1: 5, 12: 16}, ms(5, 6, 7, 8, 9, 10)),  # points beyond the largest batch still count
    ],
)
def test_from_points(points: dict[int, float], table: tuple[int, ...]) -> None:
    assert Profile.from_points("m", points, max_rows=6) == Profile("m", "default", table)


@given(st.dictionaries(st.integers(1, 64), st.floats(0.01, 1000), min_size=1), st.integers(1, 80))
def test_from_points_makes_a_profile_of_whatever_was_measured(points: dict[int, float], max_rows: int) -> None:
    assert Profile.from_points("m", points, max_rows=max_rows).max_rows == max_rows


def test_from_no_points_there_is_no_profile() -> None:
    with pytest.raises(ValueError, match="'m': no measured points"):
        Profile.from_points("m", {}, max_rows=4)


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        ((6, 7, 8, 9), 4),
        ((20, 56, 110, 222), 1),
        ((10, 20, 31, 60), 1),
        ((10, 19, 31, 60), 2),
        ((10, 16, 23, 40), 3),
        ((10, 16, 24, 32), 4),
        ((7, 14, 21, 28), 1),
    ],
)
def test_batches_that_take_longer_per_row_are_not_worth_forming(table: tuple[int, ...], rows: int) -> None:
    assert Profile("m", "default", table).efficient_batch_rows == rows


def test_a_margin_is_no_work_that_a_larger_batch_would_spare() -> None:
    scattering = Profile("m", "default", (20, 56, 110), (100, 136, 190))
    assert scattering.efficient_batch_rows == Profile("m", "default", (20, 56, 110)).efficient_batch_rows == 1
    assert scattering.fixed_cost_ns == 0


@given(tables)
def test_what_is_worthwhile_costs_hardly_more_per_row_than_anything_else(table: tuple[int, ...]) -> None:
    rows = Profile("m", "default", table).efficient_batch_rows
    assert table[rows - 1] / rows <= 1.02 * min(latency / size for size, latency in enumerate(table, 1))


LARGE = 40_000


@given(
    st.integers(257, 3 * LARGE),
    st.floats(0, 0.1),
    st.floats(0.01, 5),
    st.data(),
)
def test_of_very_many_rows_a_profile_keeps_few_sizes_and_tells_of_all(
    max_rows: int, alpha_ms: float, beta_ms: float, data: st.DataObject
) -> None:
    profile = Profile.linear("m", alpha_ms=alpha_ms, beta_ms=beta_ms, max_rows=max_rows)
    assert len(profile.every_size) <= 256 + 32 * 10
    assert profile.max_rows == max_rows
    rows = data.draw(st.integers(1, max_rows))
    assert abs(profile.expected_ns(rows) - ms_to_ns(alpha_ms * rows + beta_ms)) <= 2, "lines are kept as they are"
    assert rows == 1 or profile.upper_ns(rows - 1) <= profile.upper_ns(rows)


@given(st.integers(257, LARGE), st.floats(0, 0.1), st.data())
def test_the_inverse_of_a_large_one_is_the_most_rows_within_a_budget(
    max_rows: int, alpha_ms: float, data: st.DataObject
) -> None:
    profile = Profile.linear("m", alpha_ms=alpha_ms, beta_ms=0.01, max_rows=max_rows)
    budget_ns = data.draw(st.integers(0, 2 * profile.upper_ns(max_rows)))
    rows = profile.largest_rows_within(budget_ns)
    assert rows == 0 or profile.upper_ns(rows) <= budget_ns
    assert rows == max_rows or profile.upper_ns(rows + 1) > budget_ns


def test_large_profiles_are_derived_from_at_the_same_sizes() -> None:
    quick, slow = (Profile.linear("m", alpha_ms=alpha, beta_ms=1, max_rows=LARGE) for alpha in (0.01, 0.02))
    for profile in (
        Profile.quickest([slow, quick]),
        quick.corrected(0, 0, 0),
        quick.scaled(1),
        quick.with_margin_fraction(0.5),
        quick.up_to(LARGE),
        Profile.in_sequence([quick], LARGE),
        Profile.from_points("m", {1: 1.01, LARGE: 0.01 * LARGE + 1}, max_rows=LARGE),
        Profile.from_table("m", [quick.expected_ns(rows) for rows in range(1, LARGE + 1)]),
    ):
        assert profile.every_size == quick.every_size
        for rows in (1, 300, 1001, 32_768, LARGE):
            assert abs(profile.expected_ns(rows) - quick.expected_ns(rows)) <= 1
    narrow = Profile.linear("m", alpha_ms=0.02, beta_ms=1, max_rows=1000)
    both = Profile.slowest([quick, narrow])
    assert both.max_rows == 1000
    assert both.expected_ns(999) == narrow.expected_ns(999)
    assert quick.up_to(64).every_size == range(1, 65)
    assert quick.efficient_batch_rows > 2000


@pytest.mark.parametrize("sizes", [(1, 2), (2, 3, 4), (1, 3, 3)])
def test_sizes_that_do_not_rise_from_one_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="'m': its batch sizes must rise from 1, one for each latency"):
        Profile("m", "default", (1, 2, 3), sizes=sizes)


def test_sizes_that_are_all_need_not_be_told() -> None:
    assert Profile("m", "default", (1, 2, 3), sizes=(1, 2, 3)) == Profile("m", "default", (1, 2, 3))
