"""Beyond its limits Tidegate refuses at once, in Triton's words; nothing of what it refused or dropped stays behind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.conftest import eventually
from tests.proxy.fixtures.calls import outcome, request_of, rest_of
from tests.proxy.fixtures.models import add_model
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
ROW = np.ones((1, 3), np.float32)
FULL = np.ones((4, 3), np.float32)
OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE
ONE_AT_A_TIME = "max_batch_size: 4 dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
STRICT = (("triton_grpc_error", "true"),)


@pytest.fixture
def full_triton(gate: Any, start_triton: Make, start_call: Make, call: Make, tmp_path: Path) -> Any:
    """A Triton whose model `gated` runs one batch and queues one, so that it takes no more."""
    add_model(tmp_path, "gated", ONE_AT_A_TIME, gate=gate.file)
    triton = start_triton([tmp_path])
    under_way = [start_call(triton, "ModelInfer", request_of("gated", {"X": FULL}))]
    eventually(gate.somebody_waits, "the model to run")

    def refused() -> bool:  # what it takes at most is more than the queue: a batch may have been formed already
        under_way.append(start_call(triton, "ModelInfer", request_of("gated", {"X": FULL})))
        assert call(triton, "ServerLive", b"")[0] is OK
        return bool(under_way[-1].done())

    eventually(refused, "its queue to be full")
    yield triton
    gate.open()
    assert {outcome(one)[0] for one in under_way} == {OK, UNAVAILABLE}


@pytest.mark.parametrize("name", ["mine", ""])
def test_a_full_queue_is_told_in_tritons_words(
    name: str,
    full_triton: EmbeddedTriton,
    triton: EmbeddedTriton,
    gate: Any,
    serve_here: Make,
    start_call: Make,
    call: Make,
    open_stream: Make,
) -> None:
    proxy = serve_here([triton], limits={"max_queue_size": 1})
    running = start_call(proxy, "ModelInfer", request_of("gated", {"X": ROW}))
    eventually(lambda: proxy.engine.in_flight == 1, "the model to run")
    one_more = request_of("gated", {"X": FULL}, id=name)
    told = call(full_triton, "ModelInfer", one_more)
    assert told[0] is UNAVAILABLE
    assert call(proxy, "ModelInfer", one_more) == told
    for metadata in ((), STRICT):
        answers = rest_of(open_stream(full_triton, [one_more], metadata=metadata))
        assert answers[1] is OK
        assert rest_of(open_stream(proxy, [one_more], metadata=metadata)) == answers
    gate.open()
    assert outcome(running)[0] is OK
    assert proxy.stop().accepted == 1


@pytest.mark.parametrize("limit", ["requests", "bytes"])
def test_room_is_made_by_every_end_of_a_request(
    limit: str, gate: Any, triton: EmbeddedTriton, serve_here: Make, start_call: Make, start_overdue: Make, call: Make
) -> None:
    request = request_of("gated", {"X": ROW})
    with_timeout = request_of("gated", {"X": ROW})
    with_timeout.parameters["timeout"].int64_param = 300_000
    with_timeout.parameters["slo_ms"].int64_param = 3_600_000
    size = len(request.SerializeToString())
    limits = {"max_queue_size": 5} if limit == "requests" else {"max_queue_bytes": 5 * size}
    proxy = serve_here([triton], policy="symphony", limits=limits)

    def is_full() -> bool:
        code, words = call(proxy, "ModelInfer", request)
        assert code is UNAVAILABLE
        return "Exceeds maximum queue size" in words

    for _ in range(3):
        gate.shut()
        answered = [start_call(proxy, "ModelInfer", request)]
        eventually(gate.somebody_waits, "the model to run")
        assert outcome(start_call(proxy, "ModelInfer", with_timeout)) == (UNAVAILABLE, "Request timeout expired")
        for overdue in start_overdue(proxy, "ModelInfer", request):
            assert outcome(overdue)[0] in (grpc.StatusCode.DEADLINE_EXCEEDED, UNAVAILABLE)
        eventually(lambda: proxy.engine.queued == 0, "both to leave")
        cancelled = start_call(proxy, "ModelInfer", request)
        answered += [start_call(proxy, "ModelInfer", request) for _ in range(3)]
        eventually(lambda: proxy.engine.queued == 4, "all of them to arrive")
        assert is_full()
        cancelled.cancel()
        eventually(lambda: proxy.engine.queued == 3, "it to leave")
        answered.append(start_call(proxy, "ModelInfer", request))
        eventually(lambda: proxy.engine.queued == 4, "another to take its place")
        assert is_full()
        gate.open()
        assert [outcome(one)[0] for one in answered] == [OK] * 5
        eventually(lambda: proxy.engine.tally.ended == proxy.engine.tally.accepted, "all of them to end")
    assert (proxy.engine.queued, proxy.engine.in_flight) == (0, 0)


def test_the_status_is_a_choice(
    gate: Any, triton: EmbeddedTriton, serve_here: Make, start_call: Make, call: Make
) -> None:
    shed = grpc.StatusCode.RESOURCE_EXHAUSTED
    proxy = serve_here([triton], policy="symphony", limits={"max_queue_size": 2}, shedding={"status": shed.name})
    running = start_call(proxy, "ModelInfer", request_of("gated", {"X": ROW}))
    eventually(gate.somebody_waits, "the model to run")
    dropped = request_of("gated", {"X": ROW})
    dropped.parameters["timeout"].int64_param = 500_000
    dropped.parameters["slo_ms"].int64_param = 3_600_000
    assert outcome(start_call(proxy, "ModelInfer", dropped)) == (shed, "Request timeout expired")
    waiting = start_call(proxy, "ModelInfer", request_of("gated", {"X": ROW}))
    eventually(lambda: proxy.engine.queued == 1, "it to queue")
    code, words = call(proxy, "ModelInfer", request_of("gated", {"X": ROW}, id="mine"))
    assert (code, words) == (shed, "[request id: mine] Exceeds maximum queue size")
    gate.open()
    assert [outcome(one)[0] for one in (running, waiting)] == [OK, OK]
    tally = proxy.stop()
    assert (tally.accepted, tally.answered, tally.dropped.total()) == (3, 2, 1)
