"""What the policy sees, counted: how much of each kind of batch there is of what can still be in a full one."""

from msgspec.structs import replace

from tidegate.api import Model, Profile, Request
from tidegate.engine.estimates.expectations import Expectations
from tidegate.engine.waiting.fair_queue_group import BatchCosts, VisibleRequests, WidestRoute
from tidegate.engine.waiting.flows import ClientFlow

FLOW = ClientFlow(1, hurried=True)


def view() -> VisibleRequests:
    """One model on one worker: batches of up to four take 10 to 40 ns, so that two rows are on time for 50 ns."""
    place = WidestRoute(frozenset({0}), ((("m", "default"),),), 4)
    expectations = Expectations([Profile("m", "default", (10, 20, 30, 40))], learn=False)
    return VisibleRequests(BatchCosts({"m": Model("m", max_rows=4)}, {"m": place}, expectations, lambda model: False))


def request(number: int, *, key: str = "", due_ns: int = 50) -> Request:
    return Request(number, "m", 1, 0, due_ns, key)


def test_what_leaves_no_time_for_a_full_batch_counts_for_none() -> None:
    seen = view()
    seen.show(0, request(1), FLOW)
    seen.show(0, request(2, due_ns=90), FLOW)
    assert seen.rows_of("m") == {("m", "", ""): 2}
    seen.pass_time(30)
    assert seen.rows_of("m") == {("m", "", ""): 1}
    seen.pass_time(50)
    assert seen.rows_of("m") == {}
    assert seen.count(FLOW, "m") == 2


def test_what_comes_back_as_another_kind_of_batch_counts_as_that_as_long_as_it_may() -> None:
    """A request whose batch failed may be tried again apart from the others."""
    seen, first = view(), request(1)
    seen.show(0, first, FLOW)
    seen.hide(first, FLOW)
    again = replace(first, merge_key="/0.1", deadline_ns=90)
    seen.show(20, again, FLOW)
    seen.pass_time(30)  # the first one's time is over
    assert seen.rows_of("m") == {("m", "", "/0.1"): 1}
    seen.hide(again, FLOW)
    assert seen.rows_of("m") == {}
