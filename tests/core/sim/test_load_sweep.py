"""The curve through what was tried."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pages import dots, lines
from tidegate.report import Colors
from tidegate.sim.charts import LoadCurve, LoadPoint, decreasing, over_load

tried = st.lists(
    st.builds(
        LoadPoint, st.sampled_from([10.0, 20.0, 30.0, 40.0]), st.floats(0, 1).map(lambda x: round(x, 3)), st.just(1)
    ),
    min_size=1,
    max_size=12,
)


def test_what_decreases_is_left_as_it_is() -> None:
    runs = [LoadPoint(10, 1.0, 1), LoadPoint(20, 0.9, 1), LoadPoint(20, 0.8, 2), LoadPoint(30, 0.1, 1)]
    assert dict(decreasing(runs)) == pytest.approx({10: 1.0, 20: 0.85, 30: 0.1})


def test_what_rises_is_leveled() -> None:
    assert dict(decreasing([LoadPoint(10, 0.4, 1), LoadPoint(20, 0.8, 1)])) == pytest.approx({10: 0.6, 20: 0.6})


@given(tried)
def test_it_never_rises_and_keeps_the_mean(runs: list[LoadPoint]) -> None:
    line = decreasing(runs)
    assert [rate for rate, _ in line] == sorted({each.rate_rps for each in runs})
    assert all(before >= after - 1e-9 for (_, before), (_, after) in pairwise(line))
    of_rate = dict(line)
    assert sum(of_rate[each.rate_rps] for each in runs) == pytest.approx(sum(each.attainment for each in runs))


def test_every_run_is_a_dot_and_the_limit_is_crossed_where_it_says() -> None:
    runs = [LoadPoint(100, 1.0, 1), LoadPoint(200, 0.99, 1), LoadPoint(300, 0.5, 1), LoadPoint(300, 0.7, 2)]
    drawn = over_load([LoadCurve("a", runs, 200.0)], 0.01, Colors((), ["a"])).html()
    assert [said for _, said in dots(drawn)] == [
        "a, seed 1: 100.0 % at 100/s",
        "a, seed 1: 99.0 % at 200/s",
        "a, seed 1: 50.0 % at 300/s",
        "a, seed 2: 70.0 % at 300/s",
    ]
    assert [right for right, _ in dots(drawn)] == pytest.approx([0, 0.5, 1, 1])
    assert lines(drawn)["a"] == [pytest.approx(point, abs=0.01) for point in ((0, 1), (0.5, 0.98), (1, 0.2))]
    assert ">99 % on time<" in drawn
    assert ">200<" in drawn
