"""Candidates that wait for a worker, ranked: against sorting a dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate.api import NEVER_NS
from tidegate_symphony.rank_thread import MAX_SUPERSEDED_ENTRIES, Precedence, ReadyCandidates

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


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9), st.integers(1, 10**9))))
def test_without_drops_the_most_urgent_goes_first(batches: list[tuple[bool, int, int]]) -> None:
    precedence = Precedence()
    for _, requests, duration_ns in batches:
        precedence.dispatched(requests, duration_ns)
    assert [precedence.rank_ns(latest_ns, 3, 7) for latest_ns in (5, NEVER_NS)] == [5, NEVER_NS]


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 9), st.integers(1, 10**9))),
    st.integers(1, 64),
    st.integers(1, 10**9),
)
def test_the_rank_falls_with_urgency_and_with_requests_for_the_time(
    outcomes: list[tuple[bool, int, int]], requests: int, duration_ns: int
) -> None:
    precedence = Precedence()
    for is_dropped, count, each_ns in outcomes:
        if is_dropped:
            precedence.dropped(count)
        else:
            precedence.dispatched(count, each_ns)
    rank_ns = precedence.rank_ns(10**9, requests, duration_ns)
    assert precedence.rank_ns(10**9 + 1, requests, duration_ns) == rank_ns + 1
    assert precedence.rank_ns(10**9, requests + 1, duration_ns) <= rank_ns
    assert precedence.rank_ns(10**9, requests, duration_ns + 1) >= rank_ns
    assert precedence.rank_ns(NEVER_NS, requests, duration_ns) == NEVER_NS
