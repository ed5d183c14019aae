"""What a client says at such length that Triton's answer breaks a connection, breaks nobody else's call."""

from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import HERE, eventually
from tests.proxy.fixtures.calls import outcome, request_of
from tests.proxy.fixtures.models import add_model
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
ROW = np.ones((1, 3), np.float32)
LONG = "n" * 70_000
"""Triton repeats names in its errors; libnghttp2 ends a connection over which a header of more than 64 KiB comes."""
LOUD = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        given = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
        raise ValueError("cannot take " + given.tobytes().hex())
"""
ASKED: dict[str, tuple[str, Any]] = {
    "inference": ("ModelInfer", service_pb2.ModelInferRequest(model_name=LONG)),
    "metadata": ("ModelMetadata", service_pb2.ModelMetadataRequest(name=LONG)),
    "in many bytes each": ("ModelMetadata", service_pb2.ModelMetadataRequest(name="ü" * 12_000)),
}


@pytest.mark.parametrize("asked", ASKED)
def test_it_breaks_no_other_clients_call(
    gate: Any, triton: EmbeddedTriton, serve_here: Make, start_call: Make, open_stream: Make, asked: str
) -> None:
    proxy = serve_here([triton])
    scheduled = start_call(proxy, "ModelInfer", request_of("gated", {"X": ROW}))
    typed = request_of("gated", {})
    typed.inputs.add(name="X", datatype="FP32", shape=(1, 2)).contents.fp32_contents.extend([1, 2])
    typed.outputs.add(name="Y").parameters["classification"].int64_param = 1  # so it is not scheduled
    passed_through = start_call(proxy, "ModelInfer", typed)
    eventually(gate.somebody_waits, "the model to run")
    for _ in range(3):
        assert outcome(start_call(proxy, *ASKED[asked]))[0] is not grpc.StatusCode.OK
    gate.open()
    assert outcome(scheduled)[0] is grpc.StatusCode.OK
    assert outcome(passed_through)[0] is grpc.StatusCode.OK


@pytest.fixture(scope="module")
def loud(
    start_triton: Callable[..., EmbeddedTriton], gate_itself: Any, tmp_path_factory: pytest.TempPathFactory
) -> EmbeddedTriton:
    """A Triton whose model `loud` says in an error what it was given."""
    repository = tmp_path_factory.mktemp("loud")
    add_model(repository, "gated", "max_batch_size: 4", gate=gate_itself.file)
    (add_model(repository, "loud", "max_batch_size: 4") / "model.py").write_text(LOUD)
    return start_triton([repository])


def _typed(model: str, columns: int) -> service_pb2.ModelInferRequest:
    """A request that is passed through."""
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="X", datatype="FP32", shape=(1, columns)).contents.fp32_contents.extend([0.0] * columns)
    request.outputs.add(name="Y").parameters["classification"].int64_param = 1
    return request


@pytest.mark.parametrize("columns", [700, 10_000, 1_000_000])
@pytest.mark.parametrize("way", ["scheduled", "passed through", "in a stream"])
def test_what_a_model_says_of_its_input_breaks_no_other_clients_call(
    gate: Any,
    loud: EmbeddedTriton,
    serve_here: Make,
    start_call: Make,
    open_stream: Make,
    transport_of_tests: str,
    way: str,
    columns: int,
) -> None:
    proxy = serve_here([loud])
    raw = request_of("loud", {"X": np.zeros((1, columns), np.float32)})
    if way == "passed through":
        others = start_call(proxy, "ModelInfer", request_of("gated", {"X": ROW}))
    else:
        others = start_call(proxy, "ModelInfer", _typed("gated", 3))
    eventually(gate.somebody_waits, "the model to run")
    if way == "in a stream":
        [answer] = list(open_stream(proxy, [raw]))
        words = answer.error_message
    else:
        code, words = outcome(start_call(proxy, "ModelInfer", raw if way == "scheduled" else _typed("loud", columns)))
        assert code in {grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED}
    gate.open()
    assert outcome(others)[0] is grpc.StatusCode.OK
    # gRPC's core gives nothing of a header of over 16 KiB, and by chance nothing of one of over 8 KiB.
    if transport_of_tests == HERE or columns == 700:
        assert "cannot take 0000" in words
