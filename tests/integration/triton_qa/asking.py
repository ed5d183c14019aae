"""Requests of one test to several servers, over gRPC calls, a gRPC stream and HTTP, with all that comes back."""

import http.client
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import deserialize_bytes_tensor, triton_to_np_dtype

from tests.proxy.fixtures.calls import request_of

Parameters = dict[str, bool | int | float | str]


@dataclass(frozen=True)
class Served:
    """Where a Triton, or a Tidegate before it, is found."""

    address: str
    http_address: str


def message_of(
    model: str,
    arrays: "dict[str, np.ndarray[Any, Any]]",
    parameters: Parameters | None = None,
    *,
    wanted: Sequence[str] = (),
    **fields: Any,
) -> service_pb2.ModelInferRequest:
    """Return a request; `parameters`: with values of Python; `wanted`: names of its outputs; `fields`: others of it."""
    message = request_of(model, arrays, **fields)
    for name, value in (parameters or {}).items():
        kind = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}[type(value)]
        setattr(message.parameters[name], kind, value)
    for name in wanted:
        message.outputs.add(name=name)
    return message


def of_sequence(model: str, sequence: int | str, value: int, flags: str = "", **fields: Any) -> Any:
    """Return a request of a sequence; `flags`: `s`, its first, `e`, its last."""
    parameters: Parameters = {"sequence_id": sequence, "sequence_start": "s" in flags, "sequence_end": "e" in flags}
    return message_of(model, {"INPUT": np.array([[value]], np.int32)}, parameters, **fields)


def over_grpc(call: Any, server: Any, message: Any, **options: Any) -> tuple[Any, Any]:
    """Return the status of a ModelInfer, with the parsed answer or the error's words."""
    return parsed(*call(server, "ModelInfer", message, **options))


def parsed(code: grpc.StatusCode, said: Any) -> tuple[grpc.StatusCode, Any]:
    """Parse the answer of an outcome: Triton writes its parameters in any order."""
    return code, service_pb2.ModelInferResponse.FromString(said) if code is grpc.StatusCode.OK else said


def over_http(server: Any, message: service_pb2.ModelInferRequest, **headers: str) -> tuple[int, Any]:
    """Return the status and the answer of the same request over HTTP, as JSON."""
    version = f"/versions/{message.model_version}" if message.model_version else ""
    tensors = zip(message.inputs, message.raw_input_contents, strict=True)
    document: dict[str, Any] = {"inputs": [_in_json(*pair) for pair in tensors]}
    if message.id:
        document["id"] = message.id
    if message.parameters:
        document["parameters"] = {
            name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in message.parameters.items()
        }
    if message.outputs:
        document["outputs"] = [{"name": output.name} for output in message.outputs]
    path = f"/v2/models/{message.model_name}{version}/infer"
    status, _, body = post(server, path, json.dumps(document).encode(), **headers)
    return status, json.loads(body)


def _in_json(tensor: Any, content: bytes) -> dict[str, Any]:
    if tensor.datatype == "BYTES":
        array = deserialize_bytes_tensor(content)
        data = [word.decode() for word in array]
    else:
        data = np.frombuffer(content, triton_to_np_dtype(tensor.datatype)).tolist()
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape), "data": data}


def post(server: Any, path: str, body: bytes, **headers: str) -> tuple[int, str | None, bytes]:
    """Return status, content type and body of the answer to a POST."""
    connection = http.client.HTTPConnection(server.http_address, timeout=60)
    try:
        connection.request("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.getheader("content-type"), response.read()
    finally:
        connection.close()
