"""Header blocks that are too long reach libnghttp2 shortened, and all that comes over a connection in order."""

from typing import Final

import ngh2
from hypothesis import given
from hypothesis import strategies as st
from ngh2.enums import Setting
from ngh2.events import RequestReceived, ResponseReceived

from tidegate_proxy.transport.http2.connection import FRAME_BYTES
from tidegate_proxy.transport.http2.headers import KEPT_BYTES, HeaderBlocks, shorter

Headers = list[tuple[bytes, bytes]]
REQUEST: Final[Headers] = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"), (b":path", b"/x")]
LETTERS = st.sampled_from([b"a", b"~"])
"""The second is longer in Huffman's code, and so sent as it is."""
HEADERS = st.tuples(st.sampled_from([b"grpc-message", b"x", b"y"]), LETTERS, st.integers(0, 300) | st.just(120_000))


@given(
    st.lists(st.lists(HEADERS, max_size=1) | st.lists(HEADERS, max_size=4), max_size=5),
    st.lists(st.integers(1, 30) | st.integers(1, 60_000), max_size=40),
)
def test_headers_arrive_cut_off_where_they_are_long(
    answers: list[list[tuple[bytes, bytes, int]]], sizes: list[int]
) -> None:
    client = ngh2.Connection(ngh2.Role.CLIENT, ngh2.Configuration())
    server = ngh2.Connection(ngh2.Role.SERVER, ngh2.Configuration(max_send_header_block_length=1 << 20))
    client.initiate_connection({Setting.MAX_FRAME_SIZE: FRAME_BYTES})
    server.initiate_connection({})
    for _ in answers:
        client.send_request(REQUEST, end_stream=True)
    server.receive_data(b"".join(iter(client.data_to_send, b"")))
    for event in server.events():
        if isinstance(event, RequestReceived):
            headers = [(name, letter * size) for name, letter, size in answers[event.stream_id // 2]]
            server.send_response(event.stream_id, [(b":status", b"200"), *headers])
            server.send_data(event.stream_id, b"data", end_stream=True)
    wire = b"".join(iter(server.data_to_send, b""))
    blocks = HeaderBlocks()
    for size in [*sizes, len(wire)]:
        client.receive_data(blocks.shortened(memoryview(wire)[:size]))
        wire = wire[size:]
    came = {event.stream_id // 2: event.headers for event in client.events() if isinstance(event, ResponseReceived)}
    for number, sent in enumerate(answers):
        assert [(name, len(value)) for name, value in came[number]] == [
            (b":status", 3),
            *((name, min(size, KEPT_BYTES)) for name, _, size in sent),
        ]


def test_padding_is_that_of_the_first_frame() -> None:
    first, rest, stream = b"\x88\0\1a", b"\1b", (1).to_bytes(4)
    padded = b"\2" + first + bytes(2)
    wire = len(padded).to_bytes(3) + b"\1\x08" + stream + padded + len(rest).to_bytes(3) + b"\x09\4" + stream + rest
    whole = first + rest
    assert HeaderBlocks().shortened(memoryview(wire)) == len(whole).to_bytes(3) + b"\1\4" + stream + whole


@given(st.binary(max_size=60))
def test_what_is_no_header_block_stays_as_it_is(block: bytes) -> None:
    assert shorter(block) == block
