"""A Tidegate that is told to stop answers what it has accepted, refuses what comes, and says how it went."""

import http.client
import json
import queue
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import HERE, eventually
from tests.proxy.fixtures.calls import outcome, request_of, rest_of
from tidegate_proxy.servers.grpc import GrpcService
from tidegate_proxy.servers.http.server import HttpServer
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
ROW = np.ones((1, 3), np.float32)
OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE
SHUTTING_DOWN = "Tidegate is shutting down"


def test_what_is_under_way_is_answered_and_what_comes_is_refused(
    gate: Any, triton: EmbeddedTriton, start_tidegate: Make, start_call: Make, call: Make, open_stream: Make
) -> None:
    tidegate = start_tidegate([triton])
    calls = [start_call(tidegate, "ModelInfer", request_of("gated", {"X": number * ROW})) for number in range(10)]
    typed = service_pb2.ModelInferRequest(model_name="gated")
    typed.inputs.add(name="X", datatype="FP32", shape=(1, 2)).contents.fp32_contents.extend([1, 2])
    typed.outputs.add(name="Y").parameters["classification"].int64_param = 1  # so it is not scheduled
    forwarded = start_call(tidegate, "ModelInfer", typed)
    sent: queue.Queue[Any] = queue.Queue()
    sent.put(request_of("gated", {"X": ROW}, id="under way"))
    sent.put(request_of("repeater", {"X": ROW}, id="arrived"))
    stream = open_stream(tidegate, iter(sent.get, None))
    idle = open_stream(tidegate, iter(queue.Queue().get, None))
    assert [next(stream).infer_response.id for _ in range(3)] == ["arrived"] * 3
    assert call(tidegate, "ServerReady", b"") == (OK, service_pb2.ServerReadyResponse(ready=True).SerializeToString())
    eventually(gate.somebody_waits, "the model to run")

    tidegate.ask_to_stop()
    assert rest_of(idle) == ([], UNAVAILABLE, SHUTTING_DOWN)
    assert call(tidegate, "ModelInfer", request_of("echo", {"X": ROW})) == (UNAVAILABLE, SHUTTING_DOWN)
    assert rest_of(open_stream(tidegate, [])) == ([], UNAVAILABLE, SHUTTING_DOWN)
    assert call(tidegate, "ServerReady", b"") == (OK, b"")
    assert call(tidegate, "/grpc.health.v1.Health/Check", b"") == (OK, b"\x08\x02")
    assert call(tidegate, "ServerLive", b"")[1] == service_pb2.ServerLiveResponse(live=True).SerializeToString()
    gate.open()
    for number, one in enumerate(calls):
        code, answer = outcome(one)
        assert code is OK
        answered = service_pb2.ModelInferResponse.FromString(answer)
        assert answered.raw_output_contents[0] == (number * ROW).tobytes()
    assert outcome(forwarded)[0] is OK
    answers, code, details = rest_of(stream)
    assert [answer.infer_response.id for answer in answers] == ["under way"]
    assert (code, details) == (UNAVAILABLE, SHUTTING_DOWN)
    sent.put(None)
    assert tidegate.stop() == {"accepted": 11, "answered": 11, "late": 0, "failed": 0, "cancelled": 0}


def test_what_takes_too_long_is_told(
    gate: Any, triton: EmbeddedTriton, serve_here: Make, start_call: Make, open_stream: Make
) -> None:
    proxy = serve_here([triton], drain_timeout_s=0.2)
    calls = [start_call(proxy, "ModelInfer", request_of("gated", {"X": ROW})) for _ in range(6)]
    eventually(gate.somebody_waits, "the model to run")
    typed = request_of("gated", {})
    typed.inputs.add(name="X", datatype="FP32", shape=(1, 2)).contents.fp32_contents.extend([1, 2])
    typed.outputs.add(name="Y").parameters["classification"].int64_param = 1  # so it is not scheduled
    forwarded = start_call(proxy, "ModelInfer", typed)
    stream = open_stream(proxy, [request_of("gated", {"X": ROW}, id="mine")])
    eventually(lambda: proxy.engine.tally.accepted == 7, "all of them to arrive")
    tally = proxy.stop()
    told = (UNAVAILABLE, SHUTTING_DOWN)
    assert [outcome(one) for one in (*calls, forwarded)] == [told] * 7
    answers, code, _ = rest_of(stream)
    assert [answer.error_message for answer in answers] == [SHUTTING_DOWN]
    assert code in {OK, UNAVAILABLE}  # the latter where the client had not said yet that it sends no more
    assert (tally.accepted, tally.cancelled) == (7, 7)


def test_under_load_nothing_is_lost(
    triton: EmbeddedTriton, start_tidegate: Make, start_call: Make, transport_of_tests: str
) -> None:
    """Requests follow one another without pause until one is refused; none ends in any other way.

    gRPC's core cancels, now and then, what comes while it stops and nobody has asked it for yet.
    """
    refusals = {UNAVAILABLE} if transport_of_tests == HERE else {UNAVAILABLE, grpc.StatusCode.CANCELLED}
    tidegate = start_tidegate([triton])
    answered = refused = 0
    for number in range(10_000):
        calls = [start_call(tidegate, "ModelInfer", request_of("echo", {"X": ROW})) for _ in range(16)]
        if number == 20:
            tidegate.ask_to_stop()
        outcomes = [outcome(one)[0] for one in calls]
        assert set(outcomes) <= {OK, *refusals}
        answered += outcomes.count(OK)
        refused += sum(one in refusals for one in outcomes)
        if refused:
            break
    assert refused
    tally = tidegate.stop()
    assert tally["accepted"] == tally["answered"] == answered


def test_all_clients_share_one_budget(
    gate: Any, triton: EmbeddedTriton, serve_here: Make, start_call: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What hangs over HTTP and what hangs over gRPC are waited for until the same instant, and both are told."""
    until: list[float] = []

    def note(service: type[GrpcService | HttpServer]) -> None:
        drain = service.drain

        def drained(self: Any, until_s: float, serve_until: float) -> Any:
            until.append(until_s)
            return drain(self, until_s, serve_until)

        monkeypatch.setattr(service, "drain", drained)

    note(GrpcService)
    note(HttpServer)
    listen = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
    tritons = [{"grpc": triton.grpc_address, "http": triton.http_address}]
    proxy = serve_here([triton], drain_timeout_s=0.5, listen=listen, tritons=tritons)
    over_grpc = start_call(proxy, "ModelInfer", request_of("gated", {"X": ROW}))
    connection = http.client.HTTPConnection(proxy.serving.http_address, timeout=60)
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}
    connection.request("POST", "/v2/models/gated/infer", json.dumps(body))
    idle = http.client.HTTPConnection(proxy.serving.http_address, timeout=60)
    idle.request("GET", "/v2/health/live")
    idle.getresponse().read()
    eventually(lambda: proxy.engine.tally.accepted == 2, "both to arrive")
    proxy.stop()
    assert len(until) == 2
    assert len(set(until)) == 1, "one after the other"
    assert outcome(over_grpc) == (UNAVAILABLE, SHUTTING_DOWN)
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())) == (503, {"error": SHUTTING_DOWN})
    connection.close()
    idle.close()


def test_idle_connections_do_not_keep_it_from_ending(triton: EmbeddedTriton, serve_here: Make) -> None:
    listen = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
    tritons = [{"grpc": triton.grpc_address, "http": triton.http_address}]
    proxy = serve_here([triton], drain_timeout_s=600.0, listen=listen, tritons=tritons)
    idle = http.client.HTTPConnection(proxy.serving.http_address, timeout=60)
    for _ in range(2):  # the second on the same connection
        idle.request("GET", "/v2/health/live")
        idle.getresponse().read()
    proxy.stop()  # or pytest's limit ends this
    idle.close()
