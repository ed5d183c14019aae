"""Messages come out as they went in, whatever the pieces; what is too large is refused as soon as it says so."""

import gzip
import zlib

import pytest
from grpc import StatusCode
from hypothesis import given
from hypothesis import strategies as st

from tidegate_proxy.transport.http2.message import MessageAssembler, MessageError, prefix, single_message


def _framed(message: bytes, flag: int = 0) -> bytes:
    return bytes((flag,)) + len(message).to_bytes(4, "big") + message


@given(st.lists(st.binary(max_size=300) | st.integers(4000, 9000).map(bytes), max_size=8), st.data())
def test_messages_survive_any_cutting(messages: list[bytes], data: st.DataObject) -> None:
    wire = b"".join(prefix(len(message)) + message for message in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=20)))
    assembler, taken = MessageAssembler("identity", 9000), []
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        piece = wire[start:end]
        if (
            not assembler.held_bytes
            and data.draw(st.booleans())
            and (message := single_message(piece, 9000)) is not None
        ):
            taken.append(message)
            continue
        if piece:
            assembler.add(piece)
        while data.draw(st.booleans()) and (message := assembler.take_inflated()) is not None:
            taken.append(message)
    while (message := assembler.take_inflated()) is not None:
        taken.append(message)
    assert taken == messages
    assert assembler.held_bytes == 0


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_messages_are_read(encoding: str, compress: object) -> None:
    assembler = MessageAssembler(encoding, 1000)
    assembler.add(_framed(compress(b"x" * 900), 1))  # type: ignore[operator]
    assert assembler.take_inflated() == b"x" * 900


def test_the_prefix_of_a_large_message_is_enough_to_refuse_it() -> None:
    assembler = MessageAssembler("identity", 1000)
    with pytest.raises(MessageError, match=r"1001 vs\. 1000") as refused:
        assembler.add(_framed(bytes(1001))[:5])
    assert refused.value.code is StatusCode.RESOURCE_EXHAUSTED


def test_a_bomb_is_not_inflated() -> None:
    bomb = gzip.compress(bytes(50 << 20))
    assembler = MessageAssembler("gzip", 1 << 20)
    assembler.add(_framed(bomb, 1))
    with pytest.raises(MessageError, match="when decompressed") as refused:
        assembler.take_inflated()
    assert refused.value.code is StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("encoding", "wire", "words"),
    [
        ("identity", _framed(b"x", 1), "does not say how"),
        ("gzip", _framed(b"no gzip", 1), "not gzip"),
        ("gzip", _framed(gzip.compress(b"cut off", mtime=0)[:-4], 1), "ends too early"),
        ("identity", _framed(b"x", 7), "no flag"),
    ],
    ids=["unsaid", "another", "cut off", "no flag"],
)
def test_what_cannot_be_read_is_said(encoding: str, wire: bytes, words: str) -> None:
    assembler = MessageAssembler(encoding, 1000)
    with pytest.raises(MessageError, match=words):
        assembler.add(wire)
        assembler.take_inflated()
