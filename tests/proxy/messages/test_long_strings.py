"""Strings are counted one by one: where that takes long, it is done in a thread, and nobody else waits for it."""

import http.client
import json
import threading
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2
from tritonclient.utils import serialize_byte_tensor

from tests.conftest import eventually
from tests.proxy.fixtures.calls import outcome
from tidegate_proxy.messages import merging
from tidegate_proxy.messages import request as heading
from tidegate_proxy.messages.model_signature import STRINGS_ASIDE_FROM, split_elements
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
COUNT = STRINGS_ASIDE_FROM // 4
CONTENTS: bytes = serialize_byte_tensor(np.array([b"x" * (number % 3) for number in range(COUNT)], object)).item()


def _request(contents: bytes, count: int) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name="echo")
    request.inputs.add(name="X", datatype="BYTES", shape=[1, count])
    request.raw_input_contents.append(contents)
    return request


LARGE = _request(CONTENTS, COUNT)
SMALL = _request(b"\x00\x00\x00\x00", 1)


class Strings:
    """A model that gives strings back, in a Triton that answers when it may, and who counts them."""

    def __init__(self, start_fake: Make) -> None:
        self.triton = start_fake(self.infer)
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.rows: list[int] = []
        self.counted: list[tuple[int, threading.Thread]] = []
        answer = service_pb2.ModelConfigResponse.FromString(self.triton.answers["ModelConfig"])
        for tensor in (*answer.config.input, *answer.config.output):
            tensor.data_type = 13  # TYPE_STRING
        self.triton.answers["ModelConfig"] = answer.SerializeToString()

    def infer(self, request: Any, _context: Any) -> bytes:
        """Of the model."""
        self.entered.set()
        assert self.go_on.wait(60)
        self.rows.append(request.inputs[0].shape[0])
        answer = service_pb2.ModelInferResponse(model_name="echo", model_version="1", id=request.id)
        answer.outputs.add(name="Y", datatype="BYTES", shape=request.inputs[0].shape)
        answer.raw_output_contents.append(request.raw_input_contents[0])
        serialized: bytes = answer.SerializeToString()
        return serialized

    def counting(self, tensor: Any, count: int) -> list[int]:
        """Count the elements of a tensor."""
        self.counted.append((count, threading.current_thread()))
        return split_elements(tensor, count)


@pytest.fixture
def strings(start_fake: Make, monkeypatch: pytest.MonkeyPatch) -> Strings:
    model = Strings(start_fake)
    for module in (heading, merging):
        monkeypatch.setattr(module, "split_elements", model.counting)
    return model


@pytest.mark.parametrize("way", ["one by one", "in a batch", "in a stream"])
def test_many_are_counted_in_a_thread(
    strings: Strings, serve_here: Make, start_call: Make, open_stream: Make, way: str
) -> None:
    proxy = serve_here([strings.triton])
    first = start_call(proxy, "ModelInfer", SMALL)
    assert strings.entered.wait(60)
    if way == "in a stream":
        answers = open_stream(proxy, [SMALL, LARGE, SMALL])
    else:
        calls = [start_call(proxy, "ModelInfer", LARGE) for _ in range(2 if way == "in a batch" else 1)]
        eventually(lambda: proxy.engine.queued == len(calls), "them to queue")
    strings.go_on.set()
    assert outcome(first)[0] is grpc.StatusCode.OK
    if way == "in a stream":
        given = [answer.infer_response.raw_output_contents[0] for answer in answers]
        assert given == [SMALL.raw_input_contents[0], CONTENTS, SMALL.raw_input_contents[0]]
    else:
        for call in calls:
            code, answer = outcome(call)
            assert code is grpc.StatusCode.OK
            assert service_pb2.ModelInferResponse.FromString(answer).raw_output_contents[0] == CONTENTS
        assert strings.rows[-1] == len(calls)
    loop = proxy.in_loop(threading.current_thread)
    by = {
        many: {thread is loop for count, thread in strings.counted if (count >= COUNT) is many}
        for many in (False, True)
    }
    assert by == {False: {True}, True: {False}}


def test_over_http_too(triton: EmbeddedTriton, serve_here: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[threading.Thread] = []

    def counting(tensor: Any, count: int) -> list[int]:
        counted.append(threading.current_thread())
        return split_elements(tensor, count)

    monkeypatch.setattr(heading, "split_elements", counting)
    triton_address = {"grpc": triton.grpc_address, "http": triton.http_address}
    proxy = serve_here([], tritons=[triton_address], listen={"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"})
    floats = [{"name": name, "datatype": "FP32", "shape": [1, 1], "data": [1]} for name in "AB"]
    words = {
        "name": "WORDS",
        "datatype": "BYTES",
        "shape": [1, COUNT],
        "parameters": {"binary_data_size": len(CONTENTS)},
    }
    head = json.dumps({"inputs": [*floats, words], "parameters": {"binary_data_output": True}}).encode()
    connection = http.client.HTTPConnection(proxy.serving.http_address, timeout=60)
    connection.request(
        "POST", "/v2/models/mixer/infer", head + CONTENTS, {"Inference-Header-Content-Length": str(len(head))}
    )
    with connection.getresponse() as response:
        assert response.status == 200
        assert CONTENTS in response.read()
    connection.close()
    assert counted
    assert proxy.in_loop(threading.current_thread) not in counted
