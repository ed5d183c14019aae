"""Requests without inputs, where all inputs are optional: Triton sees them, and they harm no other request."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from tests.proxy.fixtures.calls import outcome
from tests.python_models import write_model
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
OPTIONAL = """
backend: "python"
max_batch_size: 8
input [
  { name: "A" data_type: TYPE_FP32 dims: [ 1 ] optional: true },
  { name: "B" data_type: TYPE_FP32 dims: [ 1 ] optional: true }
]
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { kind: KIND_CPU }
"""
SUM = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            given = [pb_utils.get_input_tensor_by_name(request, name) for name in "AB"]
            total = sum((each.as_numpy() for each in given if each is not None), np.zeros((1, 1), np.float32))
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", total)]))
        return answers
"""


def message(model: str, *names: str) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name=model)
    for name in names:
        request.inputs.add(name=name, datatype="FP32", shape=[1, 1])
        request.raw_input_contents.append(np.full((1, 1), 3, np.float32).tobytes())
    return request


@pytest.fixture
def triton(start_triton: Make, tmp_path: Path) -> EmbeddedTriton:
    for model, parameter in {
        "alone": "",
        "merged": 'parameters { key: "tidegate_scheduling" value: { string_value: "batched" } }',
    }.items():
        write_model(tmp_path, model, SUM, OPTIONAL + parameter)
    triton: EmbeddedTriton = start_triton([tmp_path])
    return triton


@pytest.fixture
def proxy(triton: EmbeddedTriton, serve_here: Make) -> Any:
    tritons = [{"grpc": triton.grpc_address, "http": triton.http_address}]
    return serve_here([], tritons=tritons, listen={"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"})


@pytest.mark.parametrize("model", ["alone", "merged"])
def test_they_get_tritons_word_beside_others_and_the_policy_stays(
    model: str, triton: EmbeddedTriton, proxy: Any, start_call: Make, connect: Make
) -> None:
    with pytest.raises(InferenceServerException) as refused:
        connect(triton).infer(model, [])
    sets = [(), ("A",), ("A", "B")]
    calls = [start_call(proxy, "ModelInfer", message(model, *sets[number % 3]), timeout=60) for number in range(30)]
    for number, (code, answer) in enumerate(map(outcome, calls)):
        if number % 3:
            raw = service_pb2.ModelInferResponse.FromString(answer).raw_output_contents[0]
            assert np.frombuffer(raw, np.float32) == [3 * (number % 3)]
        else:
            assert (f"StatusCode.{code.name}", answer) == (refused.value.status(), refused.value.message())
    assert post(proxy.serving.http_address, model) == post(triton.http_address, model)
    engine = proxy.engine
    assert engine.decides == engine.name
    assert engine.tally.failed == 0


def post(address: str, model: str) -> tuple[int, bytes]:
    """The status and body for a request over HTTP that has no inputs."""
    request = Request(f"http://{address}/v2/models/{model}/infer", b'{"inputs":[]}', method="POST")
    try:
        with urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        return error.code, error.read()
