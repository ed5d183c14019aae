"""Typed contents are scheduled as raw ones are: nobody passes by the turns of others for how a tensor is written."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tidegate_proxy.messages.model_signature import ModelSignature, TensorSpec
from tidegate_proxy.messages.request import MAX_BYTES, NotSchedulable, open_envelope

VALUES: dict[str, tuple[str, list[Any], type]] = {
    "BOOL": ("bool_contents", [True, False], np.bool_),
    "INT8": ("int_contents", [-128, 127], np.int8),
    "INT16": ("int_contents", [-5, 300], np.int16),
    "INT32": ("int_contents", [-5, 1 << 30], np.int32),
    "INT64": ("int64_contents", [-5, 1 << 60], np.int64),
    "UINT8": ("uint_contents", [0, 255], np.uint8),
    "UINT16": ("uint_contents", [0, 65_535], np.uint16),
    "UINT32": ("uint_contents", [0, (1 << 32) - 1], np.uint32),
    "UINT64": ("uint64_contents", [0, (1 << 64) - 1], np.uint64),
    "FP32": ("fp32_contents", [1.5, -2.25], np.float32),
    "FP64": ("fp64_contents", [1.1, -2.2], np.float64),
}


def signature(datatype: str) -> ModelSignature:
    inputs = {"X": TensorSpec(datatype, (-1,))}
    return ModelSignature(model="m", inputs=inputs, outputs=frozenset({"Y"}), max_rows=4)


def typed(
    datatype: str, field: str, values: list[object], shape: tuple[int, ...] = (1, 2)
) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name="m", id="mine")
    tensor = message.inputs.add(name="X", datatype=datatype, shape=shape)
    getattr(tensor.contents, field).extend(values)
    return message


@pytest.mark.parametrize("datatype", VALUES)
def test_they_are_the_same_request_as_with_raw_contents(datatype: str) -> None:
    field, values, dtype = VALUES[datatype]
    raw = service_pb2.ModelInferRequest(model_name="m", id="mine")
    raw.inputs.add(name="X", datatype=datatype, shape=[1, 2])
    raw.raw_input_contents.append(np.array(values, dtype).tobytes())
    seen = open_envelope(typed(datatype, field, list(values)).SerializeToString(), signature(datatype))
    wanted = open_envelope(raw.SerializeToString(), signature(datatype))
    assert service_pb2.ModelInferRequest.FromString(seen.message) == raw
    assert (seen.rows, seen.merge_key, seen.id, seen.tensors) == (1, wanted.merge_key, "mine", wanted.tensors)


def test_strings_are_written_with_their_lengths() -> None:
    message = typed("BYTES", "bytes_contents", [b"", b"tide"])
    seen = open_envelope(message.SerializeToString(), signature("BYTES"))
    assert [bytes(tensor) for tensor in seen.tensors] == [b"\0\0\0\0\4\0\0\0tide"]


def shared(message: service_pb2.ModelInferRequest) -> None:
    message.inputs[0].parameters["shared_memory_region"].string_param = "mine"
    message.inputs[0].ClearField("contents")


ODD: dict[str, Callable[[service_pb2.ModelInferRequest], object]] = {
    "too few": lambda message: message.inputs[0].contents.int_contents.pop(),
    "too many": lambda message: message.inputs[0].contents.int_contents.append(1),
    "of another type, too": lambda message: message.inputs[0].contents.fp32_contents.append(1.0),
    "more than the datatype holds": lambda message: message.inputs[0].contents.int_contents.__setitem__(0, 300),
    "raw ones beside": lambda message: message.raw_input_contents.append(b"\1\2"),
    "in shared memory": shared,
    "none": lambda message: message.inputs[0].ClearField("contents"),
    "too large": lambda message: setattr(message, "id", "i" * MAX_BYTES),
}


@pytest.mark.parametrize("what", ODD)
def test_what_is_odd_goes_to_triton_as_it_is(what: str) -> None:
    message = typed("INT8", "int_contents", [1, 2])
    ODD[what](message)
    with pytest.raises(NotSchedulable):
        open_envelope(message.SerializeToString(), signature("INT8"))
