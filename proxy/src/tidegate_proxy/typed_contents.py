"""Requests whose tensors are typed contents (`InferTensorContents`), written with raw ones: those are scheduled."""

from math import prod
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

MOST_BYTES: Final = 1 << 20
"""Larger messages stay as they are: to write them again would take the event loop from everybody else."""
_FIELDS: Final = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Where Triton reads the elements of a datatype; of others it takes raw contents only."""
_DTYPES: Final = {"BOOL": np.dtype("?"), "FP32": np.dtype("<f4"), "FP64": np.dtype("<f8")} | {
    f"{sign}INT{bits}": np.dtype(f"<{kind}{bits // 8}")
    for sign, kind in (("", "i"), ("U", "u"))
    for bits in (8, 16, 32, 64)
}


def with_raw_contents(message: bytes) -> bytes | None:
    """A serialized ModelInferRequest without raw contents, written with them.

    None where Triton has to see it as it is: tensors in shared memory, or contents that do not fit shape or datatype.
    """
    if len(message) > MOST_BYTES:
        return None
    try:
        request = service_pb2.ModelInferRequest.FromString(message)
    except DecodeError:
        return None
    if request.raw_input_contents or not request.inputs:
        return None
    for tensor in request.inputs:
        raw = _raw(tensor)
        if raw is None:
            return None
        request.raw_input_contents.append(raw)
        tensor.ClearField("contents")
    written: bytes = request.SerializeToString()
    return written


def _raw(tensor: service_pb2.ModelInferRequest.InferInputTensor) -> bytes | None:
    field = _FIELDS.get(tensor.datatype)
    if field is None or [descriptor.name for descriptor, _ in tensor.contents.ListFields()] != [field]:
        return None
    elements: Any = getattr(tensor.contents, field)
    if len(elements) != prod(tensor.shape):
        return None
    if field == "bytes_contents":
        return b"".join(len(element).to_bytes(4, "little") + element for element in elements)
    dtype = _DTYPES[tensor.datatype]
    given = np.array(elements, dtype if dtype.kind in "fb" else f"{dtype.kind}8")
    written = given.astype(dtype)
    if dtype.kind != "f" and not np.array_equal(written, given):
        return None  # Triton casts what its datatype cannot hold
    return written.tobytes()
