"""Which models stay in memory: the budget holds, nothing in use goes, and no more goes than must."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.control.residency import BudgetTooSmallError, Residency

NAMES = [f"m{number}" for number in range(8)]
BUDGET = 100
Step = tuple[str, bool, frozenset[str]]
"""A request for a model, whether its memory is known before the load, and the models that are in use."""


@given(
    st.fixed_dictionaries({name: st.integers(1, 130) for name in NAMES}),
    st.lists(st.tuples(st.sampled_from(NAMES), st.booleans(), st.frozensets(st.sampled_from(NAMES))), max_size=60),
)
def test_the_budget_holds_and_no_more_is_evicted_than_has_to_go(memory: dict[str, int], steps: list[Step]) -> None:
    residency = Residency(BUDGET)
    for number, (model, is_told, in_use) in enumerate(steps):
        residency.on_request(model)
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
    assert all(size > 0 for size in [residency.memory_of(name) for name in NAMES])


def test_what_is_asked_for_often_or_costs_much_to_load_stays_and_what_is_long_ago_goes() -> None:
    residency = Residency(2)
    for name, load_ms, requests in (("slow", 1000, 3), ("quick", 10, 3), ("new", 100, 0)):
        residency.set_memory(name, 1)
        for _ in range(requests):
            residency.on_request(name)
        if requests:
            residency.on_loaded(name, load_ms * 1_000_000)
    assert residency.evictions_for("new", lambda _: True) == ("quick",)
    assert residency.evictions_for("new", lambda each: each != "quick") == ("slow",)
    assert residency.evictions_for("new", lambda _: False) is None
    evicted = set()
    for name in (f"new{number}" for number in range(200)):  # each asked for more often than `slow` is now
        residency.set_memory(name, 1)
        for _ in range(4):
            residency.on_request(name)
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
