"""From HTTP to the gRPC message and back, without any server."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2
from tritonclient.http import InferResult

from tidegate_proxy.messages.model_signature import ELEMENT_BYTES, ModelSignature, TensorSpec
from tidegate_proxy.messages.request import NotSchedulable, open_envelope
from tidegate_proxy.messages.wire import RESPONSE_RAW_FIELD, join
from tidegate_proxy.servers.http import infer_response, json_data
from tidegate_proxy.servers.http.infer_request import ResponseForm, translate

Tensor = tuple[str, list[int], list[Any], bytes]
"""Datatype, shape, elements as JSON has them, raw contents."""
SHORT = st.integers(-(2**40), 2**40).map(lambda number: number / 8)
INTEGERS = [f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """A tensor of two rows, of any datatype that JSON can hold."""
    datatype = draw(st.sampled_from(["BOOL", "FP32", "FP64", "BYTES", *INTEGERS]))
    width = draw(st.integers(1, 4))
    count = 2 * width
    if datatype == "BYTES":
        texts = draw(st.lists(st.text(), min_size=count, max_size=count))
        raw = b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in texts)
        return datatype, [2, width], texts, raw
    size = ELEMENT_BYTES[datatype] * count
    raw = draw(st.binary(min_size=size, max_size=size))
    if datatype == "BOOL":
        raw = bytes(byte % 2 for byte in raw)
    array = _array(datatype, raw)
    if datatype == "FP32":  # what is no number is another after a round through text
        array = np.where(np.isfinite(array), array, 0).astype(array.dtype)
    if datatype == "FP64":  # long ones are read as Triton reads them, which is not always to the last bit
        array = np.array(draw(st.lists(SHORT, min_size=count, max_size=count)))
    return datatype, [2, width], array.tolist(), array.tobytes()


def _array(datatype: str, raw: bytes) -> "np.ndarray[Any, Any]":
    kind = {"BOOL": "?", "FP32": "<f4", "FP64": "<f8"}.get(datatype, datatype.lower())
    return np.frombuffer(raw, kind)


@given(
    given_=st.lists(st.tuples(tensors(), st.booleans(), st.booleans()), min_size=1, max_size=4),
    request_id=st.text(st.characters(exclude_characters="\0", codec="utf-8")),
    parameters=st.dictionaries(
        st.text("abc", min_size=1),
        st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), SHORT, st.text("a:\u00e9")),
    ),
)
def test_every_request_comes_out_as_it_went_in(
    given_: list[tuple[Tensor, bool, bool]], request_id: str, parameters: dict[str, Any]
) -> None:
    signature = ModelSignature(
        "model",
        {f"X{n}": TensorSpec(datatype, (-1,)) for n, ((datatype, *_), _, _) in enumerate(given_)},
        frozenset(f"Y{n}" for n in range(len(given_))),
        8,
    )
    inputs, outputs, tail = [], [], b""
    for n, ((datatype, shape, values, raw), binary_in, binary_out) in enumerate(given_):
        entry: dict[str, Any] = {"name": f"X{n}", "datatype": datatype, "shape": shape}
        inputs.append(entry | ({"parameters": {"binary_data_size": len(raw)}} if binary_in else {"data": values}))
        outputs.append({"name": f"Y{n}", "parameters": {"binary_data": binary_out}})
        tail += raw if binary_in else b""
    document = {"id": request_id, "parameters": parameters, "inputs": inputs, "outputs": outputs}
    head = json.dumps(document).encode()

    message, form = translate(signature, "3", head + tail, len(head))

    envelope = open_envelope(message, signature)
    assert [bytes(tensor) for tensor in envelope.tensors] == [raw for (_, _, _, raw), _, _ in given_]
    assert (envelope.id, envelope.heading.version, envelope.rows) == (request_id, "3", 2)
    assert {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in envelope.heading.header.parameters.items()
    } == parameters

    answer = service_pb2.ModelInferResponse(model_name="model", model_version="3", id=request_id)
    for n, ((datatype, shape, _, _), _, _) in enumerate(given_):
        answer.outputs.add(name=f"Y{n}", datatype=datatype, shape=shape)
    body = infer_response.render(
        join(answer.SerializeToString(), [[raw] for (_, _, _, raw), _, _ in given_], RESPONSE_RAW_FIELD), form
    )

    result = InferResult.from_response_body(b"".join(body.pieces), header_length=body.json_bytes)
    assert result.get_response().get("id", "") == request_id
    for n, ((datatype, shape, values, raw), _, _) in enumerate(given_):
        got = result.as_numpy(f"Y{n}")
        assert list(got.shape) == shape
        if datatype == "BYTES":  # strings where they came as JSON
            assert [text if isinstance(text, str) else text.decode() for text in got.flatten()] == values
        else:
            assert got.tobytes() == raw


@given(st.binary(max_size=60), st.integers(0, 60))
def test_arbitrary_bytes_are_translated_or_left_to_triton(body: bytes, json_bytes: int) -> None:
    signature = ModelSignature("echo", {"X": TensorSpec("FP32", (-1,))}, frozenset({"Y"}), 8)
    try:
        message, _ = translate(signature, "", body, min(json_bytes, len(body)))
    except NotSchedulable:
        return
    service_pb2.ModelInferRequest.FromString(message)


def _rendered(form: ResponseForm, contents: bytes, datatype: str = "FP32", shape: tuple[int, ...] = (1, 1)) -> bytes:
    answer = service_pb2.ModelInferResponse(model_name='na"me', model_version="1")
    for name, value in {"text": "a\tb", "flag": True, "count": -3, "share": 0.1}.items():
        field = {str: "string_param", bool: "bool_param", int: "int64_param", float: "double_param"}[type(value)]
        setattr(answer.parameters[name], field, value)
    answer.outputs.add(name="Y", datatype=datatype, shape=shape)
    body = infer_response.render(join(answer.SerializeToString(), [[contents]], RESPONSE_RAW_FIELD), form)
    assert (body.json_bytes is None) == (not form.binary)
    return b"".join(body.pieces)


def test_every_kind_of_nan_is_printed() -> None:
    body = _rendered(ResponseForm(binary=False, named={}), b"\x01\x00\x80\x7f\x01\x00\xc0\xff", shape=(1, 2))
    assert b'"data":[NaN,NaN]' in body


def test_response_parameters() -> None:
    body = _rendered(ResponseForm(binary=True, named={}), bytes(4))
    assert body.startswith(b'{"model_name":"na\\"me","model_version":"1","parameters":{')
    document = json.loads(body[:-4])
    assert document["parameters"] == {"text": "a\tb", "flag": True, "count": -3, "share": 0.1}
    assert document["outputs"][0]["parameters"] == {"binary_data_size": 4}


@pytest.mark.parametrize(
    ("datatype", "contents", "status"),
    [("FP32", bytes(3), 500), ("BYTES", b"\x05\0\0\0abc", 500), ("BF16", bytes(2), 400), ("FP16", bytes(2), 400)],
)
def test_outputs_that_triton_does_not_print(datatype: str, contents: bytes, status: int) -> None:
    with pytest.raises(json_data.RefusedRequest) as refused:
        _rendered(ResponseForm(binary=False, named={}), contents, datatype)
    assert refused.value.status == status
