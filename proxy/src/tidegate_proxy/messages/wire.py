"""Protobuf wire format, as far as needed to leave tensors in place.

ModelInferRequest and ModelInferResponse carry their tensors as repeated `bytes` at the top level. Splitting those off
leaves a small header to parse; joining a header with slices of the tensors of others copies every byte once.
"""

from collections.abc import Iterable, Iterator, Sized
from contextlib import suppress
from itertools import islice
from typing import TypeVar

Buffer = bytes | memoryview
PieceT = TypeVar("PieceT", bound=Sized)

REQUEST_RAW_FIELD = 7
"""Field number of ModelInferRequest.raw_input_contents."""
RESPONSE_RAW_FIELD = 6
"""Field number of ModelInferResponse.raw_output_contents."""

MOST_FIELDS = 10_000
"""Number of fields above which a message is suspicious: two bytes make a field, and millions of them take seconds."""
MAX_FIELDS = 50_000
"""Largest number of fields in a message whose fields are long enough for thousands of inputs."""
_BYTES_PER_FIELD = 5
"""An input with name, datatype and shape has four fields in some 20 bytes."""

_LENGTH_DELIMITED = 2
_FIXED_SIZE = {1: 8, 5: 4}
_INPUT_TAG = 5 << 3 | _LENGTH_DELIMITED
"""ModelInferRequest.inputs"""
_CONTENTS_TAG = 5 << 3 | _LENGTH_DELIMITED
"""ModelInferRequest.InferInputTensor.contents"""
ID_TAG = 3 << 3 | _LENGTH_DELIMITED
"""Tag of ModelInferRequest.id and ModelInferResponse.id."""
_NO_CONTENTS = bytes((_CONTENTS_TAG, 0))
_VERSION_TAG = 2 << 3 | _LENGTH_DELIMITED
"""ModelInferRequest.model_version"""


class WireError(ValueError):
    """Error: the bytes are no protobuf message."""


class TooManyFields(WireError):
    """Error: the bytes have too many fields to be parsed in reasonable time."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the message has more than {most} fields")


def split(message: bytes, raw_field: int) -> tuple[bytes, bytes, list[memoryview]]:  # noqa: PLR0912 - it is in line
    """Split a message into its header (every other field, in order), its id and its raw tensors.

    The id is the whole field, as both messages have it; empty without one. The tensors are not copied. Raises WireError
    if the bytes are no message, TooManyFields.
    """
    # Of every request and every answer, so that most of the lengths, of one byte, are read in line.
    raw_tag = raw_field << 3 | _LENGTH_DELIMITED
    tensors: list[memoryview] = []
    header: list[bytes] = []
    view = memoryview(message)
    id_field = b""
    position, end = 0, len(message)
    header_start = fields = 0
    try:
        while position < end:
            start = position
            tag = message[position]
            position += 1
            if tag >= 0x80:
                tag, position = _varint(message, start)
            wire_type = tag & 7
            if wire_type == _LENGTH_DELIMITED:
                length = message[position]
                position += 1
                if length >= 0x80:
                    length, position = _varint(message, position - 1)
                position += length
                if tag in (raw_tag, ID_TAG):
                    if header_start < start:
                        header.append(message[header_start:start])
                    header_start = position
                    if tag == raw_tag:
                        tensors.append(view[position - length : position])
                    else:
                        if id_field:  # the last one counts; what is wrong with this one is found in the header
                            header.append(id_field)
                        id_field = message[start:position]
            elif wire_type == 0:
                _, position = _varint(message, position)
            else:
                position += _FIXED_SIZE[wire_type]
            fields += 1
            if fields > MOST_FIELDS and fields > (most := _most_fields(end)):
                raise TooManyFields(most)
    except (IndexError, KeyError) as error:
        raise WireError("truncated or malformed message") from error
    if position != end:
        raise WireError("truncated message")
    if header_start < end:
        header.append(message[header_start:end])
    return (header[0] if len(header) == 1 else b"".join(header)), id_field, tensors


def string_in(field: bytes) -> str:
    """Return the value of a string field. Raises WireError if it is not UTF-8."""
    start = 2 if field[0] < 0x80 and field[1] < 0x80 else _varint(field, _varint(field, 0)[1])[1]
    try:
        return field[start:].decode()
    except UnicodeDecodeError as error:
        raise WireError("a string is not UTF-8") from error


def without_contents(header: bytes) -> bytes:
    """Return a ModelInferRequest header without typed contents of inputs, except for a mark that there were some.

    Raises WireError for a malformed header, and TooManyFields if all inputs together have too many.
    """
    kept: list[Buffer] = []
    number, most = 0, _most_fields(len(header))
    for start, value, end, tag in fields_of(header, 0, len(header)):
        number += 1
        if tag != _INPUT_TAG:
            kept.append(memoryview(header)[start:end])
            continue
        parts: list[Buffer] = []
        for inner_start, _, inner_end, inner_tag in fields_of(header, value, end):
            number += 1
            if number > most:
                raise TooManyFields(most)
            parts.append(_NO_CONTENTS if inner_tag == _CONTENTS_TAG else header[inner_start:inner_end])
        kept += (bytes((_INPUT_TAG,)), encode_varint(sum(map(len, parts))), *parts)
    return b"".join(kept)


def join(header: bytes, tensors: Iterable[Iterable[Buffer]], raw_field: int) -> bytes:
    """Build a message from a header and tensors, each given as its pieces. Copies each byte once.

    `raw_field`: field number of the tensors.
    """
    return b"".join(pieces_of(header, tensors, raw_field))


def pieces_of(header: bytes, tensors: Iterable[Iterable[PieceT]], raw_field: int) -> list[bytes | PieceT]:
    """Return the pieces that a message is joined from; pieces of tensors are any objects with a length in bytes.

    `header`: serialized fields besides the tensors; `raw_field`: field number of the tensors.
    """
    raw_tag = bytes((raw_field << 3 | _LENGTH_DELIMITED,))
    pieces: list[bytes | PieceT] = [header]
    for tensor in tensors:
        parts = list(tensor)
        pieces += (raw_tag, encode_varint(sum(map(len, parts))))
        pieces += parts
    return pieces


def encode_varint(value: int) -> bytes:
    """Encode an unsigned integer in base 128, least significant group first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def first_string(message: bytes) -> str:
    """Return field 1, a string: the model's name in every request that concerns one model; "" if absent."""
    if not message or message[0] != (1 << 3 | _LENGTH_DELIMITED):
        return ""
    try:
        length, position = _varint(message, 1)
        return message[position : position + length].decode()
    except (IndexError, ValueError):
        return ""


def last_string(message: bytes) -> str:
    """Return field 1, a string, as a parser reads it: the last one, wherever it stands; "" if absent.

    Of a malformed message, or one with too many fields, it is the last one before that shows.
    """
    found = b""
    with suppress(WireError):
        for _, value, end, tag in islice(fields_of(message, 0, len(message)), _most_fields(len(message))):
            if tag == (1 << 3 | _LENGTH_DELIMITED):
                found = message[value:end]
    return found.decode(errors="replace")


def with_model_name_first(message: bytes, model: str) -> bytes:
    """Return a request that begins with its model's name. `model`: the name that counts, which is the last one."""
    name = model.encode()
    return b"".join((bytes((1 << 3 | _LENGTH_DELIMITED,)), encode_varint(len(name)), name, message))


def lacks_model_version(message: bytes) -> bool:
    """Return whether a ModelInferRequest begins with its model's name and no version, as clients write it."""
    return _after_model_name(message) > 0


def with_model_version(message: bytes, version: str) -> bytes:
    """Return a ModelInferRequest with this version; the message itself unless it lacks one (`lacks_model_version`).

    A version that stands elsewhere than behind the model's name prevails: the last field counts.
    """
    position = _after_model_name(message)
    if not position:
        return message
    return b"".join((message[:position], _version_field(version), memoryview(message)[position:]))


def _after_model_name(message: bytes) -> int:
    """Position of what follows the model's name at the beginning; 0 if a version does, or no name is there."""
    if message[:1] != bytes((1 << 3 | _LENGTH_DELIMITED,)):
        return 0
    try:
        length, position = _varint(message, 1)
    except (IndexError, WireError):
        return 0
    position += length
    return 0 if message[position : position + 1] == bytes((_VERSION_TAG,)) else position


def with_other_model_version(message: bytes, version: str) -> bytes:
    """Return a ModelInferRequest with this version instead of the one that it names, if any."""
    return message + _version_field(version)


def _version_field(version: str) -> bytes:
    value = version.encode()
    return bytes((_VERSION_TAG, len(value))) + value


def fields_of(message: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield for each field its start, the start of its value, its end, and its tag. Raises WireError.

    `position`, `end`: range of the message in bytes.
    """
    try:
        while position < end:
            start = position
            tag, value = _varint(message, position)
            wire_type = tag & 7
            if wire_type == _LENGTH_DELIMITED:
                length, value = _varint(message, value)
                position = value + length
            elif wire_type == 0:
                _, position = _varint(message, value)
            else:
                position = value + _FIXED_SIZE[wire_type]
            yield start, value, position, tag
    except (IndexError, KeyError) as error:
        raise WireError("truncated or malformed message") from error
    if position != end:
        raise WireError("truncated message")


def _most_fields(size: int) -> int:
    """Return the maximum number of fields in a message of this many bytes."""
    return min(MAX_FIELDS, MOST_FIELDS + size // _BYTES_PER_FIELD)


def _varint(message: bytes, position: int) -> tuple[int, int]:
    byte = message[position]
    if byte < 0x80:
        return byte, position + 1
    value, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = message[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
        if shift > 63:
            raise WireError("malformed varint")
