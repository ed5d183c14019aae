"""A policy that broke is tried again: later each time that it breaks at once, and as it was recorded."""

import io
from typing import Any

from msgspec.structs import replace

from tests.core.engine.script import SETUP, arrived, engine_of, finished
from tidegate.api import Commands, PolicyOptions, RequestArrived, Setup
from tidegate.engine import (
    ClockAdvanced,
    Engine,
    PolicyChanged,
    PolicyOverran,
    PolicyReplaced,
    PolicyRestored,
    StartStage,
)
from tidegate.engine.kernel.state import FIRST_BACKOFF_NS, MAX_BACKOFF_NS
from tidegate.observation import Recorder, read_log
from tidegate.toolkit import FirstComeFirstServed

S = 1_000_000_000


class Fussy(FirstComeFirstServed):
    """First come, first served, until a request of the application `poison` arrives."""

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        if event.request.app == "poison":
            raise RuntimeError("poisoned")
        return super().on_request_arrived(event)


def poison(number: int, now_ns: int) -> RequestArrived:
    event = arrived(number, now_ns)
    return RequestArrived(now_ns, replace(event.request, app="poison"))


def fussy(**options: Any) -> Engine:
    return Engine(Fussy(SETUP, PolicyOptions()), name="fussy", learn=False, **options)


def backoffs_s(engine: Engine, events: list[Any]) -> list[float]:
    effects = [effect for event in events for effect in engine.handle(event)]
    return [effect.backoff_ns / S for effect in effects if isinstance(effect, PolicyReplaced)]


def test_it_decides_again_with_the_first_event_after_the_back_off() -> None:
    engine = fussy()
    engine.handle(poison(0, 0))
    assert engine.decides == "first come, first served, as fussy broke"
    assert engine.next_wake_ns is None, "nothing waits for it"
    assert engine.handle(ClockAdvanced(FIRST_BACKOFF_NS - 1)) == []
    assert engine.handle(ClockAdvanced(FIRST_BACKOFF_NS)) == [PolicyRestored("fussy")]
    assert type(engine.policy) is Fussy
    assert engine.decides == "fussy"
    engine.validate()


def test_the_back_off_doubles_while_it_breaks_at_once_and_is_bounded() -> None:
    engine, now_ns, seen = fussy(), 0, []
    for number in range(12):
        seen += backoffs_s(engine, [poison(number, now_ns)])
        now_ns += round(seen[-1] * S)
    assert seen == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]


def test_a_policy_that_lasted_begins_with_the_first_back_off() -> None:
    engine = fussy()
    assert backoffs_s(engine, [poison(0, 0), poison(1, 5 * S), poison(2, 10 * S)]) == [1, 2, 4]
    engine.handle(ClockAdvanced(14 * S))
    assert backoffs_s(engine, [poison(3, 14 * S + MAX_BACKOFF_NS)]) == [1]


def test_what_poisoned_it_and_still_waits_breaks_it_again_and_nothing_is_lost() -> None:
    engine = fussy()
    effects = [
        *engine.handle(arrived(0)),
        *engine.handle(arrived(1)),
        *engine.handle(arrived(2)),
    ]  # each worker has one
    effects += engine.handle(poison(3, 0))
    assert [type(effect) for effect in effects] == [StartStage] * 3 + [PolicyReplaced]
    restored, replaced = engine.handle(ClockAdvanced(S))
    assert (type(restored), type(replaced)) == (PolicyRestored, PolicyReplaced)
    (last,) = engine.handle(finished(S + 10))
    assert isinstance(last, StartStage)
    assert last.batch.request_ids == (3,)
    engine.validate()


def test_a_policy_that_cannot_be_made_again_is_tried_later() -> None:
    class Once(Fussy):
        made = 0

        def __init__(self, setup: Setup, options: PolicyOptions) -> None:
            super().__init__(setup, options)
            Once.made += 1
            if Once.made == 2:
                raise RuntimeError("not twice")

    engine = engine_of(Once(SETUP, PolicyOptions()), strict=False)
    assert backoffs_s(engine, [poison(0, 0), ClockAdvanced(S), ClockAdvanced(2 * S)]) == [1, 2]
    assert type(engine.policy) is FirstComeFirstServed
    assert engine.handle(ClockAdvanced(3 * S)) == [PolicyRestored("script")]
    assert engine.handle(arrived(1, 3 * S)) != []


def test_another_policy_that_is_chosen_is_not_replaced_by_the_one_that_broke() -> None:
    engine = fussy(policies=lambda _, setup, __: FirstComeFirstServed(setup, PolicyOptions()))
    engine.handle(poison(0, 0))
    engine.handle(PolicyChanged(5, "other", {}))
    assert engine.handle(ClockAdvanced(2 * S)) == []
    assert engine.name == "other"


def overran(now_ns: int) -> PolicyOverran:
    return PolicyOverran(now_ns, took_ns=2 * S, within_ns=10 * S, budget_ns=S // 50)


def test_a_policy_that_takes_too_long_is_replaced_and_tried_again_as_one_that_broke() -> None:
    engine = fussy()
    for number in range(4):
        engine.handle(arrived(number))
    (replaced,) = engine.handle(overran(5))
    assert isinstance(replaced, PolicyReplaced)
    assert replaced.reason == "Fussy: TimeoutError: 2.0 s of 10 s went into decisions of more than 20 ms"
    assert (replaced.backoff_ns, type(engine.policy)) == (FIRST_BACKOFF_NS, FirstComeFirstServed)
    assert engine.handle(overran(6)) == [], "first come, first served stays"
    (started,) = engine.handle(finished(10))
    assert isinstance(started, StartStage), "what waited is not lost"
    assert engine.handle(ClockAdvanced(5 + S)) == [PolicyRestored("fussy")]
    assert backoffs_s(engine, [overran(6 + S)]) == [2]
    engine.validate()


def test_a_measured_overrun_replays_byte_by_byte_without_a_clock() -> None:
    logs = []
    events: list[Any] = [arrived(0), overran(3), arrived(1, 4), ClockAdvanced(S + 3), arrived(2, S + 4)]
    for _ in range(2):
        log = io.BytesIO()
        engine = fussy(observers=[Recorder(log)])
        for event in events:
            engine.handle(event)
        engine.close()
        logs.append(log.getvalue())
        _, entries = read_log(logs[-1].splitlines())
        events = [entry.event for entry in entries]
    assert logs[0] == logs[1]
    assert any(isinstance(event, PolicyOverran) for event in events)


def test_a_recorded_retry_replays_byte_by_byte() -> None:
    def events() -> list[Any]:
        return [arrived(0), poison(1, 5), finished(10), arrived(2, S + 5), poison(3, S + 6), arrived(4, 9 * S)]

    recordings: list[bytes] = []
    for _ in range(2):
        out = io.BytesIO()
        engine = fussy(observers=(Recorder(out),))
        replayed = [entry.event for entry in read_log(recordings[0].splitlines())[1]] if recordings else events()
        for event in replayed:
            engine.handle(event)
        recordings.append(out.getvalue())
    assert recordings[0] == recordings[1]
    assert b"PolicyRestored" in recordings[0]


def test_requests_that_were_held_for_their_turn_are_known_to_the_policy_that_decides_again() -> None:
    engine = fussy()
    for number in range(3):
        engine.handle(arrived(number, rows=4))  # every worker is busy
    for number in range(3, 12):
        event = arrived(number, 1)
        engine.handle(RequestArrived(1, replace(event.request, client="ab"[number % 2])))
    engine.handle(poison(12, 2))
    engine.handle(ClockAdvanced(S + 2))
    engine.validate()
    assert engine.queued == 10
