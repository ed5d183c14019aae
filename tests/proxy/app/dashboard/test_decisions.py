"""What was decided, the latest; of the others only how many there are."""

from tidegate.api import Batch, Dispatch, Drop, Request, RequestArrived, Stage, WorkerLost
from tidegate.observation import Fail
from tidegate_proxy.app.dashboard.decisions import MAX_DECISIONS_PER_TICK, latest_decisions
from tidegate_proxy.app.dashboard.event_buffer import EventBuffer

MS = 1_000_000


def test_the_latest_are_told_in_order_and_the_others_counted() -> None:
    moments = EventBuffer(most=1000, longest_ns=10**12)
    for number in range(3 * MAX_DECISIONS_PER_TICK):
        event = RequestArrived(number * MS, Request(number, "m", 1, number * MS))
        batch = Batch(number, "m", (number,), (Stage(0, "m", number * MS, MS),))
        moments.on_policy_event(event, [Dispatch(batch)] if number % 2 else ())
        moments.handled(event, (), ())
    found, more = latest_decisions(reversed(moments.latest), moments.answers, lambda ns: ns / MS, {0: "gpu0"})
    asked = [decision.request for decision in found]
    assert asked == list(range(3 * MAX_DECISIONS_PER_TICK))[1::2][-MAX_DECISIONS_PER_TICK:]
    assert len(found) + more == len(range(3 * MAX_DECISIONS_PER_TICK)[1::2])
    assert {decision.worker for decision in found} == {"gpu0"}


def test_of_one_moment_from_which_more_comes_than_can_be_shown_the_latest_are_told_too() -> None:
    moments = EventBuffer(most=1000, longest_ns=10**12)
    event = RequestArrived(MS, Request(0, "m", 1, MS))
    for number in range(MAX_DECISIONS_PER_TICK + 5):
        moments.on_policy_event(event, [Drop(number, "deadline_unreachable")])
    moments.handled(event, (), ())
    found, more = latest_decisions(reversed(moments.latest), moments.answers, lambda ns: ns / MS, {})
    assert [decision.request for decision in found] == list(range(5, MAX_DECISIONS_PER_TICK + 5))
    assert more == 5


def test_what_comes_of_a_moment_is_told_in_its_order() -> None:
    """First what happened, then what the policy made of it, then what followed."""
    moments = EventBuffer(most=1000, longest_ns=10**12)
    event = WorkerLost(MS, 0)
    moments.on_policy_event(event, [Drop(1, "lost"), Drop(2, "lost")])
    moments.on_policy_event(event, [Drop(3, "lost")])
    moments.handled(event, (), [Fail(4, "lost")])
    found, _ = latest_decisions(reversed(moments.latest), moments.answers, lambda ns: ns / MS, {})
    told = [(decision.what, decision.request) for decision in found]
    assert told == [("lost", None), ("drop", 1), ("drop", 2), ("drop", 3), ("fail", 4)]
