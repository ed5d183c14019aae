"""Translation of a gRPC inference response to the HTTP response that Triton would give."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from tidegate_proxy.base import refusal
from tidegate_proxy.base.outcome import RequestFailed
from tidegate_proxy.configuration.config import SHED_HTTP_STATUS
from tidegate_proxy.messages import wire
from tidegate_proxy.servers.http import json_data
from tidegate_proxy.servers.http.infer_request import ResponseForm
from tidegate_proxy.servers.http.interface import Headers, HttpAnswer
from tidegate_proxy.servers.http.json_data import print_doubles

JSON_HEADERS: Final[Headers] = [(b"content-type", b"application/json")]
_SPLIT_FROM: Final = 1 << 14
"""Size in bytes from which finding the tensors takes less time than copying them."""
_STATUS = {
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    # Triton gives no others; these are what Tidegate may be configured to shed with.
    **{grpc.StatusCode[name]: status for name, status in SHED_HTTP_STATUS.items()},
}


@dataclass(frozen=True, slots=True)
class ResponseBody:
    """Body of a response before it is joined or compressed."""

    pieces: list[bytes | memoryview]
    json_bytes: int | None
    """Size of the JSON before the tensors; None without tensors."""

    def headers(self) -> Headers:
        """Return Triton's headers for it, without the length."""
        if self.json_bytes is None:
            return [*JSON_HEADERS]
        return [
            (b"content-type", b"application/octet-stream"),
            (b"inference-header-content-length", str(self.json_bytes).encode()),
        ]


def render(answer: bytes, form: ResponseForm) -> ResponseBody:
    """Translate a serialized ModelInferResponse. Raises json_data.Refused if Triton cannot write it as JSON."""
    header, contents = _parse(answer)
    pieces: list[bytes | memoryview] = []
    outputs = []
    for output, tensor in zip(header.outputs, contents, strict=True):
        name = output.name
        if form.is_binary(name):
            inside = b'"parameters":{"binary_data_size":%d}' % len(tensor)
            if tensor:
                pieces.append(tensor)
        else:
            inside = b'"data":[%b]' % json_data.write(name, output.datatype, output.shape, tensor)
        outputs.append(
            b'{"name":%b,"datatype":"%b","shape":[%b],%b}'
            % (
                json_data.quote(name.encode()),
                output.datatype.encode(),
                ",".join(map(str, output.shape)).encode(),
                inside,
            )
        )
    document = b'{%b"model_name":%b,"model_version":"%b"%b,"outputs":[%b]}' % (
        b'"id":%b,' % json_data.quote(header.id.encode()) if header.id else b"",
        json_data.quote(header.model_name.encode()),
        header.model_version.encode(),
        _parameters(header),
        b",".join(outputs),
    )
    return ResponseBody([document, *pieces], len(document) if pieces else None)


def _parse(answer: bytes) -> tuple[service_pb2.ModelInferResponse, Sequence[bytes | memoryview]]:
    if len(answer) < _SPLIT_FROM:
        whole = service_pb2.ModelInferResponse.FromString(answer)
        return whole, whole.raw_output_contents
    header, id_field, contents = wire.split(answer, wire.RESPONSE_RAW_FIELD)
    return service_pb2.ModelInferResponse.FromString(header + id_field), contents


def _parameters(header: service_pb2.ModelInferResponse) -> bytes:
    if not header.parameters:
        return b""
    return b',"parameters":{%b}' % b",".join(
        b"%b:%b" % (json_data.quote(name.encode()), _value(value)) for name, value in header.parameters.items()
    )


def _value(parameter: service_pb2.InferParameter) -> bytes:
    kind = parameter.WhichOneof("parameter_choice")
    value = getattr(parameter, kind) if kind else None
    if isinstance(value, str):
        return json_data.quote(value.encode())
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, float):
        return print_doubles(np.array([value]))[0].encode()
    return str(value or 0).encode()


def failure(failed: RequestFailed) -> HttpAnswer:
    """Return the response to a failed request, with Triton's status for the code, and `tidegate-reason` if rejected."""
    why = [(refusal.REASON_HEADER.encode(), failed.reason.encode())] if failed.reason else []
    if failed.retry_after_s is not None:
        why.append((b"retry-after", b"%d" % math.ceil(failed.retry_after_s)))
    return error(_STATUS.get(failed.code, 400), failed.details, *why)


def error(status: int, message: str, *extra: tuple[bytes, bytes]) -> HttpAnswer:
    """Return an error in Triton's format after request parsing, where the content type is no longer JSON."""
    body = b'{"error":%b}' % json_data.quote(message.encode())
    return HttpAnswer(status, [(b"content-type", b"text/plain"), *extra], body)
