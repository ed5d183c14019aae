"""What is taken apart by comparing comes out as what is read: nothing is taken for what it is not."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate_proxy.messages import wire
from tidegate_proxy.messages.request import form_of
from tidegate_proxy.messages.wire import REQUEST_RAW_FIELD

ID, RAW = wire.ID_TAG, REQUEST_RAW_FIELD << 3 | 2


def _field(tag: int, content: bytes) -> bytes:
    return bytes((tag,)) + wire.encode_varint(len(content)) + content


_OTHERS = st.sampled_from([_field(1 << 3 | 2, b"model"), _field(5 << 3 | 2, b"\x1a\x01x"), b"\x20\x01", b"\x25abcd"])
_IDS = st.one_of(st.sampled_from([b"", b"7", b"\x1a\x00"]), st.binary(max_size=200)).map(lambda text: _field(ID, text))
_TENSORS = st.sampled_from([b"", b"1234", bytes(4), bytes(300)]).map(lambda content: _field(RAW, content))
_USUAL = st.builds(
    lambda *parts: b"".join(field for part in parts for field in part),
    st.lists(_OTHERS, max_size=3),
    st.lists(_IDS, max_size=1),
    st.lists(_OTHERS, max_size=3),
    st.lists(_TENSORS, max_size=3),
)
_MESSAGES = _USUAL | st.lists(_OTHERS | _IDS | _TENSORS, max_size=8).map(b"".join)


@st.composite
def _pairs(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A message, and another one: any, or the same with a few bytes that differ."""
    first = draw(_MESSAGES)
    if not first or draw(st.booleans()):
        return first, draw(_MESSAGES)
    second = bytearray(first)
    for _ in range(draw(st.integers(0, 2))):
        second[draw(st.integers(0, len(second) - 1))] = draw(st.sampled_from([0, 1, 2, ID, RAW, 0x7F, 0x80, 0xFF]))
    return first, bytes(second[: draw(st.integers(0, len(second)))]) if draw(st.booleans()) else bytes(second)


@given(_pairs())
def test_what_is_taken_is_what_would_be_read(pair: tuple[bytes, bytes]) -> None:
    first, second = pair
    form = form_of(first, REQUEST_RAW_FIELD)
    if form and (taken := form.take(second)):
        header, *others = wire.split(second, REQUEST_RAW_FIELD)
        assert tuple(others) == taken
        assert header == wire.split(first, REQUEST_RAW_FIELD)[0]


@given(_USUAL)
def test_what_is_usual_is_taken(message: bytes) -> None:
    form = form_of(message, REQUEST_RAW_FIELD)
    assert form
    _, id_field, tensors = wire.split(message, REQUEST_RAW_FIELD)
    assert form.take(message) == ((id_field, tensors) if len(id_field) < 0x82 else None)
