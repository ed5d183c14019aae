"""When models of a Triton begin with turns, and when they end them."""

import pytest

from tests.proxy.tritons.test_interference import MS, emulate
from tidegate.api import Model
from tidegate_proxy.tritons.serialization import (
    HOLD_NS,
    MAX_MISS_RATE_INCREASE,
    REST_NS,
    ModelOutcomes,
    SerializationController,
)

ALIKE = {"a": 8.0, "b": 10.0}


def _models(**slos_ms: float | None) -> dict[str, Model]:
    return {name: Model(name, 8, slo_ns=None if slo is None else round(slo * MS)) for name, slo in slos_ms.items()}


def _told(slowdown: float = 1.0, times_ms: dict[str, float] | None = None) -> SerializationController:
    turns = SerializationController()
    emulate(turns.slowdown, slowdown, times_ms or ALIKE, seconds=5 if times_ms is None else 20, busy=0.4)
    return turns


def test_models_that_are_in_each_others_way_take_turns() -> None:
    turns = _told()
    assert turns.decide(0, _models(a=40, b=50), {})
    assert turns.group == {"a", "b"}
    assert "times longer" in turns.why
    assert not turns.decide(MS, _models(a=40, b=50), {})


@pytest.mark.parametrize("slowdown", [0.0, 0.5])
def test_models_that_can_do_much_side_by_side_do_not(slowdown: float) -> None:
    assert not _told(slowdown).decide(0, _models(a=40, b=50), {})


def test_no_model_takes_turns_that_cannot_wait_for_another() -> None:
    times_ms = {"short": 4.0, "long": 40.0}
    assert not _told(1.0, times_ms).decide(0, _models(short=15, long=160), {})
    assert not _told(1.0, times_ms).decide(0, _models(short=None, long=None), {})
    assert _told(1.0, times_ms).decide(0, _models(short=60, long=160), {})


def test_a_model_of_which_nothing_is_known_yet_hinders_no_other_and_joins_later() -> None:
    turns, models = _told(), _models(a=40, b=50, c=60)
    assert turns.decide(0, models, {})
    assert turns.group == {"a", "b"}
    for number in range(8):
        turns.slowdown.sent(10**12 + 50 * number * MS, 9, number, ("c", 1, ""))
        turns.slowdown.over(10**12 + (50 * number + 9) * MS, 9, number, teaches=True)
    assert turns.decide(MS, models, {})
    assert turns.group == {"a", "b", "c"}


def test_turns_end_when_a_model_is_worse_off_and_not_again_for_longer_and_longer() -> None:
    turns, models, now_ns, ended = _told(), _models(a=40, b=50), 0, dict.fromkeys("ab", ModelOutcomes(0, 0))

    def go_on(share_of_b: float) -> dict[str, ModelOutcomes]:
        before = dict(ended)
        ended["a"] = ModelOutcomes(before["a"].on_time + 1000, before["a"].all + 1000)
        ended["b"] = ModelOutcomes(before["b"].on_time + round(1000 * share_of_b), before["b"].all + 1000)
        return ended

    for rest_ns in (REST_NS, 2 * REST_NS):
        assert turns.decide(now_ns, models, go_on(0.98))
        assert not turns.decide(now_ns, models, go_on(0.98 - MAX_MISS_RATE_INCREASE))
        assert turns.decide(now_ns, models, go_on(0.98 - 2 * MAX_MISS_RATE_INCREASE))
        assert (turns.group, turns.why) == (frozenset(), "fewer requests of b were on time")
        emulate(turns.slowdown, 1.0, ALIKE, seconds=5, busy=0.4)
        assert not turns.decide(now_ns + rest_ns - 1, models, ended)
        now_ns += rest_ns


def test_turns_do_not_end_by_what_may_be_chance() -> None:
    turns, models = _told(), _models(a=40, b=50)
    ended = dict.fromkeys("ab", ModelOutcomes(950, 1000))
    assert turns.decide(0, models, ended)
    assert not turns.decide(MS, models, dict.fromkeys("ab", ModelOutcomes(950 + 90, 1000 + 100)))
    assert turns.decide(MS, models, dict.fromkeys("ab", ModelOutcomes(950 + 900, 1000 + 1000)))
    assert not turns.group


def test_turns_end_when_batches_have_become_too_long_to_wait_for() -> None:
    turns, models = _told(), _models(a=40, b=50)
    assert turns.decide(0, models, {})
    for number in range(40):
        turns.slowdown.sent(10**12 + 90 * number * MS, 0, number, ("b", 8, ""))
        turns.slowdown.over(10**12 + (90 * number + 60) * MS, 0, number, teaches=True)
    assert turns.decide(MS, models, {})
    assert (turns.group, turns.why) == (frozenset(), "one of them cannot wait for another one's batches")


def test_after_a_while_it_is_looked_again_whether_they_are_in_each_others_way() -> None:
    turns, models = _told(), _models(a=40, b=50)
    assert turns.decide(0, models, {})
    assert turns.decide(HOLD_NS, models, {})
    assert not turns.group
    assert not turns.decide(HOLD_NS, models, {})
    emulate(turns.slowdown, 0.0, ALIKE, seconds=5, busy=0.4)
    assert not turns.decide(HOLD_NS, models, {})
    turns.slowdown.forget()
    emulate(turns.slowdown, 1.0, ALIKE, seconds=5, busy=0.4)
    assert turns.decide(HOLD_NS, models, {})


def test_models_that_are_gone_take_no_turns() -> None:
    turns = _told()
    assert turns.decide(0, _models(a=40, b=50), {})
    assert turns.decide(MS, _models(a=40), {})
    assert not turns.group
