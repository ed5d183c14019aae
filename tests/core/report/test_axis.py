"""Ticks are round, and everything lies between the ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.report import PlotAxis

values = st.lists(
    st.floats(min_value=-1e9, max_value=1e9, allow_subnormal=False).map(lambda x: round(x, 6)), max_size=9
)


@pytest.mark.parametrize(
    ("known", "shown"),
    [
        ([0, 5344], ["0", "2,000", "4,000", "6,000"]),
        ([0.2, 0.9], ["0.2", "0.4", "0.6", "0.8", "1.0"]),
        ([-3, 7], ["-4", "-2", "0", "2", "4", "6", "8"]),
        ([], ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        ([7, 7], ["6", "8", "10", "12", "14"]),
    ],
)
def test_ticks_are_round(known: list[float], shown: list[str]) -> None:
    axis = PlotAxis.over(known, "x")
    assert [axis.written(tick) for tick in axis.ticks] == shown


@pytest.mark.parametrize(
    ("known", "shown"),
    [
        ([0.987, 1.0], ["98.0 %", "98.5 %", "99.0 %", "99.5 %", "100.0 %"]),
        ([1.0], ["98.0 %", "98.5 %", "99.0 %", "99.5 %", "100.0 %"]),
        ([0.93], ["92 %", "94 %", "96 %", "98 %", "100 %"]),
        ([0.0], ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]),
    ],
)
def test_shares_end_at_all(known: list[float], shown: list[str]) -> None:
    axis = PlotAxis.shares(known, "share")
    assert [axis.written(tick) for tick in axis.ticks] == shown
    assert axis.place(1.0) == 1.0


def test_whole_numbers_have_no_ticks_between() -> None:
    assert PlotAxis.over([3], "rows", least=0.0, whole=True).ticks == (0.0, 1.0, 2.0, 3.0)


@given(values)
def test_everything_lies_between_the_ends(known: list[float]) -> None:
    axis = PlotAxis.over(known, "x")
    assert all(axis.holds(value) for value in known)
    assert 2 <= len(axis.ticks) <= 9
    assert len({axis.written(tick) for tick in axis.ticks}) == len(axis.ticks)
