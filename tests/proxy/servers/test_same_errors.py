"""Whatever is wrong with a request, Tidegate says what Triton says, in the same words and with the same code."""

import threading
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tidegate_proxy.tritons.embedded import EmbeddedTriton

Call = Callable[..., tuple[grpc.StatusCode, Any]]
ROW = np.ones((1, 3), np.float32)
INVALID, MISSING, BROKEN = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INTERNAL
UNIMPLEMENTED, FINE = grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.OK


def _request(model: str = "echo", array: "np.ndarray[Any, Any]" = ROW, **fields: str) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name=model, **fields)
    datatype = "INT32" if array.dtype == np.int32 else "FP32"
    message.inputs.add(name="X", datatype=datatype, shape=array.shape)
    message.raw_input_contents.append(array.tobytes())
    return message


def _changed(change: Callable[[service_pb2.ModelInferRequest], object]) -> service_pb2.ModelInferRequest:
    message = _request()
    change(message)
    return message


def _with(name: str, **value: object) -> service_pb2.ModelInferRequest:
    return _changed(lambda message: message.parameters[name].MergeFrom(service_pb2.InferParameter(**value)))


def _shaped(*shape: int, raw: bytes = bytes(12)) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[raw])
    message.inputs.add(name="X", datatype="FP32", shape=shape)
    return message


def _typed(message: service_pb2.ModelInferRequest) -> None:
    message.inputs[0].contents.fp32_contents.extend([1, 2, 3])


def _twice(message: service_pb2.ModelInferRequest) -> None:
    message.inputs.add().CopyFrom(message.inputs[0])
    message.raw_input_contents.append(message.raw_input_contents[0])


def _output_twice(message: service_pb2.ModelInferRequest) -> None:
    message.outputs.add(name="Y")
    message.outputs.add(name="Y")


CASES: dict[str, tuple[Any, grpc.StatusCode]] = {
    "nothing wrong": (_request(id="mine"), FINE),
    "unknown model": (_request("nope"), MISSING),
    "no model": (b"", MISSING),
    "unknown version": (_request(model_version="7"), MISSING),
    "version that is no number": (_request(model_version="first"), INVALID),
    "wrong input name": (_changed(lambda message: setattr(message.inputs[0], "name", "Z")), INVALID),
    "missing input": (service_pb2.ModelInferRequest(model_name="echo", id="mine"), INVALID),
    "input twice": (_changed(_twice), INVALID),
    "too few dimensions": (_shaped(3), INVALID),
    "too many dimensions": (_shaped(1, 1, 3), INVALID),
    "negative dimension": (_shaped(1, -3), INVALID),
    "negative dimensions": (_shaped(-1, -3), INVALID),
    "no columns": (_shaped(2, 0, raw=b""), FINE),
    "wrong datatype": (_request(array=ROW.astype(np.int32)), INVALID),
    "no such datatype": (_changed(lambda message: setattr(message.inputs[0], "datatype", "FP33")), INVALID),
    "too many rows": (_request(array=np.ones((5, 3), np.float32), id="mine"), INVALID),
    "no rows": (_request(array=np.ones((0, 3), np.float32)), INVALID),
    "too few bytes": (_shaped(1, 3, raw=b"abc"), INVALID),
    "too many bytes": (_shaped(1, 3, raw=bytes(16)), INVALID),
    "no contents": (_changed(lambda message: message.ClearField("raw_input_contents")), INVALID),
    "typed and raw contents": (_changed(_typed), INVALID),
    "unknown output": (_changed(lambda message: message.outputs.add(name="NOPE")), INVALID),
    "output twice": (_changed(_output_twice), FINE),
    "garbage": (b"\xff" * 12, BROKEN),
    "a name that never ends": (b"\x0a" + b"\xff" * 12, BROKEN),
    "a message cut short": (_request().SerializeToString()[:-3], BROKEN),
    "two names": (_request().SerializeToString() + b"\x0a\x04nope", MISSING),
    "timeout as text": (_with("timeout", string_param="soon"), INVALID),
    "timeout unsigned": (_with("timeout", uint64_param=5), INVALID),
    "timeout negative": (_with("timeout", int64_param=-5), FINE),
    "timeout zero": (_with("timeout", int64_param=0), FINE),
    "priority as text": (_with("priority", string_param="5"), INVALID),
    "priority negative": (_with("priority", int64_param=-5), INVALID),
    "SLO without end": (_with("slo_ms", double_param=float("inf")), FINE),
    "SLO that is no number": (_with("slo_ms", double_param=float("nan")), FINE),
    "reserved parameter": (_with("triton_mine", bool_param=True), INVALID),
    "any other parameter": (_with("mine", bool_param=True), FINE),
    "no batch dimension": (_request("flat"), INVALID),
    "no sequence id": (_request("counter"), INVALID),
    "decoupled": (_request("repeater"), UNIMPLEMENTED),
    "the model raises": (_request("picky", -ROW), BROKEN),
    "a step of an ensemble raises": (_request("chain", -ROW), BROKEN),
}


@pytest.mark.parametrize("case", CASES)
def test_tidegate_says_what_triton_says(case: str, call: Call, triton: EmbeddedTriton, tidegate: object) -> None:
    message, code = CASES[case]
    expected = call(triton, "ModelInfer", message)
    assert expected[0] == code, expected
    assert call(tidegate, "ModelInfer", message) == expected


@pytest.mark.parametrize(
    "method",
    [
        "/some.Service/Method",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.health.v1.Health/Watch",
        "/inference.GRPCInferenceService/ModelWarm",
        "/inference.GRPCInferenceService",
    ],
)
def test_an_unknown_method_is_refused_before_anything_is_sent(
    triton: EmbeddedTriton, tidegate: Any, method: str
) -> None:
    """As tools find out whether a server offers reflection: they keep their side open."""
    seen = []
    for address in (triton.grpc_address, tidegate.address):
        held = threading.Event()
        with grpc.insecure_channel(address) as channel:
            stream = channel.stream_stream(method)(iter(held.wait, True), timeout=60)
            seen.append((stream.code(), stream.details()))
            held.set()
    assert seen == [(UNIMPLEMENTED, "")] * 2
