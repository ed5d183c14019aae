"""Candidates that wait for a worker, ranked: against sorting a dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate_symphony.rank_thread import MAX_SUPERSEDED_ENTRIES, ReadyCandidates

KEYS = [(model, "", merge_key) for model in "abc" for merge_key in ("", "wide")]
changes = st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.integers(0, 9)))


@given(changes, st.sets(st.sampled_from("abc")), st.sets(st.sampled_from(KEYS)))
def test_the_most_urgent_that_a_worker_can_run(
    changes: list[tuple[tuple[str, str, str], int | None]], models: set[str], tried: set[tuple[str, str, str]]
) -> None:
    ready = ReadyCandidates()
    hosts = frozenset(models)
    naive: dict[tuple[str, str, str], int] = {}
    for key, latest_ns in changes:
        if latest_ns is None:
            ready.discard(key)
            naive.pop(key, None)
        else:
            ready.put(key, latest_ns)
            naive[key] = latest_ns
        ranked = sorted((latest, key) for key, latest in naive.items() if key[0] in models and key not in tried)
        assert ready.most_urgent(hosts, tried) == (ranked[0][1] if ranked else None)


def test_a_ranking_that_nobody_looks_at_does_not_grow_for_ever() -> None:
    ready = ReadyCandidates()
    assert ready.most_urgent(frozenset("a")) is None
    for latest_ns in range(10_000):
        ready.put(("a", "", ""), latest_ns)
    tracked = sum(len(ranking) for ranking in ready._rankings.values())
    assert tracked <= 2 + MAX_SUPERSEDED_ENTRIES
    assert ready.most_urgent(frozenset("a")) == ("a", "", "")
