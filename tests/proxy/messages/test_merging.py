"""Gather and scatter, around an identity that stands in for Triton."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from tidegate_proxy.messages.merging import ScatterError
from tidegate_proxy.messages.model_signature import ELEMENT_BYTES, ModelSignature, TensorSpec
from tidegate_proxy.messages.request import InferenceRequest, open_envelope
from tidegate_proxy.scheduling.in_flight import BatchPayload, OutputSizes, StageTarget

if TYPE_CHECKING:
    from tidegate_proxy.tritons.backend import Backend

MAX_ROWS = 16


def _rows(data: st.DrawFn, datatype: str, rows: int, elements: int) -> bytes:
    if datatype != "BYTES":
        size = rows * elements * ELEMENT_BYTES[datatype]
        return data(st.binary(min_size=size, max_size=size))
    words = data(st.lists(st.binary(max_size=6), min_size=rows * elements, max_size=rows * elements))
    return b"".join(len(word).to_bytes(4, "little") + word for word in words)


@st.composite
def batches(draw: st.DrawFn) -> tuple[ModelSignature, list[InferenceRequest]]:
    """A model whose outputs are its inputs, and requests of it that can share a batch."""
    names = ["N", "B", "IMAGE"][: draw(st.integers(1, 3))]
    datatypes = {name: draw(st.sampled_from(["BYTES", *ELEMENT_BYTES])) for name in names}
    shapes = {name: draw(st.lists(st.integers(0, 3), max_size=2)) for name in names}
    signature = ModelSignature(
        "m",
        {name: TensorSpec(datatypes[name], tuple(shapes[name])) for name in names},
        frozenset(names),
        MAX_ROWS,
    )
    envelopes = []
    for index in range(draw(st.integers(1, 4))):
        rows = draw(st.integers(1, 4))
        message = service_pb2.ModelInferRequest(model_name="m", id=f"request {index}" if draw(st.booleans()) else "")
        message.parameters["shared"].string_param = "by all"
        if draw(st.booleans()):
            message.parameters["timeout"].int64_param = index
        for name in draw(st.permutations(names)):
            message.inputs.add(name=name, datatype=datatypes[name], shape=[rows, *shapes[name]])
            message.raw_input_contents.append(_rows(draw, datatypes[name], rows, int(np.prod(shapes[name]))))
        for name in draw(st.lists(st.sampled_from(names), unique=True)):
            message.outputs.add(name=name)
        envelopes.append(open_envelope(message.SerializeToString(), signature))
    return signature, envelopes


def _identity(request: bytes, signature: ModelSignature) -> bytes:
    """What a Triton whose model gives its inputs back would answer; refuses what a Triton would refuse."""
    message = service_pb2.ModelInferRequest.FromString(request)
    envelope = open_envelope(request, signature)
    answer = service_pb2.ModelInferResponse(model_name=message.model_name, model_version="1", id=message.id)
    answer.parameters["answered"].bool_param = True
    wanted = {output.name for output in message.outputs} or signature.outputs
    for declared, tensor in zip(message.inputs, envelope.tensors, strict=True):
        if declared.name in wanted:
            answer.outputs.add(name=declared.name, datatype=declared.datatype, shape=declared.shape)
            answer.raw_output_contents.append(bytes(tensor))
    return bytes(answer.SerializeToString())


NOWHERE = cast("Backend", object())
"""No shared memory is wanted: it is not asked."""


def gather(envelopes: Sequence[InferenceRequest]) -> bytes:
    target = StageTarget("m", ONE, [NOWHERE], alone=True)
    return BatchPayload(envelopes, OutputSizes(), None).request(target)


def scatter(answer: bytes, envelopes: Sequence[InferenceRequest]) -> list[bytes]:
    return BatchPayload(envelopes, OutputSizes(), None).outcomes(answer)


def _contents(answer: service_pb2.ModelInferResponse) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {
        output.name: (output.datatype, tuple(output.shape), raw)
        for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }


@given(batches())
def test_every_client_gets_its_own_rows_back(batch: tuple[ModelSignature, list[InferenceRequest]]) -> None:
    signature, envelopes = batch
    answers = scatter(_identity(gather(envelopes), signature), envelopes)
    for envelope, answer_bytes in zip(envelopes, answers, strict=True):
        answer = service_pb2.ModelInferResponse.FromString(answer_bytes)
        alone = service_pb2.ModelInferResponse.FromString(_identity(envelope.message, signature))
        assert _contents(answer) == _contents(alone)
        assert (answer.id, answer.model_name, answer.model_version) == (envelope.id, "m", "1")
        assert answer.parameters == alone.parameters


@given(batches())
def test_a_batch_asks_for_no_more_than_its_requests(batch: tuple[ModelSignature, list[InferenceRequest]]) -> None:
    signature, envelopes = batch
    merged = open_envelope(gather(envelopes), signature)
    assert merged.rows == sum(envelope.rows for envelope in envelopes)
    asked = [set(envelope.heading.wanted) for envelope in envelopes]
    everything = set() if not all(asked) else set().union(*asked)
    assert {output.name for output in merged.heading.header.outputs} == everything
    assert merged.heading.header.parameters["shared"].string_param == "by all"
    if len(envelopes) > 1:
        assert "timeout" not in merged.heading.header.parameters
    else:
        assert gather(envelopes) == envelopes[0].message


ONE = ModelSignature("m", {"X": TensorSpec("UINT8", (2,))}, frozenset({"Y"}), 8)


def _two() -> list[InferenceRequest]:
    message = service_pb2.ModelInferRequest(model_name="m")
    message.inputs.add(name="X", datatype="UINT8", shape=[1, 2])
    message.raw_input_contents.append(b"ab")
    return [open_envelope(message.SerializeToString(), ONE)] * 2


def _answer(datatype: str, shape: list[int], *raw: bytes) -> bytes:
    answer = service_pb2.ModelInferResponse(model_name="m")
    answer.outputs.add(name="Y", datatype=datatype, shape=shape)
    answer.raw_output_contents.extend(raw)
    return bytes(answer.SerializeToString())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"\xff\xff", "no ModelInferResponse"),
        (b"\x0a\x01\xff", "no ModelInferResponse"),
        (_answer("UINT8", [2, 1]), "raw contents"),
        (_answer("UINT8", [], b"ab"), "begin with the batch's 2 rows"),
        (_answer("UINT8", [1, 2], b"ab"), r"shape \[1, 2\]: it does not begin with the batch's 2 rows"),
        (_answer("UINT8", [2, 1], b"abc"), "no 2 equal rows"),
        (_answer("BYTES", [2, 1], b"\0\0\0\0"), "output 'Y': a BYTES tensor ends before"),
        (_answer("BYTES", [2, 1], bytes(9)), "output 'Y': a BYTES tensor holds something else"),
    ],
)
def test_an_answer_that_cannot_be_divided(answer: bytes, reason: str) -> None:
    with pytest.raises(ScatterError, match=reason):
        scatter(answer, _two())


def test_the_answer_to_one_is_its_own() -> None:
    assert scatter(b"whatever Triton says", _two()[:1]) == [b"whatever Triton says"]
