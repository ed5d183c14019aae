"""The requests that fair queueing shows a policy: how many rows of each batch key, and which make room for others."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from tidegate.api import Model, Profile, Request, Worker
from tidegate.engine.estimates.expectations import Expectations
from tidegate.engine.state_tables import WorkerTable
from tidegate.engine.waiting.fair_queue_group import (
    REMEMBERED_NS,
    BatchCosts,
    FairQueueGroup,
    VisibleRequests,
    WidestRoute,
)
from tidegate.engine.waiting.flows import ClientFlow

FLOW = ClientFlow(1, hurried=True)


MODELS = {name: Model(name, max_rows=4) for name in "mn"}
PLACES = {name: WidestRoute(frozenset({0}), (((name, "default"),),), 4) for name in MODELS}
PROFILES = [Profile(name, "default", (10, 20, 30, 40)) for name in MODELS]


def view() -> VisibleRequests:
    """One model on one worker: batches of up to four take 10 to 40 ns, so that two rows are on time for 50 ns."""
    return VisibleRequests(BatchCosts(MODELS, PLACES, Expectations(PROFILES, learn=False), lambda model: False))


def request(number: int, *, key: str = "", due_ns: int = 50, client: str = "", rows: int = 1) -> Request:
    return Request(number, "m", rows, 0, due_ns, key, client=client)


def test_what_leaves_no_time_for_a_full_batch_counts_for_none() -> None:
    seen = view()
    seen.show(0, request(1), FLOW)
    seen.show(0, request(2, due_ns=90), FLOW)
    assert seen.rows_of("m") == {("m", "", ""): 2}
    seen.pass_time(30)
    assert seen.rows_of("m") == {("m", "", ""): 1}
    seen.pass_time(50)
    assert seen.rows_of("m") == {}
    assert seen.rows_of_flow(FLOW, "m") == 2


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


class Contention:
    """Three requests of a flood that the policy sees, one more than a full batch has; the worker is busy."""

    def __init__(self) -> None:
        fleet = WorkerTable([Worker(0, "w0", ("m", "n"))], MODELS)
        fleet.idle_ids.clear()
        self.group = FairQueueGroup(fleet, Expectations(PROFILES, learn=False), PLACES, 1000, lambda model: False)
        self.seen = {number: request(number, client="flood") for number in (1, 2, 3)}
        assert all(map(self.group.admits, self.seen.values()))
        self.group.begin_to_contend(0, self.seen.values())

    def come(self, *requests: Request) -> None:
        """All wait from the same event on, as those of a failed batch do."""
        for each in requests:
            self.group.contend(each)
        assert self.withdraw() == []
        assert {each.id for each in self.show()} == {each.id for each in requests}

    def withdraw(self, now_ns: int = 0) -> list[int]:
        """Withdraw what is in excess; return the ids."""
        excess = self.group.excess(now_ns, self.seen.values())
        assert len({each.id for each in excess}) == len(excess), "each once"
        for each in excess:
            self.group.call_back(self.seen.pop(each.id))
        return [each.id for each in excess]

    def show(self) -> list[Request]:
        shown = []
        while following := self.group.next(0):
            shown.append(following)
            self.seen[following.id] = following
        return shown

    def start(self, *numbers: int) -> None:
        self.group.start([self.seen.pop(number) for number in numbers], len(numbers), 10 * len(numbers))


@pytest.mark.parametrize(("clients", "withdrawn"), [("abc", [1, 2]), ("ab", [1]), ("aa", [1])])
def test_each_request_beyond_a_full_batch_displaces_another_one_of_more_than_a_share(
    clients: str, withdrawn: list[int]
) -> None:
    """Of four flows each has a share of one row, of three one row and a third, of two two rows."""
    contention = Contention()
    contention.come(*(request(4 + number, client=client) for number, client in enumerate(clients)))
    assert contention.withdraw() == withdrawn


@given(
    arrivals=st.lists(
        st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 3), st.sampled_from(["", "k"]), st.integers(20, 90)),
        max_size=12,
    )
)
@example([("a", 1, "k", 40), ("b", 1, "", 80), ("a", 1, "k", 20)])
def test_each_flow_keeps_a_visible_request_and_shows_none_that_was_displaced(
    arrivals: list[tuple[str, int, str, int]],
) -> None:
    """There may be more flows than the largest batch has rows, four."""
    contention = Contention()
    gone: list[int] = []
    for number, (client, rows, key, due_ns) in enumerate([*arrivals, ("", 1, "", 90)], start=4):
        contention.group.contend(request(number, client=client, rows=rows, key=key, due_ns=due_ns))
        clients = {each.client for each in contention.seen.values()}
        withdrawn = contention.withdraw()
        assert {each.client for each in contention.seen.values()} == clients
        gone += withdrawn
        contention.show()
        assert not contention.seen.keys() & set(gone)


def test_a_request_displaces_none_of_another_queue() -> None:
    """Where the second one is shown, no flow has more than its share, a row."""
    contention = Contention()
    hurried = (request(5, key="k", client="b", due_ns=25), request(6, key="k", client="c", due_ns=25))
    contention.come(request(4, client="a"), *hurried)
    assert contention.withdraw() == [1]


@pytest.mark.parametrize(("started", "withdrawn"), [((4, 5), [1]), ((1, 4, 5), [])])
def test_nothing_is_displaced_from_what_is_no_more_than_a_full_batch(
    started: tuple[int, ...], withdrawn: list[int]
) -> None:
    """Two of the flood are left, a full batch, though its share is a row and a third."""
    contention = Contention()
    others = (request(6, key="k", client="b"), request(7, key="k", client="a"))
    contention.come(request(4, client="a"), request(5, client="b"), *others)
    contention.start(*started)
    assert contention.withdraw() == withdrawn


def test_what_is_in_excess_as_flows_contend_again_does_not_spare_the_flood() -> None:
    contention = Contention()
    contention.come(request(4, client="a"), request(5, client="b"), request(6, client="b"))
    assert contention.withdraw(REMEMBERED_NS) == [6], "beyond the largest batch, and not the first of its flow"
    assert contention.withdraw(REMEMBERED_NS) == [1]


def test_what_was_shown_before_a_more_urgent_class_came_displaces_nothing_after_it() -> None:
    contention = Contention()
    others = (request(5, key="k", client="b"), request(6, key="k", client="a"))
    contention.come(request(4, client="a"), *others)
    contention.group.closed = True
    assert len(contention.withdraw()) == 6
    contention.group.closed = False
    contention.show()
    contention.group.contend(wide := request(7, client="c", rows=2))
    contention.show()
    assert wide.id in contention.seen
    assert len(contention.withdraw()) == 1


@pytest.mark.parametrize(
    ("others", "exceeds"),
    [
        ([], False),
        ([{"client": "a", "rows": 1}], False),
        ([{"client": "a", "rows": 2}], True),
        ([{"client": "a", "rows": 1}, {"client": "a", "rows": 1}], True),
        ([{"client": "a", "rows": 4, "model": "n"}] * 4, False),
        ([{"client": "b", "rows": 4}], False),
        ([{"client": "b", "rows": 1, "tenant": "t"}], False),
        ([{"client": "b", "rows": 2, "tenant": "t"}], True),
        ([{"client": "b", "rows": 4, "model": "n", "tenant": "t"}], False),
    ],
)
def test_a_share_is_of_rows_of_the_model_and_of_the_whole_tenant(others: list[dict[str, Any]], exceeds: bool) -> None:
    """Of two or three flows each has two rows of four, or a row and a third; all wait behind those of a flood."""
    contention = Contention()
    tenant = next((other["tenant"] for other in others if "tenant" in other), "")
    hopeless = replace(request(4, client="a"), tenant=tenant)
    contention.group.contend(hopeless)
    for number, other in enumerate(others, start=5):
        contention.group.contend(replace(request(number), **other))
    contention.group.contend(request(99, client="flood"))  # a request that arrives alone is not held yet
    assert contention.group.exceeds_share(0, hopeless) == exceeds
