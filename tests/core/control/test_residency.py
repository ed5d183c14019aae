"""Which models stay in memory: the budget holds, nothing in use goes, and no more goes than must."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.control.residency import BudgetTooSmallError, Residency

NAMES = [f"m{number}" for number in range(8)]
BUDGET = 100
SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS
Step = tuple[str, bool, frozenset[str]]
"""A request for a model, whether its memory is known before the load, and the models that are in use."""


@given(
    st.fixed_dictionaries({name: st.integers(1, 130) for name in NAMES}),
    st.lists(st.tuples(st.sampled_from(NAMES), st.booleans(), st.frozensets(st.sampled_from(NAMES))), max_size=60),
)
def test_the_budget_holds_and_no_more_is_evicted_than_has_to_go(memory: dict[str, int], steps: list[Step]) -> None:
    residency = Residency(BUDGET)
    for number, (model, is_told, in_use) in enumerate(steps):
        now_ns = 600 * SECOND_NS * number
        residency.on_request(model, now_ns)
        if is_told:
            residency.set_memory(model, memory[model])
        if model in residency.resident:
            continue
        try:
            evictions = residency.evictions_for(model, set(NAMES).difference(in_use).__contains__)
        except BudgetTooSmallError as error:
            assert residency.memory_of(model) > BUDGET
            assert f"{model!r} takes" in str(error)
            continue
        held = residency.used_bytes
        needed = held + residency.memory_of(model) - BUDGET
        sizes = {each: residency.memory_of(each) for each in residency.resident}
        if evictions is None:
            assert sum(size for each, size in sizes.items() if each not in in_use) < needed
            continue
        assert residency.resident.issuperset(evictions)
        assert not in_use.intersection(evictions)
        for victim in evictions:
            residency.on_unloaded(victim)
        freed = held - residency.used_bytes
        assert freed >= max(0, needed)
        residency.on_loaded(model, load_ns=1_000_000 * (number + 1))
        assert residency.used_bytes <= BUDGET
        residency.set_memory(model, memory[model])  # as measured, which may be more than was assumed
        for victim in residency.evictions_over_budget(lambda _: True):
            residency.on_unloaded(victim)
        assert residency.used_bytes <= BUDGET
        if ahead := residency.to_prefetch(now_ns, HOUR_NS, set(NAMES).difference(in_use).__contains__):
            assert ahead not in residency.resident | in_use
            assert residency.evictions_for(ahead, lambda _: False) == ()
            residency.on_loaded(ahead, load_ns=1_000_000)
            assert residency.used_bytes <= BUDGET
    assert all(size > 0 for size in [residency.memory_of(name) for name in NAMES])


def test_what_is_asked_for_often_or_costs_much_to_load_stays_and_what_is_long_ago_goes() -> None:
    residency = Residency(2)
    for name, load_ms, requests in (("slow", 1000, 3), ("quick", 10, 3), ("new", 100, 0)):
        residency.set_memory(name, 1)
        for _ in range(requests):
            residency.on_request(name, 0)
        if requests:
            residency.on_loaded(name, load_ms * 1_000_000)
    assert residency.evictions_for("new", lambda _: True) == ("quick",)
    assert residency.evictions_for("new", lambda each: each != "quick") == ("slow",)
    assert residency.evictions_for("new", lambda _: False) is None
    evicted = set()
    for name in (f"new{number}" for number in range(200)):  # each asked for more often than `slow` is now
        residency.set_memory(name, 1)
        for _ in range(4):
            residency.on_request(name, 0)
        for victim in residency.evictions_for(name, lambda _: True) or ():
            residency.on_unloaded(victim)
            evicted.add(victim)
        residency.on_loaded(name, 1_000_000_000)
    assert "slow" in evicted


def test_a_model_of_unknown_size_is_as_large_as_the_largest_that_is_known() -> None:
    residency = Residency(100)
    assert residency.memory_of("unknown") == 100
    residency.set_memory("known", 30)
    assert residency.memory_of("unknown") == 30
    residency.set_memory("huge", 400)
    assert residency.memory_of("unknown") == 100
    with pytest.raises(BudgetTooSmallError, match=r"'huge' takes 400 bytes of a budget of 100"):
        residency.evictions_for("huge", lambda _: True)


def _asked_for(periods_s: dict[str, float], until_s: float, memory: int = 1) -> Residency:
    """Residency with room for ten bytes, after requests for these models at these periods; none is loaded."""
    residency = Residency(10)
    for name, period_s in periods_s.items():
        residency.set_memory(name, memory)
        residency.on_loaded(name, SECOND_NS)
        residency.on_unloaded(name)
        for number in range(int(until_s / period_s) + 1):
            residency.on_request(name, round(number * period_s * SECOND_NS))
    return residency


def test_the_model_that_is_asked_for_most_often_is_loaded_before_its_next_request() -> None:
    residency = _asked_for({"rare": 60.0, "dense": 0.01, "often": 20.0}, until_s=240.0)
    now_ns = 250 * SECOND_NS
    loaded: list[str] = []
    while (model := residency.to_prefetch(now_ns, HOUR_NS, lambda _: True)) and len(loaded) < 5:
        residency.on_loaded(model, SECOND_NS)
        loaded.append(model)
    assert loaded == ["often", "rare"], "the dense one has stopped"
    assert residency.to_prefetch(240 * SECOND_NS, HOUR_NS, lambda _: True) == "dense"
    assert residency.to_prefetch(240 * SECOND_NS, HOUR_NS, lambda model: model != "dense") is None


@pytest.mark.parametrize(
    ("period_s", "until_s", "at_s", "is_loaded"),
    [(60.0, 120.0, 130.0, False), (60.0, 180.0, 190.0, True), (60.0, 180.0, 301.0, False)],
    ids=["asked for three times", "four times", "and not for long"],
)
def test_only_what_is_asked_for_regularly_is_loaded_before_a_request(
    period_s: float, until_s: float, at_s: float, is_loaded: bool
) -> None:
    residency = _asked_for({"m": period_s}, until_s)
    assert (residency.to_prefetch(round(at_s * SECOND_NS), HOUR_NS, lambda _: True) == "m") is is_loaded


def test_a_burst_is_one_visit() -> None:
    residency = Residency(10)
    residency.set_memory("m", 1)
    for number in range(100):
        residency.on_request("m", number * SECOND_NS // 200)
    assert residency.to_prefetch(SECOND_NS, HOUR_NS, lambda _: True) is None


def test_the_largest_model_still_fits_beside_what_is_loaded_before_a_request() -> None:
    residency = _asked_for({"m": 10.0}, until_s=100.0, memory=2)
    residency.set_memory("other", 5)
    residency.on_loaded("other", SECOND_NS)
    assert residency.to_prefetch(101 * SECOND_NS, HOUR_NS, lambda _: True) is None
    residency.set_memory("other", 4)
    assert residency.to_prefetch(101 * SECOND_NS, HOUR_NS, lambda _: True) == "m"


def test_nothing_is_loaded_before_a_request_while_loads_for_requests_come_often() -> None:
    residency = _asked_for({"m": 10.0}, until_s=100.0)
    assert residency.to_prefetch(101 * SECOND_NS, 4 * SECOND_NS - 1, lambda _: True) is None
    assert residency.to_prefetch(101 * SECOND_NS, 4 * SECOND_NS, lambda _: True) == "m"
