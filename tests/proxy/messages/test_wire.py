"""The wire format, against protobuf's own."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from tidegate_proxy.messages.wire import (
    MAX_FIELDS,
    MOST_FIELDS,
    REQUEST_RAW_FIELD,
    RESPONSE_RAW_FIELD,
    TooManyFields,
    WireError,
    encode_varint,
    first_string,
    join,
    lacks_model_version,
    last_string,
    split,
    string_in,
    with_model_version,
    with_other_model_version,
    without_contents,
)

TENSORS = st.lists(
    st.one_of(st.binary(max_size=5), st.sampled_from([127, 128, 16_383, 16_384, 70_000]).map(bytes)), max_size=4
)
TEXT = st.text(max_size=8)


@st.composite
def requests(draw: st.DrawFn) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name=draw(TEXT), model_version=draw(TEXT), id=draw(TEXT))
    for name in draw(st.lists(TEXT, max_size=3)):
        message.inputs.add(name=name, datatype=draw(TEXT), shape=draw(st.lists(st.integers(-(2**63), 2**63 - 1))))
        message.parameters[name].int64_param = draw(st.integers(-(2**63), 2**63 - 1))
        message.parameters[name + "d"].double_param = draw(st.floats())
    message.raw_input_contents.extend(draw(TENSORS))
    return message


def _field(number: int, wire_type: int, payload: bytes) -> bytes:
    return encode_varint(number << 3 | wire_type) + payload


# Fields that ModelInferRequest does not have, of every wire type that is not deprecated.
UNKNOWN = st.one_of(
    st.integers(0, 2**64 - 1).map(lambda value: _field(90, 0, encode_varint(value))),
    st.binary(min_size=8, max_size=8).map(lambda eight: _field(91, 1, eight)),
    st.binary(max_size=200).map(lambda some: _field(5000, 2, encode_varint(len(some)) + some)),
    st.binary(min_size=4, max_size=4).map(lambda four: _field(92, 5, four)),
)


@given(requests())
def test_what_is_split_is_what_protobuf_reads(message: service_pb2.ModelInferRequest) -> None:
    header, id_field, tensors = split(message.SerializeToString(), REQUEST_RAW_FIELD)
    assert [bytes(tensor) for tensor in tensors] == list(message.raw_input_contents)
    assert (string_in(id_field) if id_field else "") == message.id
    rest = service_pb2.ModelInferRequest()
    rest.CopyFrom(message)
    rest.ClearField("raw_input_contents")
    rest.ClearField("id")
    # As text, since a NaN is not equal to itself.
    assert str(service_pb2.ModelInferRequest.FromString(header)) == str(rest)


@given(requests())
def test_what_is_joined_is_what_protobuf_writes(message: service_pb2.ModelInferRequest) -> None:
    written = message.SerializeToString(deterministic=True)
    header, id_field, tensors = split(written, REQUEST_RAW_FIELD)
    before_id = written.index(id_field) if id_field else 0
    halves = ((tensor[: len(tensor) // 2], tensor[len(tensor) // 2 :]) for tensor in tensors)
    assert join(header[:before_id] + id_field + header[before_id:], halves, REQUEST_RAW_FIELD) == written


def test_of_several_ids_the_last_one_counts() -> None:
    one, other = (_field(3, 2, encode_varint(1) + name) for name in (b"a", b"b"))
    header, id_field, _ = split(one + other, REQUEST_RAW_FIELD)
    assert (header, string_in(id_field)) == (one, "b")
    with pytest.raises(WireError):
        string_in(_field(3, 2, encode_varint(1) + b"\xff"))


@given(st.permutations(range(6)), st.lists(UNKNOWN, min_size=3, max_size=3), st.binary(max_size=300))
def test_fields_may_come_in_any_order_between_unknown_ones(order: list[int], unknown: list[bytes], raw: bytes) -> None:
    response = [
        _field(1, 2, encode_varint(5) + b"model"),
        _field(RESPONSE_RAW_FIELD, 2, encode_varint(len(raw)) + raw),
        _field(RESPONSE_RAW_FIELD, 2, b"\x00"),
        *unknown,
    ]
    message = b"".join(response[index] for index in order)
    header, _, tensors = split(message, RESPONSE_RAW_FIELD)
    assert [bytes(tensor) for tensor in tensors] == list(
        service_pb2.ModelInferResponse.FromString(message).raw_output_contents
    )
    assert header == b"".join(response[index] for index in order if index not in {1, 2})


@given(requests(), st.data())
def test_a_truncated_message_is_a_wire_error_or_ends_between_fields(
    message: service_pb2.ModelInferRequest, data: st.DataObject
) -> None:
    whole = message.SerializeToString()
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    try:
        service_pb2.ModelInferRequest.FromString(cut)
    except DecodeError:
        # A field may be cut inside the header such that only protobuf's own parser, which reads it next, can tell.
        with pytest.raises((WireError, DecodeError)):
            service_pb2.ModelInferRequest.FromString(split(cut, REQUEST_RAW_FIELD)[0])
    else:
        split(cut, REQUEST_RAW_FIELD)


@given(st.binary(max_size=60))
@example(b"\x0a" + b"\xff" * 12)
@example(b"\xff" * 12)
@example(b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f")
def test_random_bytes_are_a_message_or_a_wire_error(message: bytes) -> None:
    first_string(message)
    last_string(message)
    try:
        header, id_field, tensors = split(message, REQUEST_RAW_FIELD)
    except WireError:
        return
    assert len(header) + len(id_field) + sum(map(len, tensors)) <= len(message)


@given(st.integers(0, 2**64 - 1))
@example(127)
@example(128)
def test_varints_are_protobufs(value: int) -> None:
    parameter = service_pb2.InferParameter(uint64_param=value)
    assert parameter.SerializeToString() == b"\x28" + encode_varint(value)


@given(requests())
def test_the_first_string_is_the_models_name(message: service_pb2.ModelInferRequest) -> None:
    assert first_string(message.SerializeToString()) == message.model_name


@given(requests(), requests())
def test_the_last_string_is_the_models_name(
    first: service_pb2.ModelInferRequest, last: service_pb2.ModelInferRequest
) -> None:
    message = first.SerializeToString() + last.SerializeToString()
    assert last_string(message) == service_pb2.ModelInferRequest.FromString(message).model_name


def test_the_last_string_is_looked_for_in_no_more_fields_than_a_message_may_have() -> None:
    first, last = (service_pb2.ModelInferRequest(model_name=name).SerializeToString() for name in ("first", "last"))
    assert last_string(first + b"\x0a\xff") == "first"
    assert last_string(first + b"\x28\x00" * MAX_FIELDS + last) == "first"
    assert last_string(b"") == ""


def test_a_message_without_a_first_string_has_none() -> None:
    assert first_string(b"") == ""
    assert first_string(b"\x12\x01v") == ""
    assert first_string(b"\x0a\x02\xff\xff") == ""


@given(requests(), st.data())
def test_a_header_without_contents_is_the_header_else(
    message: service_pb2.ModelInferRequest, data: st.DataObject
) -> None:
    for tensor in message.inputs:
        if data.draw(st.booleans()):
            tensor.contents.bytes_contents.extend(data.draw(TENSORS))
    header, _, _ = split(message.SerializeToString(), REQUEST_RAW_FIELD)
    rest = service_pb2.ModelInferRequest.FromString(header)
    for tensor in rest.inputs:
        if tensor.HasField("contents"):
            tensor.contents.Clear()
    assert str(service_pb2.ModelInferRequest.FromString(without_contents(header))) == str(rest)


@given(st.binary(max_size=60))
@example(b"\x2a\x05\x0a\x04")
def test_random_headers_lose_their_contents_or_are_a_wire_error(header: bytes) -> None:
    try:
        assert len(without_contents(header)) <= len(header)
    except WireError:
        with pytest.raises(DecodeError):
            service_pb2.ModelInferRequest.FromString(header)


@pytest.mark.parametrize("field", [b"\x32\x00", b"\x2a\x00", b"\x3a\x00"])
def test_the_parser_does_not_look_at_millions_of_fields(field: bytes) -> None:
    assert len(split(field * MOST_FIELDS, REQUEST_RAW_FIELD)) == 3
    with pytest.raises(TooManyFields):
        split(field * (2 * MOST_FIELDS), REQUEST_RAW_FIELD)


def test_nor_at_millions_of_those_of_an_input() -> None:
    shape = b"\x18\x01" * (2 * MOST_FIELDS)
    with pytest.raises(TooManyFields):
        without_contents(b"\x2a" + encode_varint(len(shape)) + shape)


def test_fields_with_words_in_them_may_be_more() -> None:
    """But no more than can be looked at in a moment."""
    field = b"\x32\x08\x0a\x06output"
    assert len(split(field * MAX_FIELDS, REQUEST_RAW_FIELD)) == 3
    with pytest.raises(TooManyFields, match="more than 50000 fields"):
        split(field * (MAX_FIELDS + 1), REQUEST_RAW_FIELD)


def test_tensors_are_not_copied() -> None:
    message = join(b"", [[bytes(100)], [bytes(200)]], REQUEST_RAW_FIELD)
    _, _, tensors = split(message, REQUEST_RAW_FIELD)
    assert all(tensor.obj is message for tensor in tensors)


def test_a_version_is_named_where_none_is_and_replaced_where_that_is_wished() -> None:
    for named, chosen in (("", "2"), ("1", "1")):
        message = service_pb2.ModelInferRequest(model_name="m" * 200, model_version=named, id="a")
        message.raw_input_contents.append(b"x" * 300)
        written = message.SerializeToString()
        assert lacks_model_version(written) == (not named)
        read = service_pb2.ModelInferRequest.FromString(with_model_version(written, "2"))
        assert read.model_version == chosen
        other = service_pb2.ModelInferRequest.FromString(with_other_model_version(written, "3"))
        assert other.model_version == "3"
        for each in (read, other):
            each.model_version = named
            assert each == message
    named_first = b"\x12\x011" + service_pb2.ModelInferRequest(model_name="m").SerializeToString()
    assert service_pb2.ModelInferRequest.FromString(with_model_version(named_first, "2")).model_version == "1"
    assert with_model_version(b"", "2") == b""
