"""Which requests can be scheduled, and which of them can share a batch."""

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from tidegate_proxy.messages.model_signature import ModelSignature, TensorSpec
from tidegate_proxy.messages.passed_through import PassedThrough
from tidegate_proxy.messages.request import (
    MAX_HEADER_BYTES,
    PRIVATE_PARAMETERS,
    NotSchedulable,
    OversizedRequest,
    open_envelope,
)
from tidegate_proxy.messages.wire import MAX_FIELDS

SIGNATURE = ModelSignature(
    model="m",
    inputs={
        "A": TensorSpec("FP32", (2, -1)),
        "WORDS": TensorSpec("BYTES", (-1,)),
        "MAYBE": TensorSpec("BOOL", (1,), optional=True),
    },
    outputs=frozenset({"Y", "Z"}),
    max_rows=4,
)
Change = Callable[[service_pb2.ModelInferRequest], object]


def _request(
    rows: int = 2, columns: int = 3, words: tuple[bytes, ...] = (b"", b"tide")
) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name="m", id="mine")
    message.inputs.add(name="A", datatype="FP32", shape=[rows, 2, columns])
    message.raw_input_contents.append(bytes(rows * 2 * columns * 4))
    message.inputs.add(name="WORDS", datatype="BYTES", shape=[rows, len(words) // rows])
    message.raw_input_contents.append(b"".join(len(word).to_bytes(4, "little") + word for word in words))
    return message


def _key(message: service_pb2.ModelInferRequest) -> str:
    return open_envelope(message.SerializeToString(), SIGNATURE).merge_key


def _shape(index: int, *shape: int) -> Change:
    def change(message: service_pb2.ModelInferRequest) -> None:
        message.inputs[index].shape[:] = shape

    return change


def _parameter(name: str, **value: object) -> Change:
    return lambda message: message.parameters[name].MergeFrom(service_pb2.InferParameter(**value))


def _raw(index: int, contents: bytes) -> Change:
    def change(message: service_pb2.ModelInferRequest) -> None:
        message.raw_input_contents[index] = contents

    return change


def _no_rows(message: service_pb2.ModelInferRequest) -> None:
    for index in range(2):
        message.inputs[index].shape[0] = 0
        message.raw_input_contents[index] = b""


def _twice(message: service_pb2.ModelInferRequest) -> None:
    message.inputs.add().CopyFrom(message.inputs[0])
    message.raw_input_contents.append(message.raw_input_contents[0])


def _without(message: service_pb2.ModelInferRequest) -> None:
    del message.inputs[0], message.raw_input_contents[0]


def _typed(message: service_pb2.ModelInferRequest) -> None:
    message.ClearField("raw_input_contents")
    message.inputs[0].contents.fp32_contents.extend([0.0] * 12)


def _in_shared_memory(message: service_pb2.ModelInferRequest) -> None:
    message.inputs[0].parameters["shared_memory_region"].string_param = "region"


def _to_shared_memory(message: service_pb2.ModelInferRequest) -> None:
    message.outputs.add(name="Y").parameters["shared_memory_region"].string_param = "region"


REFUSED: dict[str, tuple[Change, str]] = {
    "sequence": (_parameter("sequence_id", int64_param=3), "sequence"),
    "sequence start": (_parameter("sequence_start", bool_param=True), "sequence"),
    "timeout as text": (_parameter("timeout", string_param="5"), "timeout is no integer"),
    "timeout unsigned": (_parameter("timeout", uint64_param=5), "timeout is no integer"),
    "priority as text": (_parameter("priority", string_param="5"), "priority is no integer"),
    "priority below zero": (_parameter("priority", int64_param=-1), "priority is negative"),
    "output unknown": (lambda message: message.outputs.add(name="NOPE"), "unknown"),
    "output in shared memory": (_to_shared_memory, "shared memory"),
    "input in shared memory": (_in_shared_memory, "'A' is not as"),
    "input unknown": (lambda message: setattr(message.inputs[0], "name", "B"), "'B' is not as"),
    "input missing": (_without, "missing"),
    "input twice": (_twice, "twice"),
    "typed contents": (_typed, "typed"),
    "typed contents, too": (lambda message: message.inputs[0].contents.fp32_contents.append(0.0), "typed"),
    "datatype": (lambda message: setattr(message.inputs[0], "datatype", "INT32"), "'A' is not as"),
    "rank": (_shape(0, 2, 2, 3, 1), "'A' is not as"),
    "no shape": (_shape(0), "'A' is not as"),
    "fixed dimension": (_shape(0, 2, 3, 2), "'A' is not as"),
    "negative dimension": (_shape(1, 2, -1), "'WORDS' is not as"),
    "rows differ": (_shape(1, 1, 2), "rows differ"),
    "no rows": (_no_rows, "none"),
    "raw too short": (_raw(0, bytes(47)), "size"),
    "raw too long": (_raw(0, bytes(52)), "size"),
    "words truncated": (_raw(1, b"\0\0\0\0\4\0\0\0tid"), "BYTES"),
    "words without length": (_raw(1, b"\0\0\0\0\4\0"), "BYTES"),
    "words too many": (_raw(1, bytes(12)), "BYTES"),
    "another model": (lambda message: setattr(message, "model_name", "n"), "twice"),
}


def test_a_request_is_opened() -> None:
    message = _request()
    envelope = open_envelope(message.SerializeToString(), SIGNATURE)
    assert (envelope.model, envelope.rows, envelope.id) == ("m", 2, "mine")
    assert [bytes(tensor) for tensor in envelope.tensors] == list(message.raw_input_contents)
    assert envelope.message == message.SerializeToString()


@pytest.mark.parametrize("name", REFUSED)
def test_what_triton_has_to_see_as_it_is(name: str) -> None:
    change, reason = REFUSED[name]
    message = _request()
    change(message)
    with pytest.raises(NotSchedulable, match=reason):
        _key(message)


@pytest.mark.parametrize("outputs", [(), ("Y",)])
def test_a_request_without_inputs_has_no_rows_to_schedule(outputs: tuple[str, ...]) -> None:
    """Triton takes it where every input is optional."""
    inputs = {name: TensorSpec("FP32", (1,), optional=True) for name in "AB"}
    signature = ModelSignature(model="m", inputs=inputs, outputs=frozenset({"Y"}), max_rows=4)
    message = service_pb2.ModelInferRequest(model_name="m")
    for name in outputs:
        message.outputs.add(name=name)
    with pytest.raises(NotSchedulable, match="no inputs"):
        open_envelope(message.SerializeToString(), signature)
    message.inputs.add(name="B", datatype="FP32", shape=[2, 1])
    message.raw_input_contents.append(bytes(8))
    assert open_envelope(message.SerializeToString(), signature).rows == 2


def test_too_many_rows() -> None:
    words = (b"",) * 4
    assert open_envelope(_request(4, 1, words).SerializeToString(), SIGNATURE).rows == 4
    with pytest.raises(NotSchedulable, match="max_batch_size"):
        _key(_request(5, 1, (b"",) * 5))


@pytest.mark.parametrize(
    "message", [b"\xff" * 12, b"\x0a\x01\xff", b"\x2a\x01\x0a", _request().SerializeToString()[:-1]]
)
def test_what_is_no_request_is_left_to_triton(message: bytes) -> None:
    with pytest.raises(NotSchedulable, match="no ModelInferRequest"):
        open_envelope(message, SIGNATURE)


def _long_shape(message: service_pb2.ModelInferRequest) -> None:
    message.inputs[0].shape.extend([1] * MAX_HEADER_BYTES)


def _many_outputs(message: service_pb2.ModelInferRequest) -> None:
    message.outputs.extend([service_pb2.ModelInferRequest.InferRequestedOutputTensor(name="Y")] * MAX_FIELDS)


@pytest.mark.parametrize("change", [_long_shape, _many_outputs])
def test_what_says_too_much_beside_its_tensors_goes_to_no_triton(change: Change) -> None:
    message = _request()
    change(message)
    with pytest.raises(OversizedRequest):
        _key(message)
    assert "more than" in PassedThrough.of(message.SerializeToString()).refusal


@pytest.mark.parametrize("count", [4000, 10_000])
def test_a_request_may_have_thousands_of_inputs(count: int) -> None:
    """As those of recommenders have."""
    names = [f"f_{number}" for number in range(count)]
    message = service_pb2.ModelInferRequest(model_name="m")
    for name in names:
        message.inputs.add(name=name, datatype="FP32", shape=[1, 1])
        message.raw_input_contents.append(b"four")
    signature = ModelSignature("m", {name: TensorSpec("FP32", (1,)) for name in names}, frozenset({"Y"}), 4)
    serialized = message.SerializeToString()
    assert open_envelope(serialized, signature).rows == 1
    assert not PassedThrough.of(serialized).refusal


def test_typed_contents_may_be_as_large_as_they_like() -> None:
    message = _request()
    message.ClearField("raw_input_contents")
    message.inputs[1].contents.bytes_contents.extend([b"word"] * MAX_HEADER_BYTES)
    message.inputs[0].parameters["shared_memory_region"].string_param = "mine"
    seen = PassedThrough.of(message.SerializeToString())
    assert (seen.refusal, seen.model, seen.rows, seen.regions) == ("", "m", 2, ("mine",))
    assert seen.header
    assert [list(tensor.shape) for tensor in seen.header.inputs] == [list(tensor.shape) for tensor in message.inputs]


SAME: dict[str, Change] = {
    "as it is": lambda message: None,
    "another id": lambda message: setattr(message, "id", "other"),
    "a timeout": _parameter("timeout", int64_param=5),
    "a priority": _parameter("priority", uint64_param=5),
    "an SLO": _parameter("slo_ms", double_param=2.5),
    "an output": lambda message: message.outputs.add(name="Y"),
}


@pytest.mark.parametrize("name", SAME)
def test_requests_that_can_share_a_batch(name: str) -> None:
    message = _request()
    SAME[name](message)
    assert _key(message) == _key(_request())
    assert _key(_request(1, 3, (b"", b"x"))) == _key(_request(2, 3, (b"",) * 4))


def test_inputs_may_come_in_any_order() -> None:
    message = service_pb2.ModelInferRequest(model_name="m")
    for index in (1, 0):
        message.inputs.add().CopyFrom(_request().inputs[index])
        message.raw_input_contents.append(_request().raw_input_contents[index])
    assert _key(message) == _key(_request())
    envelope = open_envelope(message.SerializeToString(), SIGNATURE)
    assert [envelope.heading.header.inputs[index].name for index in envelope.heading.order] == ["A", "WORDS"]


def _with_maybe(message: service_pb2.ModelInferRequest) -> None:
    message.inputs.add(name="MAYBE", datatype="BOOL", shape=[2, 1])
    message.raw_input_contents.append(b"\0\1")


OTHER: dict[str, Change] = {
    "a version": lambda message: setattr(message, "model_version", "1"),
    "an optional input": _with_maybe,
    "a parameter": _parameter("mine", string_param="1"),
}


@pytest.mark.parametrize("name", OTHER)
def test_requests_that_cannot_share_a_batch(name: str) -> None:
    message = _request()
    OTHER[name](message)
    assert _key(message) != _key(_request())
    assert _key(_request(columns=4)) != _key(_request(columns=3))


def test_a_parameters_type_counts() -> None:
    one, other = _request(), _request()
    one.parameters["p"].int64_param = 1
    other.parameters["p"].uint64_param = 1
    assert _key(one) != _key(other)


# Equal keys only for equal requests ------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "a=1001;b", "1", "", "é", "\n", "',"]) | st.text("ab=;,[]()' 01:", max_size=6)
"""Names that are easily taken for one another, or for what a key puts between them."""
VALUES = st.one_of(
    st.builds(service_pb2.InferParameter, bool_param=st.booleans()),
    st.builds(service_pb2.InferParameter, int64_param=st.integers(-2, 2)),
    st.builds(service_pb2.InferParameter, uint64_param=st.integers(0, 2)),
    st.builds(service_pb2.InferParameter, double_param=st.sampled_from([0.0, -0.0, 1.0, float("nan")])),
    st.builds(service_pb2.InferParameter, string_param=NAMES),
    st.builds(service_pb2.InferParameter),
)
PARAMETERS = st.dictionaries(NAMES, VALUES, max_size=3)
PRIVATE = st.dictionaries(
    st.sampled_from(["timeout"]), st.builds(service_pb2.InferParameter, int64_param=st.just(1)), max_size=1
)
SHAPES = st.lists(st.integers(0, 2), min_size=1, max_size=3)
OUTPUTS = st.dictionaries(NAMES, PARAMETERS | st.just({}), max_size=2)


@st.composite
def requests(draw: st.DrawFn) -> tuple[service_pb2.ModelInferRequest, ModelSignature]:
    """A request of one row, of a model that takes it."""
    message = service_pb2.ModelInferRequest(model_name="m", model_version=draw(st.sampled_from(["", "1", "2"])))
    specs = {}
    for name, shape in draw(st.dictionaries(NAMES, SHAPES, min_size=1, max_size=2)).items():
        datatype, size = draw(st.sampled_from([("INT8", 1), ("UINT8", 1), ("FP32", 4)]))
        specs[name] = TensorSpec(datatype, (-1,) * len(shape))
        message.inputs.add(name=name, datatype=datatype, shape=[1, *shape])
        count = size
        for dimension in shape:
            count *= dimension
        message.raw_input_contents.append(bytes(count))
    for name, value in {**draw(PARAMETERS), **draw(PRIVATE)}.items():
        message.parameters[name].CopyFrom(value)
    outputs = draw(OUTPUTS)
    for name, parameters in outputs.items():
        output = message.outputs.add(name=name)
        for parameter, value in parameters.items():
            output.parameters[parameter].CopyFrom(value)
    return message, ModelSignature("m", specs, frozenset(outputs), 4)


def _alike(message: service_pb2.ModelInferRequest) -> object:
    """All of a request that a model can tell from another of its batch: but for rows, tensors and outputs."""
    return (
        message.model_version,
        sorted((each.name, each.datatype, list(each.shape[1:])) for each in message.inputs),
        sorted(
            (name, value.WhichOneof("parameter_choice"), value.SerializeToString())
            for name, value in message.parameters.items()
            if name not in PRIVATE_PARAMETERS
        ),
    )


def _with_parameters(**parameters: object) -> tuple[service_pb2.ModelInferRequest, ModelSignature]:
    message = service_pb2.ModelInferRequest(model_name="m")
    message.inputs.add(name="A", datatype="INT8", shape=[1, 1])
    message.raw_input_contents.append(b"1")
    for name, value in parameters.items():
        message.parameters[name].int64_param = int(str(value))
    return message, ModelSignature("m", {"A": TensorSpec("INT8", (-1,))}, frozenset(), 4)


@given(requests(), requests())
@example(_with_parameters(a=1, b=1), _with_parameters(**{"a=1001;b": 1}))
@example(_with_parameters(a=1), _with_parameters(a=1))
def test_equal_keys_only_for_equal_requests(
    one: tuple[service_pb2.ModelInferRequest, ModelSignature],
    other: tuple[service_pb2.ModelInferRequest, ModelSignature],
) -> None:
    keys = []
    for message, signature in (one, other):
        with contextlib.suppress(NotSchedulable):
            keys.append(open_envelope(message.SerializeToString(), signature).merge_key)
            assert not any(output.parameters for output in message.outputs), "what an output says has no place in it"
    if len(keys) == 2:
        assert (keys[0] == keys[1]) == (_alike(one[0]) == _alike(other[0]))
