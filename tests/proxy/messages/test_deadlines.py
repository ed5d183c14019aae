"""When a request is due."""

import pytest
from tritonclient.grpc import service_pb2

from tidegate.api import NEVER_NS, Model
from tidegate.api.model import DeadlineMissAction
from tidegate_proxy.messages.request import ResponseDeadline, response_deadline, times_in

NOW = 10_000_000_000
MS = 1_000_000
LAX, STRICT = None, 20 * MS


def _due(slo_ns: int | None, grpc_s: float | None = None, **parameters: tuple[str, object]) -> int:
    due_ns = _wanted(slo_ns, grpc_s, "reject", **parameters).deadline_ns
    return due_ns if due_ns == NEVER_NS else due_ns - NOW


def _wanted(
    slo_ns: int | None,
    grpc_s: float | None = None,
    on_deadline_miss: DeadlineMissAction = "reject",
    **parameters: tuple[str, object],
) -> ResponseDeadline:
    header = service_pb2.ModelInferRequest()
    for name, (form, value) in parameters.items():
        setattr(header.parameters[name], form, value)
    return response_deadline(NOW, Model("m", 1, slo_ns, on_deadline_miss=on_deadline_miss), times_in(header), grpc_s)


def test_the_slo_is_the_models_unless_the_request_has_one() -> None:
    assert _due(LAX) == NEVER_NS
    assert _due(STRICT) == 20 * MS
    for form, value in (("int64_param", 50), ("uint64_param", 50), ("double_param", 50.0), ("string_param", "50")):
        assert _due(LAX, slo_ms=(form, value)) == _due(STRICT, slo_ms=(form, value)) == 50 * MS
    assert _due(LAX, slo_ms=("int64_param", 0)) == 0


def test_a_timeout_counts_where_triton_or_an_slo_has_it_count() -> None:
    """Clients give it in seconds, by mistake: Triton ignores that unless the model allows it."""
    header = service_pb2.ModelInferRequest()
    header.parameters["timeout"].int64_param = 5
    assert response_deadline(NOW, Model("m", 1), times_in(header), None) == ResponseDeadline(NEVER_NS, 0)
    assert response_deadline(NOW, Model("m", 1), times_in(header), None, heeds_timeout=True) == ResponseDeadline(
        NOW + 5_000, 0
    )
    assert response_deadline(NOW, Model("m", 1, STRICT), times_in(header), None) == ResponseDeadline(NOW + 5_000, 0)
    header.parameters["slo_ms"].int64_param = 50
    assert response_deadline(NOW, Model("m", 1), times_in(header), None) == ResponseDeadline(NOW + 5_000, 0)


def test_timeout_and_grpc_deadline_only_bring_it_forward() -> None:
    assert _due(STRICT, timeout=("int64_param", 7_000)) == 7 * MS
    assert _due(STRICT, timeout=("int64_param", 70_000)) == 20 * MS
    assert _due(STRICT, 0.005) == 5 * MS
    assert _due(STRICT, 5.0, timeout=("int64_param", 7_000)) == 7 * MS
    assert _due(LAX, 1e18) == NEVER_NS


@pytest.mark.parametrize("timeout", [0, -5, -(2**63)])
def test_a_timeout_that_is_not_positive_is_none_as_in_triton(timeout: int) -> None:
    assert _due(LAX, timeout=("int64_param", timeout)) == NEVER_NS


@pytest.mark.parametrize(
    "value",
    [
        ("double_param", float("nan")),
        ("double_param", float("inf")),
        ("double_param", 1e300),
        ("string_param", "soon"),
        ("string_param", "1e400"),
        ("bool_param", True),
        ("uint64_param", 2**64 - 1),
    ],
)
def test_an_slo_that_is_no_time_is_none(value: tuple[str, object]) -> None:
    assert _due(LAX, slo_ms=value) == NEVER_NS
    assert _due(STRICT, slo_ms=value) == 20 * MS


def test_late_answers_are_wanted_up_to_the_clients_own_limit() -> None:
    assert _wanted(STRICT) == ResponseDeadline(NOW + 20 * MS, 0)
    assert _wanted(STRICT, on_deadline_miss="serve") == ResponseDeadline(NOW + 20 * MS, NEVER_NS)
    assert _wanted(STRICT, 5.0, on_deadline_miss="serve") == ResponseDeadline(NOW + 20 * MS, NOW + 5000 * MS)
    timeout = ("int64_param", 70_000)
    assert _wanted(STRICT, 5.0, on_deadline_miss="serve", timeout=timeout) == ResponseDeadline(
        NOW + 20 * MS, NOW + 70 * MS
    )
    assert _wanted(LAX, on_deadline_miss="serve", slo_ms=("int64_param", 0)) == ResponseDeadline(NOW, NEVER_NS)


def test_what_is_not_late_is_not_wanted_late() -> None:
    assert _wanted(LAX, on_deadline_miss="serve") == ResponseDeadline(NEVER_NS, 0)
    assert _wanted(LAX, 0.005, on_deadline_miss="serve") == ResponseDeadline(NOW + 5 * MS, 0)
    assert _wanted(STRICT, 0.005, on_deadline_miss="serve") == ResponseDeadline(NOW + 5 * MS, 0)
    assert _wanted(STRICT, on_deadline_miss="serve", slo_ms=("double_param", 1e14)) == ResponseDeadline(NEVER_NS, 0)


def test_no_instant_lies_beyond_never() -> None:
    assert _due(LAX, slo_ms=("double_param", 1e14)) == NEVER_NS
    assert _due(LAX, timeout=("int64_param", 2**63 - 1)) == NEVER_NS


@pytest.mark.parametrize("on_deadline_miss", ["reject", "serve"])
@pytest.mark.parametrize("value", [-1, -0.001, -9.9e14])
def test_no_request_is_due_before_it_arrives(on_deadline_miss: DeadlineMissAction, value: float) -> None:
    assert _wanted(STRICT, on_deadline_miss=on_deadline_miss, slo_ms=("double_param", value)).deadline_ns == NOW
