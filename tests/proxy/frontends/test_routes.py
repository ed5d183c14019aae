"""Which shard is asked, whatever shards say in whichever order: a model that some shard has is never nowhere."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate_proxy.frontends.frames import ShardModels
from tidegate_proxy.frontends.routes import ShardRoutes

_NAMES = st.frozensets(st.sampled_from("abc"))
_SAID = st.tuples(st.integers(0, 1), _NAMES, _NAMES).map(
    lambda said: (said[0], ShardModels(said[1], said[2] - said[1]))
)


def _serves(models: str, leaving: str = "") -> ShardModels:
    return ShardModels(frozenset(models), frozenset(leaving))


def test_a_model_moves_once_the_other_shard_has_it() -> None:
    routes = ShardRoutes(2)
    routes.said(0, _serves("ab"))
    routes.said(1, _serves("c"))
    assert [routes.shard_of(name) for name in "abcd"] == [0, 0, 1, None]
    routes.said(0, _serves("a", "b"))
    assert routes.shard_of("b") == 0, "nobody else has it yet"
    assert list(routes.news()) == []
    routes.said(1, _serves("bc"))
    assert routes.shard_of("b") == 1
    assert list(routes.news()) == [(0, ["b"])]
    assert list(routes.news()) == [], "it is told once"


def test_it_moves_as_well_where_the_new_shard_hears_of_it_first() -> None:
    routes = ShardRoutes(2)
    routes.said(0, _serves("c"))
    routes.said(1, _serves("ab"))
    routes.said(0, _serves("bc"))
    assert routes.shard_of("b") == 0
    assert list(routes.news()) == [], "the old one does not part with it yet"
    routes.said(1, _serves("a", "b"))
    assert list(routes.news()) == [(1, ["b"])]


def test_a_shard_that_is_lost_keeps_what_no_other_has() -> None:
    routes = ShardRoutes(2)
    routes.said(0, _serves("ab"))
    assert not routes.knows_all
    routes.said(1, _serves("b", "a"))
    assert routes.knows_all
    routes.lost(0)
    assert (routes.shard_of("a"), routes.shard_of("b")) == (0, 1), (
        "b is at both; a is another's only until it is parted with"
    )
    routes.said(0, _serves("ab"))
    assert (routes.shard_of("a"), routes.shard_of("b")) == (0, 0)


@given(st.lists(_SAID, max_size=12))
def test_what_some_shard_has_is_asked_there(said: list[tuple[int, ShardModels]]) -> None:
    routes = ShardRoutes(2)
    last: dict[int, ShardModels] = {}
    left: set[tuple[int, str]] = set()
    for shard, serves in said:
        routes.said(shard, serves)
        last[shard] = serves
        left = {(at, name) for at, name in left if name in last[at].leaving}
        left |= {(at, name) for at, names in routes.news() for name in names}
        for name in "abc":
            asked = routes.shard_of(name)
            having = [number for number in sorted(last) if name in last[number].models]
            leaving = [number for number in sorted(last) if name in last[number].leaving]
            assert asked == having[0] if having else asked in leaving if leaving else asked is None
        for at, name in left:
            assert routes.shard_of(name) != at or not any(name in serves.models for serves in last.values())
