"""What RFC 9113 (HTTP/2) and RFC 7541 (HPACK) ask of a server, by section, as h2spec does: frames in, errors out.

An error of a stream may be treated as one of its connection (RFC 9113, section 5.4.1); the codes are the RFCs'.
"""

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from ngh2.enums import ErrorCode

from tests.proxy.transport.conftest import ECHO, Serve, Served, echo

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, PRIORITIZED = 0x4, 0x8, 0x20
MOST_STREAMS = 100
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
Field = tuple[bytes, bytes]


PROBES = 6
"""Turns of the event loop until what was sent has had its outcome: with a frontend that is there and back to its
shard."""


@pytest.fixture(params=[False, True], ids=["", "frontend"])
def has_frontend(request: pytest.FixtureRequest) -> bool:
    """Whether clients are connected to a frontend."""
    return bool(request.param)


def frame(kind: int, flags: int = 0, stream_id: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big") + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    payload = b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in pairs)
    return frame(SETTINGS, payload=payload)


def literal(name: bytes, value: bytes) -> bytes:
    """A field in HPACK, not indexed."""
    return b"\x00" + _string(name) + _string(value)


def _string(text: bytes) -> bytes:
    assert len(text) < 127
    return bytes([len(text)]) + text


METHOD, SCHEME, PATH = (b":method", b"POST"), (b":scheme", b"http"), (b":path", ECHO.encode())
AUTHORITY, TYPE = (b":authority", b"test"), (b"content-type", b"application/grpc")
CALL: tuple[Field, ...] = (METHOD, SCHEME, PATH, AUTHORITY, TYPE)
MESSAGE = b"\0\0\0\0\5hello"


def block(*fields: Field) -> bytes:
    return b"".join(literal(*each) for each in fields or CALL)


def request(stream_id: int = 1, *fields: Field, flags: int = END_HEADERS) -> bytes:
    """The headers of a call."""
    return frame(HEADERS, flags, stream_id, block(*fields))


def whole(stream_id: int = 1, *fields: Field) -> bytes:
    """A call with its message."""
    return request(stream_id, *fields) + frame(DATA, END_STREAM, stream_id, MESSAGE)


def increment(stream_id: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, size.to_bytes(4, "big"))


def error(code: int) -> bytes:
    return code.to_bytes(4, "big")


@dataclass
class Seen:
    """What a server has sent."""

    resets: dict[int, int] = field(default_factory=dict)
    """Error codes, by stream; not those that say that there is none."""
    goaway: int | None = None
    closed: bool = False
    data: dict[int, list[bytes]] = field(default_factory=dict)
    """The payloads of DATA frames, by stream."""
    acknowledged: list[bytes] = field(default_factory=list)
    """What pings said that were answered."""
    settings_acknowledged: int = 0

    @property
    def outcome(self) -> str:
        """`ignored`, `stream CODE`, `connection CODE` or `closed`."""
        if self.goaway:
            return f"connection {ErrorCode(self.goaway).name}"
        if self.closed:
            return "closed"
        for code in self.resets.values():
            return f"stream {ErrorCode(code).name}"
        return "ignored"


class Peer:
    """A client that sends frames as they are given to it."""

    def __init__(self, served: Served) -> None:
        self.socket = socket.create_connection(("127.0.0.1", served.port), timeout=30)
        self.seen = Seen()
        self._held = b""
        self._probes = 0

    def send(self, data: bytes) -> Seen:
        """Send frames, and have it said what came of them: that has come when so many pings are answered."""
        for piece in (data, *(frame(PING, payload=b"probe %2d" % number) for number in self._next_probes())):
            try:
                self.socket.sendall(piece)
            except ConnectionError:
                self.seen.closed = True
                break
            if piece is not data:
                self._read_until(piece[9:])
        return self.seen

    def _next_probes(self) -> Iterator[int]:
        for _ in range(PROBES):
            self._probes += 1
            yield self._probes

    def _read_until(self, probe: bytes) -> None:
        while probe not in self.seen.acknowledged and not self.seen.closed:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError:
                data = b""
            self.seen.closed = not data
            self._held += data
            self._take()

    def _take(self) -> None:
        while len(self._held) >= 9 and len(self._held) >= 9 + (size := int.from_bytes(self._held[:3], "big")):
            kind, flags = self._held[3], self._held[4]
            stream_id = int.from_bytes(self._held[5:9], "big")
            payload, self._held = self._held[9 : 9 + size], self._held[9 + size :]
            if kind == RST_STREAM and any(payload):
                self.seen.resets[stream_id] = int.from_bytes(payload, "big")
            elif kind == GOAWAY:
                self.seen.goaway = int.from_bytes(payload[4:8], "big")
            elif kind == DATA:
                self.seen.data.setdefault(stream_id, []).append(payload)
            elif kind == PING and flags & ACK:
                self.seen.acknowledged.append(payload)
            elif kind == SETTINGS and flags & ACK:
                self.seen.settings_acknowledged += 1


@pytest.fixture
def connected(serve: Serve) -> Iterator[Callable[[], Peer]]:
    """`connected()`: another client of a server that echoes, after the connection preface."""
    served = serve(echo, max_concurrent_streams=MOST_STREAMS, min_ping_interval_s=0)
    peers: list[Peer] = []

    def connect() -> Peer:
        peers.append(Peer(served))
        peers[-1].send(PREFACE + settings() + frame(SETTINGS, ACK))
        return peers[-1]

    yield connect
    for one in peers:
        one.socket.close()


@pytest.fixture
def peer(connected: Callable[[], Peer]) -> Peer:
    """One client."""
    return connected()


def connection(*codes: str) -> set[str]:
    """An error of the connection; which is closed, and is said to be unless nothing can be sent any more."""
    return {"closed", *(f"connection {code}" for code in codes)}


def stream(*codes: str) -> set[str]:
    """An error of a stream."""
    return {f"stream {code}" for code in codes} | {f"connection {code}" for code in codes}


IGNORED = {"ignored"}
PROTOCOL, CLOSED, SIZE = connection("PROTOCOL_ERROR"), connection("STREAM_CLOSED"), connection("FRAME_SIZE_ERROR")
FLOW, HPACK = connection("FLOW_CONTROL_ERROR"), connection("COMPRESSION_ERROR")
MALFORMED = stream("PROTOCOL_ERROR")
OPEN = request()
HALF_CLOSED = request(flags=END_HEADERS | END_STREAM)
RESET = request() + frame(RST_STREAM, 0, 1, error(ErrorCode.CANCEL))
ENDED = whole()

CASES: dict[str, tuple[bytes, set[str]]] = {
    # RFC 9113, section 4: frames
    "4.1 a frame of unknown type": (frame(0x16, payload=bytes(8)), IGNORED),
    "4.1 flags that are not defined": (frame(PING, 0x16, payload=b"whatever"), IGNORED),
    "4.1 the reserved bit": (frame(PING, 0, 1 << 31, b"whatever"), IGNORED),
    "4.2 DATA of 2^14 bytes": (OPEN + frame(DATA, 0, 1, bytes(1 << 14)), IGNORED),
    "4.2 DATA that is too large": (OPEN + frame(DATA, 0, 1, bytes((1 << 20) + 1)), SIZE),
    "4.2 HEADERS that are too large": (frame(HEADERS, END_HEADERS, 1, bytes((1 << 20) + 1)), SIZE),
    "4.3 a field block that is none": (frame(HEADERS, END_HEADERS, 1, b"\xff" * 8), HPACK),
    "4.3 PRIORITY within a field block": (request(flags=0) + frame(PRIORITY, 0, 1, bytes(4) + b"\1"), PROTOCOL),
    "4.3 another stream within a field block": (request(flags=0) + request(3), PROTOCOL),
    # section 5: streams
    "5.1 DATA on an idle stream": (frame(DATA, END_STREAM, 1, b"x"), PROTOCOL),
    "5.1 RST_STREAM on an idle stream": (frame(RST_STREAM, 0, 1, error(8)), PROTOCOL),
    "5.1 WINDOW_UPDATE on an idle stream": (increment(1, 100), PROTOCOL),
    "5.1 CONTINUATION on an idle stream": (frame(CONTINUATION, END_HEADERS, 1, block()), PROTOCOL),
    "5.1 DATA on a half closed stream": (
        HALF_CLOSED + frame(DATA, END_STREAM, 1, b"x"),
        stream("STREAM_CLOSED") | CLOSED,
    ),
    "5.1 HEADERS on a half closed stream": (HALF_CLOSED + HALF_CLOSED, stream("STREAM_CLOSED", "PROTOCOL_ERROR")),
    "5.1 CONTINUATION on a half closed stream": (HALF_CLOSED + frame(CONTINUATION, END_HEADERS, 1, block()), PROTOCOL),
    "5.1 DATA after RST_STREAM": (RESET + frame(DATA, END_STREAM, 1, b"x"), stream("STREAM_CLOSED") | IGNORED),
    "5.1 HEADERS after RST_STREAM": (RESET + HALF_CLOSED, stream("STREAM_CLOSED", "PROTOCOL_ERROR") | IGNORED),
    "5.1 CONTINUATION after RST_STREAM": (RESET + frame(CONTINUATION, END_HEADERS, 1, block()), PROTOCOL),
    "5.1 DATA after END_STREAM": (ENDED + frame(DATA, END_STREAM, 1, b"x"), CLOSED | IGNORED),
    "5.1 HEADERS after END_STREAM": (ENDED + HALF_CLOSED, CLOSED | PROTOCOL),
    "5.1 PRIORITY after END_STREAM": (ENDED + frame(PRIORITY, 0, 1, bytes(4) + b"\1"), IGNORED),
    "5.1 WINDOW_UPDATE after END_STREAM": (ENDED + increment(1, 100), IGNORED),
    "5.1 RST_STREAM after END_STREAM": (ENDED + frame(RST_STREAM, 0, 1, error(8)), IGNORED),
    "5.1.1 a stream of even number": (request(2), PROTOCOL),
    # libnghttp2 takes it for one that was closed, and ignores it: it does not remember which those were.
    "5.1.1 a stream of smaller number": (request(5) + request(3), PROTOCOL | IGNORED),
    "5.1.2 too many streams": (
        b"".join(request(2 * number + 1) for number in range(MOST_STREAMS + 1)),
        stream("PROTOCOL_ERROR", "REFUSED_STREAM"),
    ),
    "5.5 an extension's frame": (OPEN + frame(0xFF, 0xFF, 1, b"what?"), IGNORED),
    "5.5 an extension's frame within a field block": (request(flags=0) + frame(0xFF, 0, 1, b"what?"), PROTOCOL),
    # section 6: frames of each type
    "6.1 DATA on stream 0": (frame(DATA, END_STREAM, 0, b"x"), PROTOCOL),
    "6.1 DATA with more padding than payload": (OPEN + frame(DATA, PADDED | END_STREAM, 1, b"\x17test"), PROTOCOL),
    "6.1 DATA with padding": (OPEN + frame(DATA, PADDED | END_STREAM, 1, b"\4" + MESSAGE + bytes(4)), IGNORED),
    "6.2 HEADERS on stream 0": (request(0), PROTOCOL),
    "6.2 HEADERS with more padding than payload": (
        frame(HEADERS, PADDED | END_HEADERS | END_STREAM, 1, b"\xff" + block()[:50]),
        PROTOCOL,
    ),
    "6.2 HEADERS with padding and priority": (
        frame(HEADERS, PADDED | PRIORITIZED | END_HEADERS, 1, b"\4" + bytes(4) + b"\1" + block() + bytes(4)),
        IGNORED,
    ),
    # libnghttp2 looks at no PRIORITY any more, which RFC 9113 takes out of use.
    "6.3 PRIORITY on stream 0": (frame(PRIORITY, 0, 0, bytes(4) + b"\1"), PROTOCOL | IGNORED),
    "6.3 PRIORITY of another size": (OPEN + frame(PRIORITY, 0, 1, bytes(4)), stream("FRAME_SIZE_ERROR")),
    "6.4 RST_STREAM on stream 0": (frame(RST_STREAM, 0, 0, error(8)), PROTOCOL),
    "6.4 RST_STREAM of another size": (OPEN + frame(RST_STREAM, 0, 1, bytes(3)), SIZE),
    "6.5 SETTINGS that acknowledge and say something": (frame(SETTINGS, ACK, 0, b"\0"), SIZE),
    "6.5 SETTINGS on a stream": (frame(SETTINGS, 0, 1, b"\0\3\0\0\0\x64"), PROTOCOL),
    "6.5 SETTINGS of another size": (frame(SETTINGS, 0, 0, bytes(3)), SIZE),
    "6.5.2 ENABLE_PUSH that is neither": (settings((2, 2)), PROTOCOL),
    "6.5.2 INITIAL_WINDOW_SIZE above the largest": (settings((4, 1 << 31)), FLOW),
    "6.5.2 MAX_FRAME_SIZE below the smallest": (settings((5, (1 << 14) - 1)), PROTOCOL),
    "6.5.2 MAX_FRAME_SIZE above the largest": (settings((5, 1 << 24)), PROTOCOL),
    "6.5.2 an unknown setting": (settings((0xFF, 1)), IGNORED),
    "6.6 PUSH_PROMISE of a client": (OPEN + frame(PUSH_PROMISE, END_HEADERS, 1, error(2) + block()), PROTOCOL),
    "6.7 PING that acknowledges nothing": (frame(PING, ACK, 0, b"whatever"), IGNORED),
    "6.7 PING on a stream": (frame(PING, 0, 1, b"whatever"), PROTOCOL),
    "6.7 PING of another size": (frame(PING, 0, 0, bytes(6)), SIZE),
    "6.8 GOAWAY on a stream": (frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL),
    "6.9 WINDOW_UPDATE of nothing": (increment(0, 0), PROTOCOL),
    "6.9 WINDOW_UPDATE of nothing on a stream": (OPEN + increment(1, 0), MALFORMED),
    "6.9 WINDOW_UPDATE of another size": (frame(WINDOW_UPDATE, 0, 0, bytes(3)), SIZE),
    "6.9.1 a connection's window above the largest": (increment(0, (1 << 31) - 1) * 2, FLOW),
    "6.9.1 a stream's window above the largest": (OPEN + increment(1, (1 << 31) - 1) * 2, stream("FLOW_CONTROL_ERROR")),
    "6.10 CONTINUATION, several": (
        request(1, METHOD, SCHEME, flags=0)
        + frame(CONTINUATION, 0, 1, block(PATH, AUTHORITY))
        + frame(CONTINUATION, END_HEADERS, 1, block(TYPE)),
        IGNORED,
    ),
    "6.10 CONTINUATION after the end of a field block": (OPEN + frame(CONTINUATION, END_HEADERS, 1, block()), PROTOCOL),
    "6.10 CONTINUATION on stream 0": (request(flags=0) + frame(CONTINUATION, END_HEADERS, 0, block()), PROTOCOL),
    "6.10 CONTINUATION after DATA": (
        OPEN + frame(DATA, 0, 1, b"x") + frame(CONTINUATION, END_HEADERS, 1, block()),
        PROTOCOL,
    ),
    "6.10 DATA within a field block": (request(flags=0) + frame(DATA, 0, 1, b"x"), PROTOCOL),
    # section 7: error codes
    "7 RST_STREAM with an unknown code": (OPEN + frame(RST_STREAM, 0, 1, error(0xFF)), IGNORED),
    # section 8: HTTP in HTTP/2
    "8.1 a second HEADERS without END_STREAM": (OPEN + request(1, (b"x", b"y")), MALFORMED),
    "8.1 trailers": (OPEN + frame(DATA, 0, 1, MESSAGE) + request(1, (b"x", b"y"), flags=5), IGNORED),
    "8.2.1 a name in upper case": (whole(1, *CALL, (b"X-TEST", b"ok")), MALFORMED),
    "8.2.1 a line feed in a value": (whole(1, *CALL, (b"x-test", b"o\nk")), MALFORMED),
    "8.2.1 a space in a name": (whole(1, *CALL, (b"x test", b"ok")), MALFORMED),
    "8.2.2 connection": (whole(1, *CALL, (b"connection", b"keep-alive")), MALFORMED),
    "8.2.2 te other than trailers": (whole(1, *CALL, (b"te", b"trailers, deflate")), MALFORMED),
    "8.2.2 te: trailers": (whole(1, *CALL, (b"te", b"trailers")), IGNORED),
    "8.3 an unknown pseudo-header": (whole(1, (b":test", b"ok"), *CALL), MALFORMED),
    "8.3 a pseudo-header of responses": (whole(1, (b":status", b"200"), *CALL), MALFORMED),
    "8.3 a pseudo-header among trailers": (OPEN + request(1, METHOD, flags=END_HEADERS | END_STREAM), MALFORMED),
    "8.3 a pseudo-header after others": (whole(1, METHOD, SCHEME, AUTHORITY, TYPE, PATH), MALFORMED),
    "8.3.1 an empty path": (whole(1, METHOD, SCHEME, (b":path", b""), AUTHORITY, TYPE), MALFORMED),
    "8.3.1 no method": (whole(1, SCHEME, PATH, AUTHORITY, TYPE), MALFORMED),
    "8.3.1 no scheme": (whole(1, METHOD, PATH, AUTHORITY, TYPE), MALFORMED),
    "8.3.1 no path": (whole(1, METHOD, SCHEME, AUTHORITY, TYPE), MALFORMED),
    "8.3.1 two methods": (whole(1, METHOD, METHOD, SCHEME, PATH, AUTHORITY, TYPE), MALFORMED),
    "8.3.1 two schemes": (whole(1, METHOD, SCHEME, SCHEME, PATH, AUTHORITY, TYPE), MALFORMED),
    "8.3.1 two paths": (whole(1, METHOD, SCHEME, PATH, PATH, AUTHORITY, TYPE), MALFORMED),
    "8.1.1 content-length of more than was sent": (whole(1, *CALL, (b"content-length", b"11")), MALFORMED),
    "8.1.1 content-length of less than was sent": (whole(1, *CALL, (b"content-length", b"1")), MALFORMED),
    "8.1.1 content-length of what was sent": (whole(1, *CALL, (b"content-length", b"10")), IGNORED),
    # RFC 7541
    "HPACK 2.3.3 an index beyond the table": (frame(HEADERS, END_HEADERS, 1, block() + b"\xc6"), HPACK),
    "HPACK 4.2 a table's size after fields": (frame(HEADERS, END_HEADERS, 1, block() + b"\x21"), HPACK),
    "HPACK 5.2 padding of more than 7 bits": (
        frame(HEADERS, END_HEADERS, 1, block() + b"\0\x85\xf2\xb2\x4a\x84\xff\x84\x49\x50\x9f\xff"),
        HPACK,
    ),
    "HPACK 5.2 padding with zeros": (
        frame(HEADERS, END_HEADERS, 1, block() + b"\0\x85\xf2\xb2\x4a\x84\xff\x83\x49\x50\x90"),
        HPACK,
    ),
    "HPACK 5.2 the end of a string within it": (
        frame(HEADERS, END_HEADERS, 1, block() + b"\0\x85\xf2\xb2\x4a\x84\xff\x88\xff\xff\xff\xff\xfa\x92\xa8\x49"),
        HPACK,
    ),
    "HPACK 6.1 index 0": (frame(HEADERS, END_HEADERS, 1, block() + b"\x80"), HPACK),
    "HPACK 6.3 a table above the largest": (frame(HEADERS, END_HEADERS, 1, b"\x3f\xe1\x7f" + block()), HPACK),
    "HPACK an integer that never ends": (frame(HEADERS, END_HEADERS, 1, b"\x3f" + b"\xff" * 20), HPACK),
    "HPACK a string that ends too early": (frame(HEADERS, END_HEADERS, 1, block() + b"\0\1a\x7e"), HPACK),
}


def test_frames_have_the_outcome_that_the_rfcs_ask_for(connected: Callable[[], Peer]) -> None:
    outcomes = {case: connected().send(frames).outcome for case, (frames, _) in CASES.items()}
    assert {case: outcome for case, outcome in outcomes.items() if outcome not in CASES[case][1]} == {}


def _answer(peer: Peer, stream_id: int = 1) -> bytes:
    return b"".join(peer.seen.data.get(stream_id, ()))


def test_3_4_what_is_no_preface_is_no_connection(serve: Serve) -> None:
    one = Peer(serve(echo))
    assert one.send(b"INVALID CONNECTION PREFACE\r\n\r\n").outcome in PROTOCOL
    one.socket.close()


def test_3_4_the_preface_ends_with_settings(serve: Serve) -> None:
    one = Peer(serve(echo))
    assert one.send(PREFACE + frame(PING, payload=b"too soon")).outcome in PROTOCOL
    one.socket.close()


def test_5_4_1_the_connection_ends_after_goaway(peer: Peer) -> None:
    peer.send(frame(DATA, END_STREAM, 0, b"x"))
    while not peer.seen.closed:
        peer.send(b"")
    assert peer.seen.goaway == ErrorCode.PROTOCOL_ERROR


def test_5_4_2_an_error_of_a_stream_leaves_the_others(peer: Peer) -> None:
    peer.send(whole(1, *CALL, (b"X-TEST", b"ok")) + whole(3))
    assert peer.seen.resets == {1: ErrorCode.PROTOCOL_ERROR}
    assert _answer(peer, 3) == MESSAGE


def test_6_5_3_settings_are_acknowledged_and_taken_in_their_order(peer: Peer) -> None:
    before = peer.seen.settings_acknowledged
    peer.send(settings((4, 100), (4, 1)) + whole())
    assert peer.seen.settings_acknowledged == before + 1
    assert peer.seen.data[1] == [MESSAGE[:1]]


def test_6_7_pings_are_answered_as_they_were(peer: Peer) -> None:
    assert b"whatever" in peer.send(frame(PING, payload=b"whatever")).acknowledged


def test_6_8_goaway_of_a_client_lets_its_calls_end(peer: Peer) -> None:
    peer.send(OPEN)
    peer.send(frame(GOAWAY, payload=bytes(8)) + frame(DATA, END_STREAM, 1, MESSAGE))
    assert _answer(peer) == MESSAGE


@pytest.mark.parametrize("on", [0, 1], ids=["connection", "stream"])
def test_6_9_1_no_more_is_sent_than_a_window_takes(peer: Peer, on: int) -> None:
    peer.send(settings((4, 3 if on else (1 << 31) - 1)))
    size = 70_000 if not on else 5
    message = b"\0" + size.to_bytes(4, "big") + bytes(size)
    pieces = [message[start : start + 16_000] for start in range(0, len(message), 16_000)]
    peer.send(OPEN + b"".join(frame(DATA, 0, 1, piece) for piece in pieces) + frame(DATA, END_STREAM, 1))
    assert len(_answer(peer)) == (3 if on else 65_535)
    peer.send(increment(on, 2))
    assert len(_answer(peer)) == (5 if on else 65_537)
    peer.send(increment(on, 100_000))
    assert _answer(peer) == message


def test_6_9_2_a_window_that_changes_is_followed_below_zero_too(peer: Peer) -> None:
    peer.send(settings((4, 3)) + whole())
    assert _answer(peer) == MESSAGE[:3]
    peer.send(settings((4, 2)))  # the stream's window is -1 now
    peer.send(increment(1, 1))  # and 0
    assert _answer(peer) == MESSAGE[:3]
    peer.send(increment(1, 1))
    assert _answer(peer) == MESSAGE[:4]
    peer.send(settings((4, 100)))
    assert _answer(peer) == MESSAGE
