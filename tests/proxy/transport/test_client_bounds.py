"""What clients may hold in all, and each of them."""

from hypothesis import given
from hypothesis import strategies as some

from tidegate_proxy.configuration.settings import CurrentSettings, SettingsHolder
from tidegate_proxy.transport.client_bounds import ClientBounds

LIMIT = 1000


def _fill(bounds: ClientBounds, owner: str) -> int:
    """How much an owner gets that takes whatever it can."""
    taken = 0
    while bounds.take(1, owner):
        taken += 1
    return taken


def test_each_owner_leaves_as_much_free_as_it_has() -> None:
    bounds = ClientBounds(SettingsHolder(CurrentSettings(max_in_flight_bytes=LIMIT)))
    assert [_fill(bounds, owner) for owner in "abc"] == [500, 250, 125]
    assert bounds.take(62, "d")
    assert not bounds.take(64, "e")
    bounds.give_back(500, "a")
    assert _fill(bounds, "c") > 125, "what is given back is there for all"


@given(some.lists(some.tuples(some.sampled_from("abcd"), some.integers(0, LIMIT)), max_size=40))
def test_no_more_than_the_limit_is_held_and_a_new_client_finds_room(steps: list[tuple[str, int]]) -> None:
    bounds, held = ClientBounds(SettingsHolder(CurrentSettings(max_in_flight_bytes=LIMIT))), dict.fromkeys("abcd", 0)
    for owner, size in steps:
        if bounds.take(size, owner):
            held[owner] += size
        else:
            bounds.give_back(held[owner], owner)
            held[owner] = 0
        assert bounds.in_flight_bytes == sum(held.values()) <= LIMIT
    assert bounds.take((LIMIT - bounds.in_flight_bytes) // 2, "another")
    for owner, size in held.items():
        bounds.give_back(size, owner)
    assert bounds._in_flight_of.keys() <= {"another"}
