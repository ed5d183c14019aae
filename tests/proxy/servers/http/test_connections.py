"""What happens on the wire: clients that leave, messages that could be read in two ways, limits, answers in pieces."""

import gzip
import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.proxy.servers.http.by_hand import ECHO, NOT_FOUND, PLAIN, Never, Upstream, connect, exchange, post, read_all
from tidegate_proxy.servers.http import HttpLimits
from tidegate_proxy.tritons.embedded import EmbeddedTriton

GET = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("at_once", "later"),
    [(b"", []), (GET, []), (b"", [GET]), (GET[:-1], []), (b"", [GET, GET, GET])],
    ids=["alone", "one behind it", "one later", "a part of one behind it", "three later"],
)
def test_a_client_that_leaves_cancels_its_inference(
    start_http_server: Callable[..., Any], caplog: Any, at_once: bytes, later: list[bytes]
) -> None:
    """Whatever it sent behind the inference: nothing of that has begun."""
    scheduling = Never()
    http_server = start_http_server(["http://127.0.0.1:1"], scheduling, {"echo": ECHO}.get)
    with connect(http_server) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(post(f"Content-Length: {len(PLAIN)}", close=False) + at_once)
        assert scheduling.asked.wait(120)
        for request in later:
            connection.sendall(request)
        assert not scheduling.cancelled.is_set()
    assert scheduling.cancelled.wait(120)
    assert "Exception" not in caplog.text
    assert "without completing" not in caplog.text


def test_a_client_that_leaves_ends_the_call_to_triton(
    start_http_server: Callable[..., Any], start_upstream: Callable[[bytes], Upstream], caplog: Any
) -> None:
    upstream = start_upstream(b"")
    http_server = start_http_server([upstream.http_url], None, {}.get)
    with connect(http_server) as connection:
        connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert upstream.asked.wait(120)
        assert not upstream.left.is_set()
    assert upstream.left.wait(120)
    assert "Exception" not in caplog.text


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n", id="answered here"),
        pytest.param(b"GET /v2/models/echo HTTP/1.0\r\n\r\n", id="passed on"),
        pytest.param(post(f"Content-Length: {len(PLAIN)}"), id="scheduled"),
        pytest.param(2 * post(f"Content-Length: {len(PLAIN)}", close=False), id="two scheduled"),
        pytest.param(post(f"Content-Length: {len(PLAIN)}", close=False) + GET[:20], id="scheduled, a part of a head"),
        pytest.param(
            post(f"Content-Length: {len(PLAIN)}", close=False) + post("Content-Length: 9", body=b"part"),
            id="scheduled, a part of a body",
        ),
    ],
)
def test_a_client_that_shuts_down_its_side_is_answered(http_server: Any, request_: bytes) -> None:
    """As `printf ... | nc` does. The connection ends behind the answer."""
    with connect(http_server) as connection:
        connection.sendall(request_)
        connection.shutdown(socket.SHUT_WR)
        received = read_all(connection)
    assert received.count(b"HTTP/1.") == received.count(b" 200 OK") == max(1, request_.count(PLAIN))


def test_a_client_that_shuts_down_its_side_is_awaited_for_as_long_as_it_takes(
    http_server: Any, held_back: Path
) -> None:
    """The bytes that find out whether it is there are a part of the answer, before its head and between its chunks."""
    held_back.unlink(missing_ok=True)
    body = b'{"X":"hello"}'
    request = post(f"Content-Length: {len(body)}", body=body, path="/v2/models/streamer/generate_stream")
    with connect(http_server) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        received = connection.recv(1)
        while not received.endswith(b"000"):  # the first event is there, the second one is held back
            received += connection.recv(1 << 16)
        held_back.touch()
        received += read_all(connection)
    head, _, chunks = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert chunks.endswith(b"\r\n0\r\n\r\n")
    assert chunks.count(b'"Y":"hello"') == 2
    assert all(int(size, 16) for size in re.findall(rb"(?m)^([0-9a-f]+)\r\ndata", chunks))


def test_half_a_request_is_not_awaited(http_server: Any) -> None:
    with connect(http_server) as connection:
        connection.sendall(post(f"Content-Length: {len(PLAIN)}")[:-1])
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b""


def test_a_client_that_leaves_within_an_answer_ends_the_call_to_triton(
    start_http_server: Callable[..., Any], start_upstream: Callable[[bytes], Upstream]
) -> None:
    upstream = start_upstream(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ndata\r\n")
    http_server = start_http_server([upstream.http_url], None, {}.get)
    with connect(http_server) as connection:
        connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b""
        while b"data" not in received:
            piece = connection.recv(1 << 16)
            assert piece, f"it ended before the data: {received!r}"
            received += piece
    assert upstream.left.wait(120)


def test_chunks_stay_as_a_triton_cut_them(
    start_http_server: Callable[..., Any], start_upstream: Callable[[bytes], Upstream]
) -> None:
    """Simple clients take each of them for an event."""
    chunks = b"4\r\none\n\r\n4\r\ntwo\n\r\n6\r\nthree\n\r\n0\r\n\r\n"
    upstream = start_upstream(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
    http_server = start_http_server([upstream.http_url], None, {}.get)
    received = exchange(http_server, b"GET /v2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert received.partition(b"\r\n\r\n")[2] == chunks


def test_an_answer_that_breaks_off_is_not_made_whole(
    start_http_server: Callable[..., Any], start_upstream: Callable[[bytes], Upstream]
) -> None:
    class Breaking(Upstream):
        def _serve_one(self, connection: socket.socket) -> None:
            connection.recv(1 << 16)
            connection.sendall(self._answer)
            connection.close()

    upstream = Breaking(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345")
    try:
        http_server = start_http_server([upstream.http_url], None, {}.get)
        received = exchange(http_server, b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
    finally:
        upstream.stop()
    assert received.endswith(b"\r\n\r\n12345")
    assert b"content-length: 10" in received


def test_events_are_not_held_back(http_server: Any, held_back: Path) -> None:
    held_back.unlink(missing_ok=True)
    body = b'{"X":"hello"}'
    with connect(http_server) as connection:
        connection.sendall(post(f"Content-Length: {len(body)}", body=body, path="/v2/models/streamer/generate_stream"))
        received = b""
        while b'"Y":"hello"' not in received:
            piece = connection.recv(1 << 16)
            assert piece, f"it ended before the first event: {received!r}"
            received += piece
        assert received.count(b"data: ") == 1
        held_back.touch()
        received += read_all(connection)
    assert received.count(b"data: ") == 2


@pytest.mark.parametrize("size", [10, 3 << 20], ids=["small", "large"])
def test_chunked_bodies_arrive_whole(triton: EmbeddedTriton, http_server: Any, size: int) -> None:
    padded = PLAIN[:-1] + b" " * size + b"}"
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(piece), piece)
        for start in range(0, len(padded), 70_001)
        if (piece := padded[start : start + 70_001])
    )
    for model in ("echo", "flat"):  # scheduled, forwarded
        body = chunks.replace(b"[1,1]", b"[ 1 ]") if model == "flat" else chunks
        request = post("Transfer-Encoding: chunked", body=body + b"0\r\n\r\n", path=f"/v2/models/{model}/infer")
        direct, through = exchange(triton, request), exchange(http_server, request)
        assert through.partition(b"\r\n\r\n")[2] == direct.partition(b"\r\n\r\n")[2]
        assert through.startswith(b"HTTP/1.1 200 OK\r\n")


def test_blanks_around_a_length_are_no_part_of_it(http_server: Any) -> None:
    for path in ("/v2/models/echo/infer", "/v2/models/nope/infer"):
        received = exchange(http_server, post(f"Content-Length:  {len(PLAIN)} \t", path=path))
        assert received.startswith(b"HTTP/1.1 200" if "echo" in path else b"HTTP/1.1 404")


def test_clients_that_wait_for_the_go_ahead(http_server: Any) -> None:
    for path in ("/v2/models/echo/infer", "/v2/models/nope/infer"):
        with connect(http_server) as connection:
            connection.sendall(post("Expect: 100-continue", f"Content-Length: {len(PLAIN)}", body=b"", path=path))
            assert connection.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(PLAIN)
            assert read_all(connection).startswith(b"HTTP/1.1 200" if "echo" in path else b"HTTP/1.1 404")


def test_clients_of_the_version_before_may_keep_their_connections(
    triton: EmbeddedTriton, http_server: Any, held_back: Path
) -> None:
    """As ApacheBench and nginx ask. They are answered in their version, as by Triton."""
    held_back.touch()
    kept = ("Connection: Keep-Alive", f"Content-Length: {len(PLAIN)}")
    version = (b"HTTP/1.1", b"HTTP/1.0")
    first = post(*kept, close=False).replace(*version)
    last = post(kept[1], close=False).replace(*version)
    events = post("Content-Length: 10", body=b'{"X":"hi"}', path="/v2/models/streamer/generate_stream", close=False)
    for requests in ((first, last), (first, first, events.replace(*version))):
        through = exchange(http_server, *requests)
        direct = exchange(triton, *requests)
        assert re.findall(rb"HTTP/\S+ \d+", through) == re.findall(rb"HTTP/\S+ \d+", direct)
        assert through.lower().count(b"connection: keep-alive") == len(requests) - 1
        assert through.rpartition(b"\r\n\r\n")[2] == direct.rpartition(b"\r\n\r\n")[2]


def test_connections_serve_one_request_after_the_other(http_server: Any) -> None:
    lengthy = f"Content-Length: {len(PLAIN)}"
    received = exchange(
        http_server,
        post(lengthy, close=False),
        post(lengthy, close=False, path="/v2/models/nope/infer"),
        b"HEAD /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n",
        post(lengthy),
    )
    assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"200", b"404", b"405", b"200"]


def test_clients_that_offer_http_2_go_on_as_they_came(http_server: Any) -> None:
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA")
    with connect(http_server) as connection:
        for _ in range(2):
            connection.sendall(post(f"Content-Length: {len(PLAIN)}", *offer, close=False))
            received = b""
            while not received.endswith(b"}]}"):
                received += connection.recv(1 << 16)
            assert received.endswith(b'"data":[1.0]}]}')
        connection.sendall(post(f"Content-Length: {len(PLAIN)}"))
        assert read_all(connection).startswith(b"HTTP/1.1 200")


SMUGGLED = b"GET /v2/repository/index HTTP/1.1\r\nHost: x\r\n\r\n"
LENGTH = f"Content-Length: {len(PLAIN)}"
REPEATED = {
    "twice": post(LENGTH, LENGTH),
    "three times": post(LENGTH, "X: y", LENGTH, "Y: z", LENGTH),
    "in other letters": post(LENGTH, LENGTH.swapcase()),
}


@pytest.mark.parametrize("model", ["echo", "flat"], ids=["scheduled", "forwarded"])
@pytest.mark.parametrize("request_", REPEATED.values(), ids=REPEATED)
def test_equal_lengths_are_one(triton: EmbeddedTriton, http_server: Any, request_: bytes, model: str) -> None:
    if model == "flat":
        request_ = request_.replace(b"echo", b"flat").replace(b"[1,1]", b"[ 1 ]")
    received = exchange(http_server, request_)
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert received.rpartition(b"\r\n\r\n")[2] == exchange(triton, request_).rpartition(b"\r\n\r\n")[2]


def test_equal_lengths_are_one_however_the_head_comes(http_server: Any) -> None:
    """Line by line, as small clients write, on one connection after the other request."""
    with connect(http_server) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for close in (False, True):
            head, _, body = post(LENGTH, "X: y", LENGTH, close=close).partition(b"\r\n\r\n")
            for line in head.split(b"\r\n"):
                connection.sendall(line + b"\r\n")
            connection.sendall(b"\r\n" + body)
            received = b""
            while not received.endswith(b"}]}"):
                received += connection.recv(1 << 16)
            assert received.startswith(b"HTTP/1.1 200 OK")
        assert read_all(connection) == b""


TWO_WAYS = {
    "two lengths that are written differently": post("Content-Length: 0", "Content-Length: 00", body=SMUGGLED),
    "a third length": post("Content-Length: 0", "Content-Length: 0", "Content-Length: 5", body=b"12345" + SMUGGLED),
    "many equal lengths": post(*["Content-Length: 0"] * 100, body=SMUGGLED),
    "list of equal lengths": post(f"Content-Length: {len(SMUGGLED)}, {len(SMUGGLED)}", body=SMUGGLED),
    "two lengths": post("Content-Length: 0", f"Content-Length: {len(SMUGGLED)}", body=SMUGGLED),
    "list of lengths": post(f"Content-Length: 0, {len(SMUGGLED)}", body=SMUGGLED),
    "signed length": post("Content-Length: +5", body=b"12345" + SMUGGLED),
    "negative length": post("Content-Length: -1", body=SMUGGLED),
    "hexadecimal length": post("Content-Length: 0x5", body=b"12345" + SMUGGLED),
    "identity": post("Transfer-Encoding: identity", body=SMUGGLED),
    "chunked, then something": post("Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n" + SMUGGLED),
    "blank before the colon": post("Transfer-Encoding : chunked", body=b"0\r\n\r\n" + SMUGGLED),
    "folded header": post("X: a\r\n b", body=SMUGGLED),
    "bare line feeds": post("X: a", body=SMUGGLED).replace(b"\r\n", b"\n"),
    "NUL in a header": post("X: a\0b", body=SMUGGLED),
    "return in a header": post("X: a\rContent-Length: 5", body=b"12345" + SMUGGLED),
    "chunk size beyond 64 bits": post(
        "Transfer-Encoding: chunked", body=b"10000000000000005\r\n12345\r\n0\r\n\r\n" + SMUGGLED
    ),
    "chunk size with a sign": post("Transfer-Encoding: chunked", body=b"+5\r\n12345\r\n0\r\n\r\n" + SMUGGLED),
    "blank in the path": b"GET /v2/health/live HTTP/1.1 /v2 HTTP/1.1\r\n\r\n" + SMUGGLED,
    "control character in the path": b"GET /v2/health/\x01 HTTP/1.1\r\n\r\n" + SMUGGLED,
    "no path": b"GET v2/health/live HTTP/1.1\r\n\r\n" + SMUGGLED,
    "a tunnel": b"CONNECT elsewhere:80 HTTP/1.1\r\n\r\n" + SMUGGLED,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),
    "no HTTP": b"hello\r\n\r\n",
}


@pytest.mark.parametrize("request_", TWO_WAYS.values(), ids=TWO_WAYS)
def test_what_can_be_read_in_two_ways_is_not_read(http_server: Any, request_: bytes) -> None:
    assert exchange(http_server, request_) == b""


@pytest.mark.parametrize("model", ["echo", "flat"], ids=["scheduled", "forwarded"])
@pytest.mark.parametrize("request_", [*TWO_WAYS.values(), REPEATED["twice"]], ids=[*TWO_WAYS, "two equal lengths"])
def test_a_request_that_is_not_read_costs_no_earlier_answer(http_server: Any, request_: bytes, model: str) -> None:
    """And becomes no part of the earlier request."""
    body = PLAIN.replace(b"[1,1]", b"[ 1 ]") if model == "flat" else PLAIN
    first = post(LENGTH, body=body, path=f"/v2/models/{model}/infer", close=False)
    received = exchange(http_server, first + request_ + SMUGGLED)
    assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"200"]
    assert received.endswith(b'"data":[1.0]}]}')


@pytest.mark.parametrize("chunked_first", [True, False])
@pytest.mark.parametrize("model", ["echo", "flat"], ids=["scheduled", "forwarded"])
def test_with_both_lengths_the_chunks_count_and_nothing_follows(
    triton: EmbeddedTriton, http_server: Any, chunked_first: bool, model: str
) -> None:
    body = PLAIN.replace(b"[1,1]", b"[1]") if model == "flat" else PLAIN
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    lengths = ["Content-Length: 5", "Transfer-Encoding: chunked"]
    headers = reversed(lengths) if chunked_first else lengths
    request = post(*headers, body=chunks + SMUGGLED, path=f"/v2/models/{model}/infer", close=False)
    plain = post("Transfer-Encoding: chunked", body=chunks, path=f"/v2/models/{model}/infer")
    received = exchange(http_server, request)
    assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"200"], "one answer, and the connection is closed"
    assert received.partition(b"\r\n\r\n")[2] == exchange(triton, plain).partition(b"\r\n\r\n")[2]


def test_nothing_in_the_path_becomes_a_header_or_another_path(
    start_http_server: Callable[..., Any], start_upstream: Callable[[bytes], Upstream]
) -> None:
    for path in (b"/v2/a;b", b"/v2/x?a=%0d%0ab&c=/../%2F//", b"/v2/caf%C3%A9", b"/v2/a%20X:%20y"):
        upstream = start_upstream(NOT_FOUND)
        http_server = start_http_server([upstream.http_url], None, {}.get)
        exchange(http_server, b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert upstream.received.startswith(b"GET " + path + b" HTTP/1.1\r\n")


def test_headers_reach_triton_but_for_those_of_the_connection(
    start_http_server: Callable[..., Any], start_upstream: Callable[[bytes], Upstream]
) -> None:
    upstream = start_upstream(NOT_FOUND)
    http_server = start_http_server([upstream.http_url], None, {}.get)
    kept = (
        *("traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate: a=b", "x-mine: \u00e9"),
        *("twice: 1", "twice: 2", "accept-encoding: gzip", "triton-key: secret", "user-agent: me"),
    )
    dropped = (
        "Keep-Alive: 5",
        "Connection: keep-alive, X-Hop, Content-Length",
        "X-Hop: 1",
        "TE: trailers",
        "Upgrade: h2c",
    )
    request = post(*kept, *dropped, f"Content-Length: {len(PLAIN)}", path="/v2/models/nope/infer")
    exchange(http_server, request)
    head, _, body = upstream.received.partition(b"\r\n\r\n")
    lines = [line.lower() for line in head.decode().split("\r\n")[1:]]
    assert body == PLAIN
    assert set(lines) == {*kept, "host: x", f"content-length: {len(PLAIN)}"}
    assert lines.index("twice: 1") < lines.index("twice: 2")


def test_large_bodies_are_passed_on_while_they_come(
    start_http_server: Callable[..., Any], start_upstream: Callable[[bytes], Upstream]
) -> None:
    upstream = start_upstream(b"")
    http_server = start_http_server([upstream.http_url], None, {}.get)
    half = bytes(2 << 20)
    with connect(http_server) as connection:
        connection.sendall(post(f"Content-Length: {2 * len(half)}", body=half, path="/v2/models/nope/infer"))
        assert upstream.asked.wait(120)
    assert upstream.left.wait(120)


LIMITS = HttpLimits(body_bytes=1000, head_bytes=10_000)


@pytest.fixture(scope="session")
def narrow(triton: EmbeddedTriton, start_http_server: Callable[..., Any]) -> Any:
    """A http_server with narrow limits."""
    return start_http_server([f"http://{triton.http_address}"], Never(), {"echo": ECHO}.get, limits=LIMITS)


@pytest.mark.parametrize("path", ["/v2/models/echo/infer", "/v2/models/nope/infer"])
def test_announced_bodies_beyond_the_limit_are_not_awaited(narrow: Any, path: str) -> None:
    received = exchange(narrow, post("Content-Length: 1001", body=b"", path=path, close=False))
    assert received.startswith(b"HTTP/1.1 413 ")
    assert received.endswith(b'{"error":"the request\'s body exceeds the maximum of 1000 bytes"}')


@pytest.mark.parametrize("path", ["/v2/models/echo/infer", "/v2/models/nope/infer"])
def test_chunked_bodies_end_at_the_limit(narrow: Any, path: str) -> None:
    chunk = b"64\r\n" + bytes(100) + b"\r\n"
    assert exchange(narrow, post("Transfer-Encoding: chunked", body=11 * chunk, path=path, close=False)).startswith(
        b"HTTP/1.1 413 "
    )


def test_large_forwarded_bodies_end_at_the_limit(
    start_http_server: Callable[..., Any], start_upstream: Callable[[bytes], Upstream]
) -> None:
    upstream = start_upstream(b"")
    http_server = start_http_server([upstream.http_url], None, {}.get, limits=HttpLimits(body_bytes=2 << 20))
    chunk = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
    received = exchange(http_server, post("Transfer-Encoding: chunked", body=3 * chunk, path="/v2/models/nope/infer"))
    assert received.startswith(b"HTTP/1.1 413 ")
    assert upstream.left.wait(120)


def test_what_unpacks_beyond_the_limit_is_not_unpacked(narrow: Any) -> None:
    packed = gzip.compress(bytes(100_000))
    assert len(packed) < 1000
    received = exchange(narrow, post("Content-Encoding: gzip", f"Content-Length: {len(packed)}", body=packed))
    assert received.startswith(b"HTTP/1.1 413 ")


def test_endless_heads_are_cut_off(narrow: Any, http_server: Any) -> None:
    head = b"GET /v2/health/live HTTP/1.1\r\nConnection: close\r\n"
    assert exchange(narrow, head + b"X: " + b"x" * 50_000) == b""
    many = head + b"X: 0123456789\r\n" * 5_000
    assert exchange(narrow, many) == b""
    assert exchange(http_server, many + b"\r\n").startswith(b"HTTP/1.1 200 ")


def test_a_server_that_stops_tells_those_who_wait(start_http_server: Callable[..., Any]) -> None:
    scheduling = Never()
    http_server = start_http_server(["http://127.0.0.1:1"], scheduling, {"echo": ECHO}.get)
    with connect(http_server) as connection:
        connection.sendall(post(f"Content-Length: {len(PLAIN)}"))
        assert scheduling.asked.wait(120)
        http_server.stop()
        received = read_all(connection)
    assert received.startswith(b"HTTP/1.1 503 ")
    assert received.endswith(b'{"error":"Tidegate is shutting down"}')
    assert scheduling.cancelled.is_set()


def test_large_requests_that_are_not_schedulable_arrive_whole(
    start_http_server: Callable[..., Any], start_upstream: Callable[[bytes], Upstream]
) -> None:
    upstream = start_upstream(b"")
    http_server = start_http_server([upstream.http_url], Never(), {"echo": ECHO}.get)
    body = b"{" + bytes(range(256)).translate(None, b"[{") * 20_000
    with connect(http_server) as connection:
        connection.sendall(post(f"Content-Length: {len(body)}", body=body))
        assert upstream.asked.wait(120)
        while not upstream.received.endswith(body):
            assert not upstream.left.wait(0.01)


def test_pipelined_inferences_are_answered_in_order(http_server: Any) -> None:
    requests = []
    for number in range(5):
        body = b'{"id":"%d",' % number + PLAIN[1:]
        requests.append(post(f"Content-Length: {len(body)}", body=body, close=number == 4))
    received = exchange(http_server, b"".join(requests))
    documents = [part.partition(b"}]}")[0] + b"}]}" for part in received.split(b"\r\n\r\n")[1:]]
    assert [json.loads(document)["id"] for document in documents] == [str(number) for number in range(5)]
