"""A request of a stream that goes to no Triton is refused in its turn, behind those that wait for their answers."""

import queue
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.proxy.fixtures.calls import request_of, rest_of
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
ROW = np.ones((1, 3), np.float32)


def _refused(name: str) -> service_pb2.ModelInferRequest:
    """A request with a tensor in shared memory that is not for clients."""
    message = service_pb2.ModelInferRequest(model_name="echo", id=name)
    tensor = message.inputs.add(name="X", datatype="FP32", shape=[1, 3])
    tensor.parameters["shared_memory_region"].string_param = "tidegate-1"
    tensor.parameters["shared_memory_byte_size"].int64_param = 12
    return message


@pytest.mark.parametrize("shadow", [False, True], ids=["scheduled", "passing"])
def test_a_refusal_leaves_behind_the_answers_before_it(
    shadow: bool, gate: Any, triton: EmbeddedTriton, serve_here: Make, open_stream: Make
) -> None:
    """Of the requests that are looked at in their order, that to `flat`, which leaves as it comes, is the last."""
    asked = [
        request_of("gated", {"X": ROW}, id="waits"),
        _refused("refused"),
        request_of("echo", {"X": ROW}, id="behind"),
        request_of("flat", {"X": ROW[0]}, id="as it comes"),
    ]
    stream = open_stream(serve_here([triton], shadow=shadow), asked)
    assert next(stream).infer_response.id == "as it comes"
    gate.open()
    answers, code, _ = rest_of(stream)
    assert code is grpc.StatusCode.OK
    assert [answer.infer_response.id for answer in answers] == ["waits", "refused", "behind"]
    assert [bool(answer.error_message) for answer in answers] == [False, True, False]


def test_a_refused_request_is_not_held_for_as_long_as_its_stream_lasts(
    triton: EmbeddedTriton, serve_here: Make, open_stream: Make
) -> None:
    """Else a client that is refused often enough in a stream could send nothing more."""
    sent: queue.Queue[Any] = queue.Queue()
    proxy = serve_here([triton])
    stream = open_stream(proxy, iter(sent.get, None))
    for number in range(3):
        name = str(number) * 50_000
        sent.put(_refused(name))
        assert next(stream).infer_response.id == name
    # The open call itself counts, with its headers.
    eventually(lambda: proxy.serving.bounds.in_flight_bytes < 50_000, "them to be given back")
    sent.put(None)
    assert rest_of(stream)[1] is grpc.StatusCode.OK
