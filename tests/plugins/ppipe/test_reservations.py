"""Reservation tables against a plain look at every instant."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate_ppipe.reservations import Reservation, Timetable, earliest_joint_fit

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6)), max_size=12)


def table_of(spans: list[tuple[int, int]]) -> Timetable:
    table = Timetable()
    for start_ns, last_ns in spans:
        table.add(Reservation(start_ns, start_ns + last_ns))
    return table


def is_free(table: Timetable, start_ns: int, last_ns: int) -> bool:
    return all(each.end_ns <= start_ns or each.start_ns >= start_ns + last_ns for each in table.intervals)


@given(SPANS, st.integers(0, 50), st.integers(1, 10))
def test_the_earliest_fit_is_the_first_instant_with_so_much_free_time(
    spans: list[tuple[int, int]], from_ns: int, last_ns: int
) -> None:
    table = table_of(spans)
    first = next(at_ns for at_ns in range(from_ns, 200) if is_free(table, at_ns, last_ns))
    assert table.earliest_fit(from_ns, last_ns) == first


@given(SPANS, SPANS, st.integers(0, 50), st.integers(1, 10))
def test_a_joint_fit_is_free_in_both(
    one: list[tuple[int, int]], other: list[tuple[int, int]], from_ns: int, last_ns: int
) -> None:
    uplink, downlink = table_of(one), table_of(other)
    first = next(
        at_ns for at_ns in range(from_ns, 200) if is_free(uplink, at_ns, last_ns) and is_free(downlink, at_ns, last_ns)
    )
    assert earliest_joint_fit(uplink, downlink, from_ns, last_ns) == first


@given(SPANS, st.data())
def test_what_is_given_up_is_free_again(spans: list[tuple[int, int]], data: st.DataObject) -> None:
    table = table_of(spans)
    gone = data.draw(st.lists(st.sampled_from(table.intervals), unique_by=id) if spans else st.just([]))
    for interval in gone:
        table.remove(interval)
        table.remove(interval)  # again is no error
    assert len(table) == len(spans) - len(gone)
    assert table.tail_ns == max((each.end_ns for each in table.intervals), default=0)
    assert [each.start_ns for each in table.intervals] == sorted(each.start_ns for each in table.intervals)


def test_nothing_reserved_is_free_at_once() -> None:
    table = Timetable()
    assert (table.tail_ns, table.earliest_fit(7, 3), len(table)) == (0, 7, 0)
