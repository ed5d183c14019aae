"""Requests that nobody waits for any more, or that would come too late."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.examples import few
from tests.proxy.fixtures.calls import outcome, request_of
from tests.proxy.fixtures.gate import pending_at
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
FULL = np.ones((4, 3), np.float32)
ROW = FULL[:1]
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def _timed(message: service_pb2.ModelInferRequest, timeout_us: int) -> service_pb2.ModelInferRequest:
    if timeout_us:
        message.parameters["timeout"].int64_param = timeout_us
        message.parameters["slo_ms"].int64_param = 3_600_000  # with which Tidegate heeds it
    return message


def _rows(call: Make, triton: EmbeddedTriton, model: str) -> int:
    _, answer = call(triton, "ModelStatistics", service_pb2.ModelStatisticsRequest(name=model))
    (statistic,) = service_pb2.ModelStatisticsResponse.FromString(answer).model_stats
    return int(statistic.inference_count)


def test_a_deadline_that_passes_is_told_in_tritons_words(
    gate: Any, triton: EmbeddedTriton, start_tidegate: Make, start_call: Make, call: Make
) -> None:
    # One batch runs and one waits for the instance; what comes after them stays in the batcher's queue.
    ahead = [start_call(triton, "ModelInfer", request_of("patient", {"X": FULL})) for _ in range(2)]
    eventually(gate.somebody_waits, "the model to run")
    late = start_call(triton, "ModelInfer", _timed(request_of("patient", {"X": FULL}, id="late"), 1))
    eventually(lambda: pending_at(triton, "patient") == 2, "it to wait there behind the other")
    gate.open()  # it looks at its queue again when an instance is free
    words = outcome(late)
    assert [outcome(one)[0] for one in ahead] == [grpc.StatusCode.OK] * 2
    assert words == (UNAVAILABLE, "Request timeout expired")

    gate.shut()
    tidegate = start_tidegate([triton], policy="symphony")
    running = start_call(tidegate, "ModelInfer", request_of("gated", {"X": FULL}))
    eventually(gate.somebody_waits, "the model to run")
    in_queue = start_call(tidegate, "ModelInfer", _timed(request_of("gated", {"X": ROW}, id="late"), 300_000))
    assert outcome(in_queue) == words
    on_arrival = request_of("gated", {"X": ROW}, id="late")
    on_arrival.parameters["slo_ms"].int64_param = 0
    assert call(tidegate, "ModelInfer", on_arrival) == words
    gate.open()
    assert outcome(running)[0] is grpc.StatusCode.OK
    # The one that was late on its arrival was not even accepted.
    assert tidegate.stop() == {
        "accepted": 2,
        "answered": 1,
        "late": 0,
        "failed": 0,
        "cancelled": 0,
        "deadline_unreachable": 1,
    }


@dataclass
class Occupied:
    """A Tidegate whose model runs a request until the gate opens."""

    tidegate: Any
    running: Any
    ask: Callable[..., Any]
    """`ask(2, timeout_us=300_000)`: begin another call, whose row is of twos."""


@pytest.fixture
def occupied(gate: Any, triton: EmbeddedTriton, serve_here: Make, start_call: Make) -> Callable[..., Occupied]:
    """`occupied("fifs", models={...}, ...)`: a proxy in this process, whose model is occupied."""

    def start(policy: str, **options: Any) -> Occupied:
        tidegate = serve_here([triton], policy=policy, **options)

        def ask(value: int = 1, *, timeout_us: int = 0) -> Any:
            return start_call(tidegate, "ModelInfer", _timed(request_of("gated", {"X": value * ROW}), timeout_us))

        running = ask()
        eventually(gate.somebody_waits, "the model to run")
        return Occupied(tidegate, running, ask)

    return start


@pytest.mark.parametrize("policy", few(["symphony", "eager"]))
def test_one_whose_time_passes_behind_another_that_has_more_is_told_then(
    policy: str, gate: Any, occupied: Callable[..., Occupied]
) -> None:
    model = occupied(policy)
    patient = model.ask()
    eventually(lambda: model.tidegate.engine.queued == 1, "it to wait")
    assert outcome(model.ask(timeout_us=300_000)) == (UNAVAILABLE, "Request timeout expired")
    assert not model.running.done()
    assert not patient.done()
    gate.open()
    assert [outcome(one)[0] for one in (model.running, patient)] == [grpc.StatusCode.OK] * 2


@pytest.mark.parametrize("policy", ["clockwork", "eager", "orloj", "symphony"])
def test_where_a_model_serves_late_only_clients_end_the_wait(
    policy: str, gate: Any, occupied: Callable[..., Occupied]
) -> None:
    model = occupied(policy, models={"gated": {"slo_ms": 300, "on_deadline_miss": "serve"}})
    patient = [model.ask(k) for k in (1, 2)]
    hurried = model.ask(timeout_us=500_000)
    state = model.tidegate.engine._state
    eventually(
        lambda: (len(state.waiting.late), len(state.waiting.queued)) == (2, 0),
        "the time of all to be over, and the client of one to wait no longer",
    )
    assert outcome(hurried) == (UNAVAILABLE, "Request timeout expired")
    assert not any(one.done() for one in patient)
    gate.open()
    assert outcome(model.running)[0] is grpc.StatusCode.OK
    for k, one in zip((1, 2), patient, strict=True):
        code, answer = outcome(one)
        assert code is grpc.StatusCode.OK
        assert service_pb2.ModelInferResponse.FromString(answer).raw_output_contents[0] == (k * ROW).tobytes()
    tally = model.tidegate.stop()
    assert (tally.accepted, tally.answered, tally.late, dict(tally.dropped)) == (4, 3, 3, {"deadline_unreachable": 1})


def test_a_cancelled_request_is_never_run(
    gate: Any, triton: EmbeddedTriton, serve_here: Make, start_call: Make, start_overdue: Make, call: Make
) -> None:
    tidegate = serve_here([triton], policy="fifs")
    before = _rows(call, triton, "gated")
    running = start_call(tidegate, "ModelInfer", request_of("gated", {"X": FULL}))
    eventually(gate.somebody_waits, "the model to run")
    cancelled = start_call(tidegate, "ModelInfer", request_of("gated", {"X": ROW}))
    kept = start_call(tidegate, "ModelInfer", request_of("gated", {"X": 2 * ROW}))
    eventually(lambda: tidegate.engine.queued == 2, "both to queue")
    too_late = start_overdue(tidegate, "ModelInfer", request_of("gated", {"X": ROW}))
    cancelled.cancel()
    assert {outcome(one)[0] for one in too_late} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    eventually(lambda: tidegate.engine.queued == 1, "all but one to leave")
    gate.open()
    assert outcome(running)[0] is grpc.StatusCode.OK
    code, answer = outcome(kept)
    assert code is grpc.StatusCode.OK
    assert service_pb2.ModelInferResponse.FromString(answer).raw_output_contents[0] == (2 * ROW).tobytes()
    eventually(lambda: _rows(call, triton, "gated") >= before + 5, "Triton to count what it has answered")
    assert _rows(call, triton, "gated") == before + 5
    tally = tidegate.stop()
    assert (tally.answered, tally.late, tally.failed, tally.cancelled) == (2, 0, 0, tally.accepted - 2)
    assert tally.accepted >= 4
