"""What is kept of a moment is bounded, whether the policy answered or not."""

import pytest

from tidegate.api import Drop, Request, RequestArrived
from tidegate_proxy.app.dashboard import event_buffer as module
from tidegate_proxy.app.dashboard.event_buffer import EventBuffer


@pytest.mark.parametrize("answers", [False, True])
def test_of_what_a_policy_is_told_in_one_moment_the_latest_is_kept(
    answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_TOLD", 100)
    moments = EventBuffer(most=1000, longest_ns=10**12)
    for number in range(250):
        event = RequestArrived(1, Request(number, "m", 1, 1))
        moments.on_policy_event(event, [Drop(number, "deadline_unreachable")] if answers else ())
    moments.handled(event, (), ())
    (moment,) = moments.latest
    asked = [told.request.id for told, _ in moment.policy_events if isinstance(told, RequestArrived)]
    assert asked == list(range(150, 250))
    assert moments.answers == (250 if answers else 0), "what is not kept is counted"
    moments.on_policy_event(event, [Drop(1, "deadline_unreachable")])
    moments.handled(event, (), ())
    assert len(moments.latest[-1].policy_events) == 1
