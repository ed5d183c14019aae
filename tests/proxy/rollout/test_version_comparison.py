"""Verdicts on a new version: from outcomes of requests, and from responses to copies."""

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tidegate_proxy.rollout.client_outcomes import DEPARTURE_NS
from tidegate_proxy.rollout.version_comparison import (
    RequestComparison,
    RequestEnd,
    ResponseComparison,
    Verdict,
    why_different,
)

MS = 1_000_000
SLO_NS = 50 * MS
AT_THE_END_NS = 220_000 * MS


def _compared(slow_every: int, errors_every: int = 0, tolerance: float = 0.01) -> RequestComparison:
    """20,000 requests in 200 s, alternately of either version; some of the candidate's are slow, or fail."""
    comparison = RequestComparison("m", tolerance)
    for number in range(20_000):
        began_ns, is_candidate, of_candidate = number * 10 * MS, number % 2 == 1, number // 2 + 1
        is_slow = is_candidate and slow_every and of_candidate % slow_every == 0
        fails = bool(is_candidate and errors_every and of_candidate % errors_every == 0)
        comparison.began(began_ns, is_candidate=is_candidate)
        ended_ns = began_ns + (100 * MS if is_slow else 10 * MS)
        end = RequestEnd.FAILED if fails else RequestEnd.ANSWERED
        comparison.ended(began_ns, ended_ns, SLO_NS, end, is_candidate=is_candidate)
    return comparison


@pytest.mark.parametrize(
    ("slow_every", "errors_every", "verdict"),
    [
        (0, 0, Verdict.AS_GOOD),
        (1009, 0, Verdict.AS_GOOD),  # 0.1 % is less than the tolerance
        (101, 0, Verdict.NONE),  # 1 % is the tolerance
        (10, 0, Verdict.WORSE),
        (0, 10, Verdict.WORSE),
    ],
)
def test_the_interval_decides_beyond_the_tolerance(slow_every: int, errors_every: int, verdict: Verdict) -> None:
    found, words = _compared(slow_every, errors_every).verdict(AT_THE_END_NS)
    assert found is verdict
    assert words.startswith("attainment ")


def test_nothing_is_said_of_few_requests() -> None:
    comparison = RequestComparison("m", 0.01)
    found, words = comparison.verdict(AT_THE_END_NS)
    assert found is Verdict.NONE
    assert words.startswith("too few requests: 0 of the new version in 0 blocks, 0 of the stable one in 0; 200 in 6")


def test_many_errors_need_no_blocks_and_a_stable_version_that_fails_as_often_excuses_them() -> None:
    assert _compared(0, 2).why_hopeless() == (
        "5000 of 10000 requests of the new version failed, and 0 of 10000 of the stable one"
    )
    assert _compared(0).why_hopeless() == ""
    both = RequestComparison("m", 0.01)
    for number in range(1000):
        end = RequestEnd.ANSWERED if number % 4 < 2 else RequestEnd.FAILED
        both.ended(0, 1, SLO_NS, end, is_candidate=number % 2 == 1)
    assert both.why_hopeless() == ""


def test_what_tidegate_rejects_is_late_and_no_error() -> None:
    comparison = RequestComparison("m", 0.01)
    for number in range(2000):
        is_candidate = number % 2 == 1
        comparison.began(number * 20 * MS, is_candidate=is_candidate)
        end = RequestEnd.REJECTED if is_candidate else RequestEnd.ANSWERED
        comparison.ended(number * 20 * MS, number * 20 * MS + MS, SLO_NS, end, is_candidate=is_candidate)
    assert comparison.why_hopeless() == ""
    assert comparison.verdict(AT_THE_END_NS)[0] is Verdict.WORSE
    gains = comparison.intervals()
    assert gains["attainment"] is not None
    assert gains["attainment"][1] < -0.9
    assert gains["errors"] is not None
    assert gains["errors"][0] <= 0 <= gains["errors"][1]


def _drawn_by_client(clients: dict[str, tuple[bool, RequestEnd]]) -> RequestComparison:
    """20,000 requests in 200 s of these clients in turn: whether each has the candidate, and how its requests end."""
    comparison, each = RequestComparison("m", 0.01), list(clients.items())
    for number in range(20_000):
        client, (is_candidate, end) = each[number % len(each)]
        began_ns = number * 10 * MS
        comparison.began(began_ns, is_candidate=is_candidate)
        comparison.ended(began_ns, began_ns + MS, SLO_NS, end, is_candidate=is_candidate, client=client)
    return comparison


ANSWERED, REJECTED, INVALID, FAILED = RequestEnd


@pytest.mark.parametrize(
    ("clients", "is_hopeless", "verdict"),
    [
        # One client of the candidate, with others that are answered: it hinders the promotion, and undoes nothing.
        ({"a": (True, INVALID), "b": (True, ANSWERED), "c": (False, ANSWERED)}, False, Verdict.NONE),
        # Two of them are no coincidence.
        (
            {"a": (True, INVALID), "b": (True, INVALID), "c": (True, ANSWERED), "d": (False, ANSWERED)},
            True,
            Verdict.WORSE,
        ),
        # A candidate that has one client, whatever the error: that gets the stable version again.
        ({"a": (True, INVALID), "b": (False, ANSWERED)}, False, Verdict.NONE),
        ({"a": (True, FAILED), "b": (False, ANSWERED)}, False, Verdict.NONE),
        ({"a": (True, FAILED), "b": (True, ANSWERED), "c": (False, ANSWERED)}, False, Verdict.NONE),
        # Nor do requests that Tidegate rejects, which are late.
        ({"a": (True, REJECTED), "b": (True, ANSWERED), "c": (False, ANSWERED)}, False, Verdict.NONE),
        # Other errors are not excused by it.
        (
            {"a": (True, INVALID), "b": (True, FAILED), "c": (True, ANSWERED), "d": (False, ANSWERED)},
            True,
            Verdict.WORSE,
        ),
        # One client of the stable version makes no candidate look better.
        ({"a": (False, INVALID), "b": (False, ANSWERED), "c": (True, ANSWERED)}, False, Verdict.AS_GOOD),
        (
            {"a": (False, INVALID), "b": (False, ANSWERED), "c": (True, ANSWERED), "d": (True, FAILED)},
            False,
            Verdict.NONE,
        ),
    ],
)
def test_requests_of_one_client_undo_nothing_where_versions_are_drawn_by_client(
    clients: dict[str, tuple[bool, RequestEnd]], is_hopeless: bool, verdict: Verdict
) -> None:
    comparison = _drawn_by_client(clients)
    assert (comparison.why_hopeless() != "") is is_hopeless
    assert comparison.verdict(AT_THE_END_NS)[0] is verdict


def test_a_client_that_departed_hinders_a_promotion_for_some_minutes_only() -> None:
    comparison = _drawn_by_client({"a": (True, ANSWERED), "b": (False, ANSWERED)})
    for _ in range(20):
        comparison.began(0, is_candidate=True)
        comparison.ended(0, MS, SLO_NS, FAILED, is_candidate=True, client="broken script")
    found, words = comparison.verdict(AT_THE_END_NS)
    assert found is Verdict.NONE
    assert words.endswith("; clients that failed and got the stable version again: 1")
    assert comparison.verdict(DEPARTURE_NS + 2 * MS)[0] is Verdict.AS_GOOD


def test_invalid_requests_that_are_drawn_by_request_count_in_both_groups_alike() -> None:
    for of_stable, is_worse in ((2, False), (0, True)):
        comparison = RequestComparison("m", 0.01)
        for number in range(20_000):
            is_candidate, began_ns = number % 2 == 1, number * 10 * MS
            is_invalid = number // 2 % 4 < (2 if is_candidate else of_stable)
            comparison.began(began_ns, is_candidate=is_candidate)
            end = INVALID if is_invalid else ANSWERED
            comparison.ended(began_ns, began_ns + MS, SLO_NS, end, is_candidate=is_candidate)
        assert (comparison.why_hopeless() != "") is is_worse
        assert (comparison.verdict(AT_THE_END_NS)[0] is Verdict.WORSE) is is_worse


def _response(*tensors: tuple[str, np.ndarray]) -> bytes:  # type: ignore[type-arg]
    response = service_pb2.ModelInferResponse(model_name="m")
    for name, values in tensors:
        response.outputs.add(name=name, datatype="FP32" if values.dtype == np.float32 else "INT64", shape=values.shape)
        response.raw_output_contents.append(values.tobytes())
    return bytes(response.SerializeToString())


ONES = np.ones((1, 4), np.float32)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (_response(("Y", ONES)), ""),
        (_response(("Y", ONES * 1.005)), ""),
        (_response(("Y", ONES * 1.5)), "output 'Y': 4 of 4 elements, by up to 0.333 of its largest magnitude"),
        (_response(("Y", ONES.reshape(4, 1))), "output 'Y': 4 of 20 elements"),
        (_response(("Z", ONES)), "outputs Z instead of Y"),
        (_response(("Y", ONES.astype(np.int64))), "output 'Y': 4 of 20 elements"),
    ],
)
def test_responses_differ_in_names_shapes_datatypes_or_values(other: bytes, says: str) -> None:
    assert why_different(_response(("Y", ONES)), other, 0.01) == says


def _copies(*pairs: tuple[bytes | str, float], max_slowdown: float = 1.2) -> ResponseComparison:
    """Copies that the stable version answers in 10 ms."""
    comparison, same = ResponseComparison(0.99, max_slowdown), _response(("Y", ONES))
    for answer, factor in pairs:
        found = why_different(same, answer, 0.01) if isinstance(answer, bytes) else ""
        comparison.add((same, 10 * MS), (answer, round(10 * MS * factor)), found)
    return comparison


def test_copies_need_agreement_and_speed() -> None:
    same, other = _response(("Y", ONES)), _response(("Y", ONES * 2))
    assert _copies(*[(same, 1.0), (same, 1.1)] * 250).verdict(0)[0] is Verdict.AS_GOOD
    assert _copies(*[(same, 1.0), (same, 1.1)] * 90).verdict(0)[0] is Verdict.NONE  # too few
    assert _copies(*[(same, 1.4), (same, 1.6)] * 50).verdict(0)[0] is Verdict.WORSE
    assert _copies(*[(same, 0.1), (same, 14.0)] * 200).verdict(0)[0] is Verdict.NONE  # 1.18 on average, and scattered
    assert _copies(*[(same, 1.0), (other, 1.0)] * 50).verdict(0)[0] is Verdict.WORSE
    found, words = _copies(*[("INVALID_ARGUMENT: no", 1.0)] * 20).verdict(0)
    assert found is Verdict.WORSE
    assert words.endswith("20 failed; the latest difference: INVALID_ARGUMENT: no")


def test_a_stable_version_that_fails_compares_nothing() -> None:
    comparison = ResponseComparison(0.99, 1.2)
    for _ in range(100):
        comparison.add(("UNAVAILABLE: gone", MS), (_response(("Y", ONES)), MS), "")
    assert comparison.verdict(0) == (Verdict.NONE, "0 copies are compared, 200 are needed")
    assert comparison.document()["stable_failed"] == 100
