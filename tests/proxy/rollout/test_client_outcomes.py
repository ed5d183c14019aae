"""Outcomes by client: what one client's requests may decide about a new version."""

import pytest

from tidegate_proxy.rollout import client_outcomes
from tidegate_proxy.rollout.client_outcomes import DEPARTURE_NS, ClientOutcomes


def _add(outcomes: ClientOutcomes, client: str, count: int, *, is_candidate: bool, errors: int = 0) -> None:
    """End requests of a client, some of which fail, at even distances."""
    for number in range(count):
        is_error = number * errors // count != (number + 1) * errors // count
        outcomes.add(client, 0, is_candidate=is_candidate, is_late=is_error, is_error=is_error)


@pytest.fixture
def outcomes() -> ClientOutcomes:
    """Outcomes of a stable version that answers its client."""
    outcomes = ClientOutcomes(tolerance=0.01)
    _add(outcomes, "stable", 200, is_candidate=False)
    return outcomes


def test_a_client_whose_requests_fail_gets_the_stable_version_again(outcomes: ClientOutcomes) -> None:
    _add(outcomes, "a", 19, is_candidate=True, errors=19)
    assert not outcomes.is_returned("a")
    _add(outcomes, "a", 1, is_candidate=True, errors=1)
    assert outcomes.is_returned("a")
    assert outcomes.undecided == 1
    assert outcomes.fault() == ""


def test_a_client_that_fails_at_both_versions_is_left_out(outcomes: ClientOutcomes) -> None:
    _add(outcomes, "a", 50, is_candidate=True, errors=50)
    _add(outcomes, "a", 50, is_candidate=False, errors=50)
    assert outcomes.fault() == ""
    assert outcomes.undecided == 0
    # Two of them are left out, and the worst of the others.
    _add(outcomes, "b", 50, is_candidate=True, errors=50)
    _add(outcomes, "b", 50, is_candidate=False, errors=50)
    _add(outcomes, "c", 50, is_candidate=True, errors=5)
    _add(outcomes, "d", 50, is_candidate=True, errors=1)
    rest = outcomes.rest("errors", is_candidate=True)
    assert (rest.ended, rest.errors) == (50, 1)
    stable = outcomes.rest("errors", is_candidate=False)
    assert (stable.ended, stable.errors) == (200, 0), (
        "requests of returned clients do not count in the comparison of other clients"
    )


def test_a_client_that_fails_at_the_candidate_alone_shows_the_fault(outcomes: ClientOutcomes) -> None:
    _add(outcomes, "a", 20, is_candidate=True, errors=20)
    _add(outcomes, "a", 19, is_candidate=False)
    assert outcomes.fault() == ""
    _add(outcomes, "a", 1, is_candidate=False)
    assert outcomes.fault() == (
        "of one client 20 of 20 requests failed at the new version, and 0 of 20 at the stable one, which it got again"
    )


def test_a_client_that_departs_is_left_out_and_a_second_one_is_not(outcomes: ClientOutcomes) -> None:
    _add(outcomes, "good", 100, is_candidate=True)
    for client, counts in (("a", False), ("b", True)):
        _add(outcomes, client, 20, is_candidate=True, errors=20)
        _add(outcomes, client, 19, is_candidate=False)
        outcomes.settle(DEPARTURE_NS)
        assert outcomes.undecided > 0, "it may come back"
        outcomes.settle(DEPARTURE_NS + 1)
        assert outcomes.undecided == 0
        assert outcomes.hides("errors") is counts
        assert outcomes.persists("errors") is counts


def test_a_departed_client_that_comes_back_shows_the_fault(outcomes: ClientOutcomes) -> None:
    _add(outcomes, "a", 20, is_candidate=True, errors=20)
    outcomes.settle(DEPARTURE_NS + 1)
    outcomes.add("a", 2 * DEPARTURE_NS, is_candidate=False, is_late=False, is_error=False)
    outcomes.settle(3 * DEPARTURE_NS)
    assert outcomes.undecided == 1
    _add(outcomes, "a", 19, is_candidate=False)
    assert outcomes.fault().startswith("of one client 20 of 20 requests failed")


def test_a_client_without_more_errors_than_others_keeps_the_candidate() -> None:
    outcomes = ClientOutcomes(tolerance=0.01)
    _add(outcomes, "stable", 1000, is_candidate=False, errors=300)
    _add(outcomes, "a", 1000, is_candidate=True, errors=310)
    assert not outcomes.is_returned("a")


def test_one_client_alone_says_nothing_and_two_do(outcomes: ClientOutcomes) -> None:
    _add(outcomes, "a", 15, is_candidate=True, errors=15)
    assert not outcomes.persists("errors")
    _add(outcomes, "b", 100, is_candidate=True)
    assert not outcomes.persists("errors")
    _add(outcomes, "c", 15, is_candidate=True, errors=15)
    assert outcomes.persists("errors")
    assert outcomes.persists("attainment")


def test_a_failing_client_of_the_stable_version_hides_nothing() -> None:
    outcomes = ClientOutcomes(tolerance=0.01)
    for client, is_candidate, errors in (("a", False, 100), ("b", False, 0), ("c", True, 19), ("d", True, 0)):
        _add(outcomes, client, 100, is_candidate=is_candidate, errors=errors)
    assert outcomes.hides("errors")
    _add(outcomes, "d", 10_000, is_candidate=True)
    assert not outcomes.hides("errors")


def test_versions_that_are_drawn_by_request_have_no_clients() -> None:
    outcomes = ClientOutcomes(tolerance=0.01)
    _add(outcomes, "", 100, is_candidate=True, errors=100)
    _add(outcomes, "", 100, is_candidate=False)
    assert outcomes.persists("errors")
    assert not outcomes.hides("errors")
    assert outcomes.rest("errors", is_candidate=True).errors == 100


def test_clients_beyond_the_limit_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_outcomes, "MAX_CLIENTS", 2)
    outcomes = ClientOutcomes(tolerance=0.01)
    for number in range(10):
        _add(outcomes, f"client-{number}", 30, is_candidate=True, errors=30)
    assert [outcomes.is_returned(f"client-{number}") for number in range(10)] == [True, True, *[False] * 8]
    assert outcomes.rest("errors", is_candidate=True).ended == 60, "the others are the worst client"
