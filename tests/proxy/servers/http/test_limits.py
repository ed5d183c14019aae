"""Slow and greedy HTTP clients: limits end what exceeds them, and who asks for health is answered meanwhile."""

import asyncio
import contextlib
import gzip
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.conftest import PATIENCE_S, eventually
from tests.proxy.servers.http.by_hand import NOT_FOUND, exchange
from tidegate_proxy.configuration.settings import CurrentSettings, SettingsHolder
from tidegate_proxy.messages.model_signature import ModelSignature, TensorSpec
from tidegate_proxy.servers.http import HttpLimits
from tidegate_proxy.servers.http.connection import RESERVED_CONNECTIONS
from tidegate_proxy.transport.client_bounds import ClientBounds

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
HALF_A_HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nX-Slow: "
HALF_A_BODY = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf"
WAIT = b"GET /v2/wait HTTP/1.1\r\nHost: x\r\n\r\n"
BIG = b"GET /v2/big HTTP/1.1\r\nHost: x\r\n\r\n"
BIG_BYTES = 64 << 20
SIGNATURE = ModelSignature("echo", {"X": TensorSpec("FP32", (-1,))}, frozenset({"Y"}), 8)
Connect = Callable[..., socket.socket]


class Peer:
    """A client of one http_server; what it opens is closed at the end."""

    def __init__(self, http_server: Any) -> None:
        self.http_server = http_server
        self.bounds: ClientBounds = http_server.bounds
        self._opened: list[socket.socket] = []

    def connect(self, sent: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
        """A connection on which something was sent, from an address of this machine."""
        host, _, port = self.http_server.http_address.rpartition(":")
        connection = socket.create_connection((host, int(port)), timeout=60, source_address=(source, 0))
        self._opened.append(connection)
        connection.sendall(sent)
        return connection

    def status(self, sent: bytes) -> bytes:
        """The status of the answer on a connection of its own; empty where it was closed instead."""
        with contextlib.suppress(ConnectionError):
            return self.connect(sent).recv(1 << 16)[9:12]
        return b""

    def close(self) -> None:
        """End them all."""
        for connection in self._opened:
            connection.close()


@pytest.fixture
def limited(start_http_server: Callable[..., Any]) -> Iterator[Callable[..., Peer]]:
    """`limited(HttpLimits(...), ClientBounds(...))`: a client of a http_server with such limits, before no Triton at
    all."""
    peers: list[Peer] = []

    async def live(_call: object) -> Any:
        return _answer(b"")

    async def big(_call: object) -> Any:
        return _answer(bytes(BIG_BYTES))

    async def wait(_call: object) -> Any:
        await asyncio.Event().wait()

    def start(limits: HttpLimits, bounds: ClientBounds | None = None, **more: Any) -> Peer:
        handlers: dict[tuple[str, str], Callable[[object], Awaitable[Any]]] = {
            ("GET", "/v2/health/live"): live,
            ("GET", "/v2"): big,
            ("GET", "/v2/models/stats"): wait,
        }
        more = {
            "overrides": lambda method, route: handlers.get((method, route.pattern)),
            "scheduling": None,
            "scheduled": {}.get,
        } | more
        http_server = start_http_server(["http://127.0.0.1:1"], limits=limits, bounds=bounds or ClientBounds(), **more)
        peers.append(Peer(http_server))
        return peers[-1]

    yield start
    for peer in peers:
        peer.close()
        peer.http_server.stop()


def _answer(body: bytes) -> Any:
    from tidegate_proxy.servers.http import HttpAnswer

    return HttpAnswer(200, [], body)


def _everything(connection: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(1 << 16):
            received += piece
    return received


@pytest.mark.parametrize(
    ("limits", "sent", "limit", "told"),
    [
        (HttpLimits(head_s=0.3), HALF_A_HEAD, "request_headers_timeout_s", b"408"),
        (HttpLimits(body_s=0.3), HALF_A_BODY, "request_timeout_s", b"408"),
        (HttpLimits(idle_s=0.3), b"", "idle_timeout_s", b""),
        (HttpLimits(idle_s=0.3), LIVE, "idle_timeout_s", b"200"),
    ],
)
def test_what_takes_too_long_ends(
    limited: Callable[..., Peer], limits: HttpLimits, sent: bytes, limit: str, told: bytes
) -> None:
    peer = limited(limits)
    assert _everything(peer.connect(sent))[9:12] == told
    assert peer.bounds.ended == {("http", limit): 1}


@pytest.mark.parametrize("unfinished", [HALF_A_HEAD, HALF_A_BODY], ids=["head", "body"])
def test_a_request_that_takes_too_long_costs_no_earlier_answer(limited: Callable[..., Peer], unfinished: bytes) -> None:
    """Nor is the earlier request told that it timed out."""
    bounds = ClientBounds()

    async def late(_call: object) -> Any:
        while not bounds.ended:
            await asyncio.sleep(0.01)
        return _answer(b"late")

    peer = limited(HttpLimits(head_s=0.3, body_s=0.3), bounds, overrides=lambda _method, _route: late)
    received = _everything(peer.connect(LIVE + unfinished))
    assert received[9:12] == b"200"
    assert received.endswith(b"\r\n\r\nlate")
    assert sum(bounds.ended.values()) == 1


def test_a_connection_with_a_second_request_to_answer_is_not_idle(limited: Callable[..., Peer]) -> None:
    """A connection that is idle from later on marks how long the second answer takes."""
    bounds = ClientBounds()

    async def live(_call: object) -> Any:
        return _answer(b"live")

    async def late(_call: object) -> Any:
        while not bounds.ended:
            await asyncio.sleep(0.01)
        return _answer(b"late")

    handlers = {"/v2": late, "/v2/health/live": live}
    peer = limited(HttpLimits(idle_s=0.3), bounds, overrides=lambda _method, route: handlers[route.pattern])
    connection = peer.connect(LIVE + b"GET /v2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    received = b""
    while not received.endswith(b"live"):
        received += connection.recv(1 << 16)
    peer.connect()
    assert _everything(connection).endswith(b"\r\n\r\nlate")


def test_a_trickle_is_no_progress(limited: Callable[..., Peer]) -> None:
    """Bytes that come one by one do not make a head or a body last for ever."""
    peer = limited(HttpLimits(head_s=0.5, body_s=0.5))
    for begun in (HALF_A_HEAD, HALF_A_BODY):
        connection = peer.connect(begun)
        give_up = time.monotonic() + PATIENCE_S
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < give_up:
                connection.sendall(b"x")
                connection.settimeout(0.02)
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(1 << 16):
                        break
        assert time.monotonic() < give_up
    assert peer.bounds.ended.keys() == {("http", "request_headers_timeout_s"), ("http", "request_timeout_s")}


def test_who_waits_for_tidegate_is_not_hurried(limited: Callable[..., Peer]) -> None:
    peer = limited(HttpLimits(head_s=0.2, body_s=0.2, idle_s=0.2, send_s=0.2))
    waiting = peer.connect(WAIT.replace(b"/v2/wait", b"/v2/models/stats"))
    for _ in range(4):
        peer.connect(HALF_A_HEAD)
        eventually(lambda: len(_open(peer)) == 1, "the slow one to be ended")
    waiting.settimeout(0.01)
    with pytest.raises(TimeoutError):
        waiting.recv(1)


def _open(peer: Peer) -> list[None]:
    return [None] * peer.bounds.connections["http"]


@pytest.mark.parametrize("sent", [HALF_A_HEAD, HALF_A_BODY, b""])
def test_the_slowest_makes_room(limited: Callable[..., Peer], sent: bytes) -> None:
    """Three hundred half-sent requests, three times as many as may be open: health is answered all the while."""
    peer = limited(HttpLimits(connections=100))
    for number in range(300):
        peer.connect(sent)
        if number % 20 == 0:
            assert peer.status(LIVE) == b"200"
    assert peer.status(LIVE) == b"200"
    assert peer.bounds.connections["http"] <= 100
    assert peer.bounds.ended["http", "max_connections"] >= 200


@pytest.mark.parametrize("sent", [HALF_A_HEAD, HALF_A_BODY, b"", LIVE])
def test_a_flood_ends_no_neighbors_connections(limited: Callable[..., Peer], sent: bytes) -> None:
    peer = limited(HttpLimits(connections=40))
    neighbors = [peer.connect(LIVE, "127.0.0.2") for _ in range(5)]
    for neighbor in neighbors:
        assert neighbor.recv(1 << 16)[9:12] == b"200"
    for _ in range(100):
        peer.connect(sent)
    eventually(lambda: peer.bounds.ended["http", "max_connections"] >= 60, "the flood to come")
    for neighbor in neighbors:  # still open
        neighbor.sendall(LIVE)
        assert neighbor.recv(1 << 16)[9:12] == b"200"
    newcomer = peer.connect(LIVE, "127.0.0.3")
    assert newcomer.recv(1 << 16)[9:12] == b"200"


def test_who_has_asked_for_something_stays_longer(limited: Callable[..., Peer]) -> None:
    """Behind a load balancer all come from one address."""
    peer = limited(HttpLimits(connections=40))
    neighbor = peer.connect(LIVE)
    assert neighbor.recv(1 << 16)[9:12] == b"200"
    for _ in range(100):
        peer.connect()
    eventually(lambda: peer.bounds.ended["http", "max_connections"] >= 60, "the flood to come")
    neighbor.sendall(LIVE)
    assert neighbor.recv(1 << 16)[9:12] == b"200"


def test_where_a_flood_waits_for_tidegate_it_makes_no_room_for_itself(limited: Callable[..., Peer]) -> None:
    peer = limited(HttpLimits(connections=40))
    neighbors = [peer.connect(LIVE, "127.0.0.2") for _ in range(5)]
    for neighbor in neighbors:
        assert neighbor.recv(1 << 16)[9:12] == b"200"
    ask = WAIT.replace(b"/v2/wait", b"/v2/models/stats")
    for _ in range(35):
        peer.connect(ask)
    eventually(lambda: peer.bounds.connections["http"] == 40, "them to come")
    assert peer.status(ask) == b"503"
    for neighbor in neighbors:
        neighbor.sendall(LIVE)
        assert neighbor.recv(1 << 16)[9:12] == b"200"


def test_where_no_client_can_make_room_there_is_a_reserve_for_health(limited: Callable[..., Peer]) -> None:
    peer = limited(HttpLimits(connections=20))
    ask = WAIT.replace(b"/v2/wait", b"/v2/models/stats")
    for _ in range(20):
        peer.connect(ask)
    eventually(lambda: peer.bounds.connections["http"] == 20, "them to come")
    assert peer.status(LIVE) == b"200"
    assert peer.status(ask) == b"503"
    eventually(lambda: peer.bounds.connections["http"] <= 21, "the refused one to be closed")
    for _ in range(2 * RESERVED_CONNECTIONS):
        peer.connect(b"")
    eventually(
        lambda: peer.bounds.connections["http"] <= 20 + RESERVED_CONNECTIONS, "what is beyond the reserve to be closed"
    )
    assert peer.status(LIVE) == b"200"


def test_a_reader_that_takes_nothing_is_cut_off(limited: Callable[..., Peer]) -> None:
    peer = limited(HttpLimits(send_s=0.5))
    request = BIG.replace(b"/v2/big", b"/v2")
    peer.connect(request)
    eventually(lambda: peer.bounds.unread_bytes > BIG_BYTES // 2, "the answer to wait")
    eventually(lambda: peer.bounds.connections["http"] == 0, "its connection to end")
    assert peer.bounds.unread_bytes == 0
    assert peer.bounds.ended == {("http", "write_timeout_s"): 1}


def test_a_reader_that_takes_its_time_is_not(limited: Callable[..., Peer]) -> None:
    """Its answer takes many times as long as it may take nothing."""
    peer = limited(HttpLimits(send_s=1.0))
    connection = peer.connect(BIG.replace(b"/v2/big", b"/v2"))
    received, began = 0, time.monotonic()
    while received < BIG_BYTES:
        piece = connection.recv(4 << 20)
        assert piece
        received += len(piece)
        if time.monotonic() - began < 3:
            time.sleep(0.05)  # a slow reader
    assert not peer.bounds.ended
    eventually(lambda: peer.bounds.unread_bytes == 0, "what was taken to be forgotten")


def test_answers_that_clients_do_not_read_are_bounded_in_all(limited: Callable[..., Peer]) -> None:
    peer = limited(HttpLimits(), ClientBounds(SettingsHolder(CurrentSettings(max_response_buffer_bytes=3 * BIG_BYTES))))
    for _ in range(10):
        peer.connect(BIG.replace(b"/v2/big", b"/v2"))
    eventually(lambda: peer.bounds.ended["http", "max_response_buffer_bytes"] >= 7, "those beyond to be cut off")
    assert peer.bounds.unread_bytes <= 3 * BIG_BYTES
    assert peer.status(LIVE) == b"200"


def test_bytes_in_flight_are_bounded(limited: Callable[..., Peer]) -> None:
    """Bodies that are sent halfway hold memory; who comes when too much is held is told so, and others go on."""
    peer = limited(
        HttpLimits(),
        ClientBounds(SettingsHolder(CurrentSettings(max_in_flight_bytes=2_100_000))),
        scheduled={"echo": SIGNATURE}.get,
    )
    half = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + bytes(500_000)
    first, second = peer.connect(half), peer.connect(half)
    eventually(lambda: 1_000_000 <= peer.bounds.in_flight_bytes <= 1_010_000, "both to be read")
    assert peer.status(half) == b"429"
    assert peer.bounds.ended == {("http", "max_bytes_in_flight"): 1}
    assert peer.status(LIVE) == b"200"
    first.close()
    second.close()
    eventually(lambda: peer.bounds.in_flight_bytes == 0, "what they held to be given back")


CHUNKED = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"


@pytest.mark.parametrize(
    ("begun", "piece"),
    [
        (CHUNKED + b"0\r\n", b"trailer: value\r\n" * 500),
        (CHUNKED + b"0\r\ntrailer: ", b"x" * 5000),
        (CHUNKED + b"2;", b"x" * 5000),
        (b"GET /v2 HTTP/1.1\r\nHost: x\r\nX: ", b"x" * 5000),
        (b"GET /v2 HTTP/1.1\r\n", b"X: y\r\n" * 1000),
        (b"GET /", b"x" * 5000),
    ],
    ids=["trailers", "a trailer", "an extension", "a header", "headers", "a target"],
)
def test_what_has_no_end_is_cut_off(begun: bytes, piece: bytes, limited: Callable[..., Peer]) -> None:
    peer = limited(HttpLimits(head_bytes=100_000), scheduled={"m": SIGNATURE}.get)
    connection = peer.connect(begun)
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < 50_000_000:
            connection.sendall(piece)
            sent += len(piece)
    assert sent < 50_000_000
    eventually(lambda: peer.bounds.in_flight_bytes == 0, "what it held to be given back")


def test_trailers_are_no_headers(start_http_server: Callable[..., Any], start_upstream: Callable[[bytes], Any]) -> None:
    upstream = start_upstream(NOT_FOUND)
    http_server = start_http_server([upstream.http_url], None, {}.get)
    trailers = b"0\r\nauthorization: Bearer x\r\nx-late: 1\r\n\r\n"
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert exchange(http_server, head + b"2\r\n{}\r\n" + trailers).startswith(b"HTTP/1.1 404")
    assert b"late" not in upstream.received
    assert b"authorization" not in upstream.received


def test_heads_and_open_requests_count_as_in_flight(limited: Callable[..., Peer]) -> None:
    peer = limited(HttpLimits(), ClientBounds(SettingsHolder(CurrentSettings(max_in_flight_bytes=1 << 20))))
    unfinished = b"GET /v2 HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100_000
    first = peer.connect(unfinished)
    eventually(lambda: peer.bounds.in_flight_bytes >= 100_000, "its head to be counted")
    first.close()
    eventually(lambda: peer.bounds.in_flight_bytes == 0, "it to be given back")
    others = [peer.connect(unfinished) for _ in range(20)]
    eventually(lambda: peer.bounds.ended["http", "max_bytes_in_flight"] > 0, "some to be refused")
    assert peer.bounds.in_flight_bytes <= 1 << 20
    assert peer.status(LIVE) == b"200"
    for connection in others:
        connection.close()
    eventually(lambda: peer.bounds.in_flight_bytes == 0, "all to be given back")
    assert peer.status(b"GET /v2/nope HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") == b"503"
    eventually(lambda: peer.bounds.in_flight_bytes == 0, "a request's cost to be given back")


@pytest.mark.parametrize("model", ["echo", "nope"])
def test_bombs_are_cut_off_while_they_are_inflated(limited: Callable[..., Peer], model: str) -> None:
    """Whether they are for the scheduler or on their way to a Triton."""
    peer = limited(HttpLimits(body_bytes=8 << 20), scheduled={"echo": SIGNATURE}.get)
    bomb = gzip.compress(bytes(1 << 27), compresslevel=6)
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}"
    received = _everything(peer.connect(head.encode() + b"\r\n\r\n" + bomb))
    assert received.startswith(b"HTTP/1.1 413 ")
    assert received.endswith(b'{"error":"the request\'s body exceeds the maximum of 8388608 bytes"}')
    assert peer.bounds.in_flight_bytes == 0


def test_a_client_that_is_refused_while_it_sends_reads_why(limited: Callable[..., Peer]) -> None:
    peer = limited(HttpLimits(body_bytes=1000))
    length = 20 << 20
    connection = peer.connect(
        f"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()
    )
    connection.sendall(bytes(length))
    assert connection.recv(1 << 16).startswith(b"HTTP/1.1 413 ")


def test_an_old_connection_ends_with_its_answer(limited: Callable[..., Peer]) -> None:
    peer = limited(HttpLimits(age_s=0.2))
    connection = peer.connect(LIVE)
    while b"connection: close" not in (answer := connection.recv(1 << 16)):
        assert answer.startswith(b"HTTP/1.1 200 ")
        connection.sendall(LIVE)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert connection.recv(1 << 16) == b""
