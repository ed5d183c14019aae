"""Requests of near shapes share a batch that is padded, and are answered as if each had run in its own shape."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2, service_pb2

from tidegate_proxy.configuration.padding import FollowingSize, PaddingConfig
from tidegate_proxy.messages.merging import ScatterError, read_answer
from tidegate_proxy.messages.model_signature import ELEMENT_BYTES, ModelSignature, signature_of
from tidegate_proxy.messages.padding import ResizedTensor, TensorResize, join, write
from tidegate_proxy.messages.request import InferenceRequest, open_envelope
from tidegate_proxy.scheduling.in_flight import BatchPayload, OutputSizes, StageTarget
from tidegate_proxy.tritons.batching_mode import consent_of
from tidegate_proxy.tritons.declared_padding import padding_of
from tidegate_proxy.tritons.shared_memory import SharedRegion

if TYPE_CHECKING:
    from tidegate_proxy.tritons.backend import Backend

NOWHERE = cast("Backend", object())
"""No shared memory is wanted: it is not asked."""
NUMPY = {
    **{f"{kind}INT{bits}": f"{letter}{bits // 8}" for kind, letter in (("", "i"), ("U", "u")) for bits in (8, 16, 32)},
    **{"INT64": "i8", "UINT64": "u8", "FP16": "f2", "FP32": "f4", "FP64": "f8", "BOOL": "u1"},
}


def model(*said: PaddingConfig, dims: Sequence[int] = (-1,), outputs: str = "-1", kind: str = "FP32") -> ModelSignature:
    """A model from X to Y, of the same datatype."""
    text = f"""
    name: "m" backend: "onnxruntime" max_batch_size: 8 dynamic_batching {{ }}
    input {{ name: "X" data_type: TYPE_{kind} dims: {list(dims)} }}
    output {{ name: "Y" data_type: TYPE_{kind} dims: [ {outputs} ] }}
    """
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    signature = signature_of(config)
    padding = padding_of(config, consent_of(config), said)
    return ModelSignature(signature.model, signature.inputs, signature.outputs, signature.max_rows, padding)


def request_of(x: Any, kind: str = "FP32", wanted: Sequence[str] = (), id_: str = "") -> bytes:
    message = service_pb2.ModelInferRequest(model_name="m", id=id_)
    message.inputs.add(name="X", datatype=kind, shape=x.shape)
    message.raw_input_contents.append(x.tobytes())
    for name in wanted:
        message.outputs.add(name=name)
    return bytes(message.SerializeToString())


def gather(envelopes: Sequence[InferenceRequest]) -> bytes:
    return BatchPayload(envelopes, OutputSizes(), None).request(StageTarget("m", None, [NOWHERE], alone=True))


def scatter(answer: bytes, envelopes: Sequence[InferenceRequest]) -> list[bytes]:
    return BatchPayload(envelopes, OutputSizes(), None).outcomes(answer)


def answer_of(y: Any, kind: str = "FP32", id_: str = "") -> bytes:
    answer = service_pb2.ModelInferResponse(model_name="m", model_version="1", id=id_)
    answer.outputs.add(name="Y", datatype=kind, shape=y.shape)
    answer.raw_output_contents.append(y.tobytes())
    return bytes(answer.SerializeToString())


def array_in(message: Any, tensor: Any, raw: bytes) -> Any:
    return np.frombuffer(raw, NUMPY[tensor.datatype]).reshape(tuple(tensor.shape))


def input_of(message: bytes) -> Any:
    request = service_pb2.ModelInferRequest.FromString(message)
    return array_in(request, request.inputs[0], request.raw_input_contents[0])


def output_of(message: bytes) -> Any:
    answer = service_pb2.ModelInferResponse.FromString(message)
    return array_in(answer, answer.outputs[0], answer.raw_output_contents[0])


@st.composite
def padded_batches(draw: st.DrawFn) -> tuple[ModelSignature, str, list[InferenceRequest], dict[str, Any]]:
    """A model that is padded along one or two axes, and requests of it that share a bucket; with what it does."""
    kind = draw(st.sampled_from(sorted(NUMPY)))
    axes = draw(st.sampled_from([(1,), (2,), (3,), (1, 3), (2, 3)]))
    does = {axis: (draw(st.integers(1, 3)), draw(st.integers(0, 3)), draw(st.integers(1, 3))) for axis in axes}
    fixed = {axis: draw(st.integers(1, 3)) for axis in (1, 2, 3)}
    dims = [-1 if axis in axes else fixed[axis] for axis in (1, 2, 3)]
    buckets = {axis: sorted(draw(st.sets(st.integers(1, 12), min_size=1, max_size=3))) for axis in axes}
    value = draw(st.sampled_from([0, 1]))
    said = [
        PaddingConfig(
            input="X",
            axis=axis - 4 if draw(st.booleans()) else axis,
            sizes=tuple(buckets[axis]),
            value=value,
            outputs={"Y": FollowingSize(axis=axis, scale=does[axis][0], offset=does[axis][1], stride=does[axis][2])},
        )
        for axis in axes
    ]
    signature = model(*said, dims=dims, outputs=", ".join(map(str, dims)), kind=kind)
    chosen = {axis: draw(st.integers(0, len(buckets[axis]) - 1)) for axis in axes}
    envelopes = []
    for number in range(draw(st.integers(1, 4))):
        shape = [draw(st.integers(1, 2)), *(fixed[axis] for axis in (1, 2, 3))]
        for axis in axes:
            low = buckets[axis][chosen[axis] - 1] + 1 if chosen[axis] else 1
            shape[axis] = draw(st.integers(low, buckets[axis][chosen[axis]]))
        size = int(np.prod(shape)) * ELEMENT_BYTES[kind]
        raw = draw(st.binary(min_size=size, max_size=size))
        x = np.frombuffer(raw, NUMPY[kind]).reshape(shape)
        wanted = draw(st.sampled_from([(), ("Y",)]))
        message = request_of(x, kind, wanted, f"request {number}" if draw(st.booleans()) else "")
        envelopes.append(open_envelope(message, signature))
    return signature, kind, envelopes, {"does": does, "buckets": buckets, "chosen": chosen, "value": value}


def run(x: Any, does: dict[int, tuple[int, int, int]]) -> Any:
    """An elementwise model that repeats elements, puts some before them, and leaves some out, along some axes."""
    for axis, (times, plus, per) in does.items():
        x = np.repeat(x, times, axis)
        x = np.concatenate([np.ones_like(np.take(x, [0], axis)).repeat(plus, axis), x], axis)
        x = np.take(x, range(0, x.shape[axis], per), axis)
    return x


@given(padded_batches())
def test_padded_and_cut_is_what_an_elementwise_model_answers(
    batch: tuple[ModelSignature, str, list[InferenceRequest], dict[str, Any]],
) -> None:
    _, kind, envelopes, said = batch
    assert len({envelope.merge_key for envelope in envelopes}) == 1
    assert len({envelope.heading.shape for envelope in envelopes}) == 1
    x = input_of(gather(envelopes))
    for axis, buckets in said["buckets"].items():
        assert x.shape[axis] == buckets[said["chosen"][axis]]
    id_ = envelopes[0].id if len(envelopes) == 1 else ""
    answers = scatter(answer_of(run(x, said["does"]), kind, id_), envelopes)
    for envelope, answer in zip(envelopes, answers, strict=True):
        given_ = input_of(envelope.message)
        alone = run(given_, said["does"])
        got = output_of(answer)
        assert got.shape == alone.shape
        assert got.tobytes() == alone.tobytes()
        assert service_pb2.ModelInferResponse.FromString(answer).id == envelope.id
        row, x = x[: envelope.rows], x[envelope.rows :]
        inside = tuple(slice(size) for size in given_.shape)
        assert row[inside].tobytes() == given_.tobytes()
        outside = np.ones(row.shape, bool)
        outside[inside] = False
        assert (row[outside] == said["value"]).all(), "what is added is the value that was given"


@st.composite
def resizes(draw: st.DrawFn) -> tuple[TensorResize, Any]:
    axes = draw(st.integers(1, 4))
    had, has = (draw(st.lists(st.integers(1, 4), min_size=axes, max_size=axes)) for _ in range(2))
    size = draw(st.sampled_from([1, 2, 4, 8]))
    raw = draw(st.binary(min_size=int(np.prod(had)) * size, max_size=int(np.prod(had)) * size))
    return TensorResize(size, tuple(had), tuple(has), draw(st.integers(0, 255))), np.frombuffer(
        raw, f"u{size}"
    ).reshape(had)


@given(resizes(), st.integers(0, 3))
def test_a_tensor_in_another_shape(case: tuple[TensorResize, Any], before: int) -> None:
    """As numpy would do it, wherever it is written to, odd addresses included."""
    resize, array = case
    expected = np.full(resize.sizes, resize.fill, array.dtype)
    common = tuple(slice(min(sizes)) for sizes in zip(resize.shape, resize.sizes, strict=True))
    expected[common] = array[common]
    piece = resize.of(memoryview(array.tobytes()))
    assert len(piece) == resize.size == expected.nbytes
    memory = bytearray(before + resize.size + 2)
    assert write([b"." * before, piece], memoryview(memory)) == before + resize.size
    assert memory == b"." * before + expected.tobytes() + b"\0\0"
    message = join(b"", [[piece], [b"plain"]], 7)
    assert message.endswith(expected.tobytes() + b"\x3a\x05plain")


def test_what_is_cut_from_the_end_of_one_row_is_not_copied_before_it_is_sent() -> None:
    tensor = memoryview(bytes(range(24)))
    assert isinstance(TensorResize(1, (1, 6, 4), (1, 5, 4)).of(tensor), memoryview)
    assert isinstance(TensorResize(1, (1, 6, 4), (1, 6, 4)).of(tensor), memoryview)
    assert isinstance(TensorResize(1, (1, 6, 4), (1, 6, 3)).of(tensor), ResizedTensor)
    assert isinstance(TensorResize(1, (2, 3, 4), (2, 2, 4)).of(tensor), ResizedTensor)
    assert isinstance(TensorResize(1, (1, 6, 4), (1, 7, 4)).of(tensor), ResizedTensor)


HALVED = PaddingConfig(sizes=(4, 8), outputs={"Y": FollowingSize(stride=2)})


def envelope_of(columns: int, rows: int = 1, signature: ModelSignature | None = None) -> InferenceRequest:
    x = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    return open_envelope(request_of(x), signature or model(HALVED))


@pytest.mark.parametrize(
    ("columns", "shape"), [(1, "X:4"), (3, "X:4"), (4, "X:4"), (5, "X:8"), (8, "X:8"), (9, "X:9"), (0, "X:0")]
)
def test_the_next_larger_size_is_the_requests_shape(columns: int, shape: str) -> None:
    """What is larger than all of them, or empty, is what it is."""
    envelope = envelope_of(columns)
    assert envelope.heading.shape == shape
    assert (envelope.heading.padded is None) == (shape == f"X:{columns}")
    exact = envelope_of(int(shape[2:]))
    assert envelope.merge_key == exact.merge_key


def test_a_request_of_a_common_size_goes_as_it_came_and_so_does_its_answer() -> None:
    for columns in (4, 8, 9):
        envelope = envelope_of(columns)
        assert gather([envelope]) is envelope.message
        answer = answer_of(np.ones((1, columns)))
        assert scatter(answer, [envelope])[0] is answer


def test_who_is_alone_is_padded_too_and_keeps_what_concerns_only_itself() -> None:
    """What it is answered does not depend on who shares its batch; nor does what one says reach another."""
    signature = model(HALVED)
    for name in ("first", "second"):
        message = service_pb2.ModelInferRequest.FromString(request_of(np.ones((1, 3), np.float32), id_=name))
        message.parameters["timeout"].int64_param = 5
        envelope = open_envelope(message.SerializeToString(), signature)
        sent = service_pb2.ModelInferRequest.FromString(gather([envelope]))
        assert (sent.id, sent.parameters["timeout"].int64_param) == (name, 5)
        assert list(sent.inputs[0].shape) == [1, 4]
        np.testing.assert_array_equal(input_of(gather([envelope])), [[1, 1, 1, 0]])
        assert output_of(scatter(answer_of(np.ones((1, 2), np.float32)), [envelope])[0]).shape == (1, 2)
    both = [envelope_of(3, signature=signature), envelope_of(4, signature=signature)]
    assert service_pb2.ModelInferRequest.FromString(gather(both)).id == ""


@pytest.mark.parametrize("answered", [(2, 3), (2, 1), (2,)])
def test_an_output_that_is_not_as_the_operator_says(answered: tuple[int, ...]) -> None:
    own = re.escape(str([1, *answered[1:]]))
    words = f"output 'Y' of the padded request is FP32 of shape {own}, where models.m.merge.pad says that axis 1 is 2"
    with pytest.raises(ScatterError, match=words):
        scatter(answer_of(np.ones(answered, np.float32)), [envelope_of(3), envelope_of(4)])


def test_an_output_that_does_not_follow_is_left_as_it_is() -> None:
    signature = model(PaddingConfig(sizes=(4,), outputs={"Y": None}))
    envelopes = [envelope_of(3, 2, signature), envelope_of(2, 1, signature)]
    first, second = scatter(answer_of(np.arange(21, dtype=np.float32).reshape(3, 7)), envelopes)
    np.testing.assert_array_equal(output_of(first), np.arange(14).reshape(2, 7))
    np.testing.assert_array_equal(output_of(second), [range(14, 21)])


def test_so_small_that_nothing_would_be_left_of_the_answer_goes_as_it_came() -> None:
    signature = model(PaddingConfig(sizes=(8,), outputs={"Y": FollowingSize(offset=-2)}))
    assert envelope_of(2, signature=signature).heading.padded is None
    assert envelope_of(3, signature=signature).heading.padded is not None


class SharedMemory:
    """Of Regions what a batch needs: there is always one free, of some size."""

    def __init__(self) -> None:
        self.name, self.memory = "region", memoryview(bytearray(1 << 20))

    def take(self, _size: int, _backends: object) -> "SharedMemory":
        return self

    write = SharedRegion.write


def test_large_tensors_are_padded_straight_into_shared_memory() -> None:
    """What is sent says where they are, and in which shape."""
    signature = model(PaddingConfig(sizes=(20_000,), value=7, outputs={"Y": FollowingSize()}))
    envelopes = [envelope_of(19_000, signature=signature), envelope_of(18_000, signature=signature)]
    shared = SharedMemory()
    payload = BatchPayload(envelopes, OutputSizes(), cast("Any", shared))
    sent = service_pb2.ModelInferRequest.FromString(payload.request(StageTarget("m", signature, [NOWHERE], alone=True)))
    assert payload.is_shared
    assert (list(sent.inputs[0].shape), list(sent.raw_input_contents)) == ([2, 20_000], [])
    assert sent.inputs[0].parameters["shared_memory_byte_size"].int64_param == 2 * 20_000 * 4
    there = np.frombuffer(shared.memory[: 2 * 20_000 * 4], np.float32).reshape(2, 20_000)
    for envelope, row in zip(envelopes, there, strict=True):
        (own,) = input_of(envelope.message)
        np.testing.assert_array_equal(row, np.pad(own, (0, 20_000 - len(own)), constant_values=7))
    for envelope, answer in zip(envelopes, payload.outcomes(answer_of(there)), strict=True):
        np.testing.assert_array_equal(output_of(answer), input_of(envelope.message))


def test_requests_read_before_and_after_a_change_of_the_padding_may_meet() -> None:
    """A configuration was reloaded between them, and they are of one shape."""
    old, new = model(), model(HALVED)
    before, after = envelope_of(4, signature=old), envelope_of(3, signature=new)
    assert before.merge_key == after.merge_key
    assert before.fits(new)
    assert after.fits(old)
    for pair in ([before, after], [after, before]):
        x = input_of(gather(pair))
        assert x.shape == (2, 4)
        for envelope, answer in zip(pair, scatter(answer_of(x[:, ::2]), pair), strict=True):
            np.testing.assert_array_equal(output_of(answer), input_of(envelope.message)[:, ::2])


def test_an_answer_is_read_without_its_header_being_changed() -> None:
    """Equal headers are one: what a padded request is told must not be what the next one reads."""
    answer = answer_of(np.ones((1, 4), np.float32))
    scatter(answer, [envelope_of(5)])
    assert list(read_answer(answer)[0].outputs[0].shape) == [1, 4]
