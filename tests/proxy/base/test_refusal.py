"""What Tidegate refuses says why, in a word that programs can read; what Triton refuses has none."""

import http.client
import json
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest

from tests.conftest import eventually
from tests.proxy.fixtures.calls import outcome, request_of
from tidegate_proxy.base import refusal
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
ROW = np.ones((1, 3), np.float32)
STRICT = (("triton_grpc_error", "true"),)


def _reason(under_way: Any) -> str | None:
    assert isinstance(under_way.exception(), grpc.RpcError)
    words = dict(under_way.trailing_metadata()).get(refusal.REASON_HEADER)
    assert words is None or isinstance(words, str)
    return words


def test_over_grpc_and_http(
    gate: Any, triton: EmbeddedTriton, serve_here: Make, start_call: Make, open_stream: Make
) -> None:
    listen = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
    tritons = [{"grpc": triton.grpc_address, "http": triton.http_address}]
    proxy = serve_here([], tritons=tritons, policy="symphony", limits={"max_queue_size": 2}, listen=listen)
    running = start_call(proxy, "ModelInfer", request_of("gated", {"X": ROW}))
    eventually(gate.somebody_waits, "the model to run")

    expired = request_of("gated", {"X": ROW})
    expired.parameters["slo_ms"].int64_param = 0
    assert _reason(start_call(proxy, "ModelInfer", expired)) == "deadline_expired"

    dropped = request_of("gated", {"X": ROW})
    dropped.parameters["timeout"].int64_param = 300_000
    dropped.parameters["slo_ms"].int64_param = 3_600_000
    assert _reason(start_call(proxy, "ModelInfer", dropped)) == "deadline_unreachable"
    stream = open_stream(proxy, [dropped], metadata=STRICT)
    with pytest.raises(grpc.RpcError):
        list(stream)
    assert dict(stream.trailing_metadata())[refusal.REASON_HEADER] == "deadline_unreachable"

    waiting = start_call(proxy, "ModelInfer", request_of("gated", {"X": ROW}))
    eventually(lambda: proxy.engine.queued == 1, "it to queue")
    assert _reason(start_call(proxy, "ModelInfer", request_of("gated", {"X": ROW}))) == "queue_full"
    body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 3], "data": [1, 1, 1]}]})
    connection = http.client.HTTPConnection(proxy.serving.http_address, timeout=60)
    connection.request("POST", "/v2/models/gated/infer", body)
    response = connection.getresponse()
    assert (response.status, response.getheader(refusal.REASON_HEADER)) == (503, "queue_full")
    assert json.loads(response.read())["error"].endswith("Exceeds maximum queue size")
    connection.close()

    gate.open()
    assert [outcome(one)[0] for one in (running, waiting)] == [grpc.StatusCode.OK] * 2
    assert _reason(start_call(proxy, "ModelInfer", request_of("nobody", {"X": ROW}))) is None


def test_a_policys_reason_becomes_one_word() -> None:
    assert refusal.word_of("queue full") == "queue_full"
    assert refusal.word_of("Überlast: 3 > 2\r\nx: y") == "berlast_3_2_x_y"
    assert refusal.word_of("!") == "dropped"
    assert len(refusal.word_of("a" * 1000)) == refusal.MAX_LETTERS
