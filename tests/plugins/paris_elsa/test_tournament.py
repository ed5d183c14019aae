"""The least of many numbers, and where it is, against looking at all of them."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate.api import NEVER_NS
from tidegate_paris_elsa.worker_queue import Tournament

numbers = st.integers(0, 12) | st.just(NEVER_NS)


@given(st.lists(st.tuples(st.integers(0, 20), numbers)), st.integers(-1, 13))
def test_the_least_and_the_first_that_is_small_enough(settings: list[tuple[int, int]], limit: int) -> None:
    tournament, plain = Tournament(), [NEVER_NS] * 21
    for place, number in settings:
        tournament[place] = plain[place] = number
        assert tournament.least == min(plain)
        assert tournament.first_within(limit) == next((at for at, each in enumerate(plain) if each <= limit), None)
