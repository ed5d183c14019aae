"""Translation of an HTTP inference request to the equivalent gRPC message.

Only valid requests are translated. For everything else NotSchedulable is raised and Triton gets the original bytes: its
errors, and its handling of unusual input, are its own.
"""

import json
from dataclasses import dataclass
from math import prod
from typing import Final

import rapidjson
from tritonclient.grpc import service_pb2

from tidegate_proxy.messages import wire
from tidegate_proxy.messages.model_signature import ELEMENT_BYTES, ModelSignature
from tidegate_proxy.messages.request import NotSchedulable
from tidegate_proxy.servers.http import json_data

# RapidJSON reads Triton's requests, too: the same texts are JSON, and the same digits the same number, to the last bit.
_decode = rapidjson.Decoder(number_mode=rapidjson.NM_NATIVE | rapidjson.NM_NAN)
_INT64 = range(-(1 << 63), 1 << 63)
_UINT64 = range(1 << 64)
_SIZES = range(1 << 63)
_SEQUENCES: Final = frozenset({"sequence_id", "sequence_start", "sequence_end"})
_KNOWN_ELSEWHERE: Final = frozenset(
    {"classification", "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"}
)
_LONGEST_VERSION: Final = 18
"""Digits that surely fit Triton's 64 bits."""


@dataclass(frozen=True, slots=True)
class ResponseForm:
    """Outputs that a client wants in binary form."""

    binary: bool
    """Whether outputs that the request does not name are binary."""
    named: dict[str, bool]

    def is_binary(self, output: str) -> bool:
        """Return whether an output follows the JSON in binary form."""
        return self.named.get(output, self.binary)


def translate(signature: ModelSignature, version: str, body: bytes, json_bytes: int) -> tuple[bytes, ResponseForm]:
    """Return a serialized ModelInferRequest with raw contents, and the form of its response.

    `json_bytes`: size of the JSON in the body, before the tensors; 0: the body is the only input's contents. Raises
    NotSchedulable, and json_data.Refused for requests that would crash Triton.
    """
    if len(version) > _LONGEST_VERSION:
        raise NotSchedulable("no version has such a number")
    header = service_pb2.ModelInferRequest(model_name=signature.model, model_version=version)
    if json_bytes == 0:
        contents: list[list[wire.Buffer]] = [_raw_input(header, signature, body)]
        form = ResponseForm(binary=True, named={})
    else:
        contents, form = _from_json(header, signature, body, json_bytes)
    return wire.join(header.SerializeToString(), contents, wire.REQUEST_RAW_FIELD), form


def outline(body: bytes, json_bytes: int) -> service_pb2.ModelInferRequest | None:
    """Return the tensors' names, types and shapes of a request without contents; None if they cannot be determined."""
    header = service_pb2.ModelInferRequest()
    try:
        request = _object(_decode(body[:json_bytes]))
        for entry in map(_object, _array(request.get("inputs"))):
            shape = [_integer(size, _SIZES) for size in _array(entry.get("shape"))]
            header.inputs.add(name=_string(entry.get("name")), datatype=_string(entry.get("datatype")), shape=shape)
        for entry in map(_object, _array(request.get("outputs", []))):
            header.outputs.add(name=_string(entry.get("name")))
    except (ValueError, RecursionError, NotSchedulable):
        return None
    return header


def _from_json(
    header: service_pb2.ModelInferRequest, signature: ModelSignature, body: bytes, json_bytes: int
) -> tuple[list[list[wire.Buffer]], ResponseForm]:
    text = body if json_bytes == len(body) else body[:json_bytes]
    try:
        document = _decode(text)
    except ValueError as error:
        raise NotSchedulable("the request is no JSON") from error
    except RecursionError as error:
        raise json_data.RefusedRequest(400, json_data.TOO_DEEP) from error
    request = _object(document)
    keys = len(request)
    if "id" in request:
        header.id = _string(request["id"])
    binary = False
    if "parameters" in request:
        parameters = _object(request["parameters"])
        keys += len(parameters)
        binary = _set_parameters(header, parameters)
    contents: list[list[wire.Buffer]] = []
    tensors = memoryview(body)
    position = json_bytes
    for entry in _array(request.get("inputs")):
        tensor = _object(entry)
        keys += len(tensor)
        parameters = _object(tensor.get("parameters", {}))
        keys += len(parameters)
        datatype, shape = _add_input(header, signature, tensor)
        if not _KNOWN_ELSEWHERE.isdisjoint(parameters):
            raise NotSchedulable("an input lies in shared memory")
        if ("binary_data_size" in parameters) == ("data" in tensor):
            raise NotSchedulable("an input has no data, or has them twice")
        if "data" in tensor:
            contents.append([json_data.read(datatype, shape, tensor["data"])])
        else:
            size = _integer(parameters["binary_data_size"], _UINT64)
            contents.append([tensors[position : position + size]])
            position += size
    if position != len(body):
        raise NotSchedulable("the body is longer or shorter than its tensors")
    named: dict[str, bool] = {}
    if "outputs" in request:
        for entry in _array(request["outputs"]):
            output = _object(entry)
            parameters = _object(output.get("parameters", {}))
            keys += len(output) + len(parameters)
            _add_output(header, named, output, parameters)
    _refuse_repeated_keys(text, keys)
    return contents, ResponseForm(binary, named)


def _add_input(
    header: service_pb2.ModelInferRequest, signature: ModelSignature, tensor: dict[str, object]
) -> tuple[str, list[int]]:
    name, datatype = _string(tensor.get("name")), _string(tensor.get("datatype"))
    spec = signature.inputs.get(name)
    shape = [_integer(size, _SIZES) for size in _array(tensor.get("shape"))]
    if spec is None or not spec.accepts(datatype, shape):
        raise NotSchedulable("an input is not as the model's config says")
    header.inputs.add(name=name, datatype=datatype, shape=shape)
    return datatype, shape


def _add_output(
    header: service_pb2.ModelInferRequest,
    named: dict[str, bool],
    output: dict[str, object],
    parameters: dict[str, object],
) -> None:
    if not _KNOWN_ELSEWHERE.isdisjoint(parameters):
        raise NotSchedulable("an output is classified or goes to shared memory")
    name = _string(output.get("name"))
    binary = parameters.get("binary_data", False)
    if type(binary) is not bool or name in named:
        raise NotSchedulable("binary_data is no boolean, or an output is named twice")
    named[name] = binary
    header.outputs.add(name=name)


def _set_parameters(header: service_pb2.ModelInferRequest, parameters: dict[str, object]) -> bool:
    """Copy the request's parameters; whether outputs are to be binary, which is not a parameter of the model."""
    binary = False
    for name, value in parameters.items():
        if name == "binary_data_output":
            if type(value) is not bool:
                raise NotSchedulable("binary_data_output is no boolean")
            binary = value
        elif name in _SEQUENCES or name.startswith("triton_") or "\0" in name:
            raise NotSchedulable("the request belongs to a sequence, or a parameter's name is reserved")
        elif name == "priority":
            header.parameters[name].uint64_param = _integer(value, _UINT64)
        elif name == "timeout":
            header.parameters[name].int64_param = _integer(value, _SIZES)
        elif type(value) is bool:
            header.parameters[name].bool_param = value
        elif type(value) is int and value in _INT64:
            header.parameters[name].int64_param = value
        elif type(value) is str:
            header.parameters[name].string_param = _string(value)
        elif type(value) in (float, int):
            header.parameters[name].double_param = float(value)  # type: ignore[arg-type]
        else:
            raise NotSchedulable("a parameter is neither boolean, number nor string")
    return binary


def _raw_input(header: service_pb2.ModelInferRequest, signature: ModelSignature, body: bytes) -> list[wire.Buffer]:
    """The body as the only input of one row; at most one size of it is variable, and follows from the body's."""
    if len(signature.inputs) != 1:
        raise NotSchedulable("a raw request, but not one input")
    ((name, spec),) = signature.inputs.items()
    if spec.datatype == "BYTES":
        if spec.dims != (1,):
            raise NotSchedulable("a raw request of strings, but not of one")
        header.inputs.add(name=name, datatype="BYTES", shape=(1, 1))
        return [len(body).to_bytes(4, "little"), body]
    row_bytes = ELEMENT_BYTES[spec.datatype] * prod(size for size in spec.dims if size != -1)
    variable = spec.dims.count(-1)
    if variable > 1 or not row_bytes or len(body) % row_bytes or (not variable and len(body) != row_bytes):
        raise NotSchedulable("a raw request whose shape does not follow from its size")
    shape = [1, *(len(body) // row_bytes if size == -1 else size for size in spec.dims)]
    header.inputs.add(name=name, datatype=spec.datatype, shape=shape)
    return [body]


def _refuse_repeated_keys(text: bytes, keys: int) -> None:
    """Refuse a key that is there twice: Triton takes the first and our parser the last.

    Every key has its colon: where there are no more colons than keys, none was repeated. Otherwise strings may hold
    colons, or values unknown to Triton more keys, and only a second look can tell.
    """
    if text.count(b":") == keys:
        return
    try:
        json.loads(text, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise NotSchedulable("a key is repeated") from error


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is repeated")
    return result


def _object(value: object) -> dict[str, object]:
    if type(value) is not dict:
        raise NotSchedulable("something is no JSON object")
    return value


def _array(value: object) -> list[object]:
    if type(value) is not list:
        raise NotSchedulable("something is no JSON array")
    return value


def _string(value: object) -> str:
    if type(value) is not str or "\0" in value:
        raise NotSchedulable("something is no string, or holds a NUL")
    return value


def _integer(value: object, allowed: range) -> int:
    if type(value) is not int or value not in allowed:
        raise NotSchedulable("something is no integer within its bounds")
    return value
