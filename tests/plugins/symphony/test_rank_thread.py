"""Candidates that wait for a worker, ranked: against sorting a dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate_symphony.rank_thread import ReadyCandidates

KEYS = [(model, merge_key) for model in "abc" for merge_key in ("", "wide")]
changes = st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.integers(0, 9)))


@given(changes, st.sets(st.sampled_from(KEYS)))
def test_the_most_urgent_that_suits(
    changes: list[tuple[tuple[str, str], int | None]], suiting: set[tuple[str, str]]
) -> None:
    ready = ReadyCandidates()
    naive: dict[tuple[str, str], int] = {}
    for key, latest_ns in changes:
        if latest_ns is None:
            ready.discard(key)
            naive.pop(key, None)
        else:
            ready.put(key, latest_ns)
            naive[key] = latest_ns
        ranked = sorted((latest, key) for key, latest in naive.items() if key in suiting)
        assert ready.most_urgent(lambda key: key in suiting) == (ranked[0][1] if ranked else None)
