"""What a client says at such length that Triton's answer breaks a connection, breaks nobody else's call."""

from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tidegate_proxy.embedded import EmbeddedTriton

Make = Callable[..., Any]
ROW = np.ones((1, 3), np.float32)
LONG = "n" * 70_000
"""Triton repeats names in its errors, and a header of more than 64 KiB ends the connection that it comes over."""
ASKED: dict[str, tuple[str, Any]] = {
    "inference": ("ModelInfer", service_pb2.ModelInferRequest(model_name=LONG)),
    "metadata": ("ModelMetadata", service_pb2.ModelMetadataRequest(name=LONG)),
    "in many bytes each": ("ModelMetadata", service_pb2.ModelMetadataRequest(name="ü" * 12_000)),
}


@pytest.mark.parametrize("asked", ASKED)
def test_it_breaks_nobody_elses_call(
    gate: Any,  # noqa: ANN401
    triton: EmbeddedTriton,
    serve_here: Make,
    start_call: Make,
    request_of: Make,
    outcome: Make,
    open_stream: Make,
    eventually: Make,
    asked: str,
) -> None:
    proxy = serve_here([triton])
    scheduled = start_call(proxy, "ModelInfer", request_of("gated", {"X": ROW}))
    typed = request_of("gated", {})
    typed.inputs.add(name="X", datatype="FP32", shape=(1, 2)).contents.fp32_contents.extend([1, 2])
    passed_through = start_call(proxy, "ModelInfer", typed)
    eventually(gate.somebody_waits, "the model to run")
    for _ in range(3):
        assert outcome(start_call(proxy, *ASKED[asked]))[0] is not grpc.StatusCode.OK
    gate.open()
    assert outcome(scheduled)[0] is grpc.StatusCode.OK
    assert outcome(passed_through)[0] is grpc.StatusCode.OK
