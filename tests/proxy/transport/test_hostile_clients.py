"""Clients that write HTTP/2 by hand: what is malformed, too much or too slow ends its call or its connection alone."""

import contextlib
import gzip
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
import pytest
from ngh2.enums import ErrorCode
from ngh2.events import GoAwayReceived

from tests.conftest import eventually
from tests.proxy.transport.conftest import ECHO, LoopThread, RawClient, Serve, Served, echo
from tidegate_proxy.transport import RpcCall
from tidegate_proxy.transport.http2 import server
from tidegate_proxy.transport.http2.connection import CALLS_PER_TURN, Http2Connection
from tidegate_proxy.transport.http2.message import MessageDecompression, prefix
from tidegate_proxy.transport.http2.server import ServerConnection
from tidegate_proxy.transport.http2.server_call import INFLATED_HERE

Connect = Callable[[Served], RawClient]


@pytest.fixture(params=[False, True], ids=["", "frontend"])
def has_frontend(request: pytest.FixtureRequest) -> bool:
    """Whether clients are connected to a frontend."""
    return bool(request.param)


def _hold(call: RpcCall) -> None:
    call.receive(lambda _message: None)


def _others_are_served(served: Served) -> None:
    with grpc.insecure_channel(served.address) as channel:
        assert channel.unary_unary(ECHO)(b"x", timeout=60) == b"x"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(b"grpc-timeout", b"soon")], b"13"),
        ([(b"grpc-encoding", b"br")], b"12"),
    ],
)
def test_calls_that_cannot_be_read_are_told(
    serve: Serve, connect: Connect, headers: list[tuple[bytes, bytes]], status: bytes
) -> None:
    client = connect(served := serve(echo))
    assert client.status(client.begin(headers, end_stream=True))[b"grpc-status"] == status
    _others_are_served(served)


def test_calls_of_one_connection_that_say_other_things_are_told_apart(serve: Serve, connect: Connect) -> None:
    client = connect(serve(lambda call: call.receive(lambda _: call.answer(repr(call.metadata).encode()))))
    for value in (b"1", b"2", b"2", b"1"):
        stream_id = _begun(client, [(b"x-say", value)])
        assert client.status(stream_id)[b"grpc-status"] == b"0"
        assert client.data(stream_id)[5:] == b"(('x-say', '%b'),)" % value
        assert client.status(_begun(client, [(b"grpc-encoding", b"br")]))[b"grpc-status"] == b"12"


def test_what_is_no_grpc_is_told_in_http(serve: Serve, connect: Connect) -> None:
    client = connect(serve(echo))
    pseudo = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"x")]
    stream_id = client.http2.send_request(pseudo, end_stream=True)
    assert client.status(stream_id)[b":status"] == b"405"


def test_a_stream_that_ends_within_a_message_is_told(serve: Serve, connect: Connect) -> None:
    client = connect(served := serve(echo))
    stream_id = client.begin()
    client.http2.send_data(stream_id, prefix(100) + b"only this", end_stream=True)
    assert client.status(stream_id)[b"grpc-status"] == b"13"
    assert served.bounds.in_flight_bytes == 0


def test_open_calls_and_their_metadata_are_bounded_in_all(serve: Serve, connect: Connect) -> None:
    client = connect(served := serve(_hold, max_bytes_in_flight=200_000))
    streams = [client.begin([(b"x-number", b"%d" % number), (b"x", b"y" * 5000)]) for number in range(40)]
    client.send()
    client.until(lambda client: any(client.headers(stream_id) for stream_id in streams))
    assert client.status(next(stream_id for stream_id in streams if client.headers(stream_id)))[b"grpc-status"] == b"8"
    assert served.bounds.ended["grpc", "max_bytes_in_flight"] > 0
    assert 50_000 < served.bounds.in_flight_bytes <= 200_000
    client.socket.close()
    eventually(lambda: served.bounds.in_flight_bytes == 0, "all to be given back")


def test_messages_that_arrive_together_are_bounded_in_all(serve: Serve, connect: Connect) -> None:
    client = connect(served := serve(echo, max_bytes_in_flight=200_000))
    streams = [client.begin() for _ in range(5)]
    for stream_id in streams[:4]:
        client.http2.send_data(stream_id, prefix(50_000) + bytes(10_000))
    client.http2.send_data(streams[4], prefix(90_000) + bytes(65_000 - 4 * 10_005))
    client.send()
    for stream_id in streams[:4]:  # none of which can be completed before the others are
        client.http2.send_data(stream_id, bytes(39_000))
    client.until(lambda client: any(client.headers(stream_id) for stream_id in streams))
    refused = [client.headers(stream_id)[b"grpc-status"] for stream_id in streams if client.headers(stream_id)]
    assert set(refused) == {b"8"}
    _others_are_served(served)


def test_what_messages_are_inflated_to_is_bounded_in_all(
    serve: Serve, connect: Connect, loop: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_threads: set[threading.Thread] = set()
    step = MessageDecompression.step

    def watched(self: MessageDecompression, most_bytes: int) -> bytes:
        if most_bytes > INFLATED_HERE:
            in_threads.add(threading.current_thread())
        return step(self, most_bytes)

    monkeypatch.setattr(MessageDecompression, "step", watched)
    client = connect(served := serve(echo, max_bytes_in_flight=16 << 20))
    for size, status in ((8 << 20, b"0"), (50 << 20, b"8")):
        stream_id = client.begin([(b"grpc-encoding", b"gzip")])
        message = gzip.compress(bytes(size))
        client.http2.send_data(stream_id, b"\1" + len(message).to_bytes(4, "big") + message, end_stream=True)
        assert client.status(stream_id)[b"grpc-status"] == status
    assert served.bounds.ended["grpc", "max_bytes_in_flight"] == 1
    assert served.bounds.in_flight_bytes == 0
    assert in_threads
    assert loop.call(threading.current_thread) not in in_threads, "others would wait"


def test_a_message_that_makes_no_progress_is_given_up(serve: Serve, connect: Connect) -> None:
    served = serve(lambda call: call.receive(lambda m: call.answer(m or b""), 0.1), request_timeout_s=0.1)
    client = connect(served)
    stream_id = client.begin()
    client.http2.send_data(stream_id, prefix(100) + b"slow")
    assert client.status(stream_id)[b"grpc-status"] == b"4"
    assert served.bounds.ended["grpc", "request_timeout_s"] == 1
    assert served.bounds.in_flight_bytes == 0
    _others_are_served(served)


def test_a_connection_that_says_nothing_is_ended(serve: Serve) -> None:
    served = serve(echo, request_headers_timeout_s=0.1)
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as silent:
        while silent.recv(1 << 16):
            pass
    assert served.bounds.ended["grpc", "request_headers_timeout_s"] == 1


def test_a_client_that_falls_silent_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "KEEPALIVE_TIMEOUT_S", 0.2)
    served = serve(_hold, keepalive_s=0.1)
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as client:
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4) + _frame(1, 4, 1, _BEGIN))
        with contextlib.suppress(ConnectionResetError):
            while client.recv(1 << 16):
                pass
        eventually(lambda: served.bounds.connections["grpc"] == 0, "the end of its connection")
    assert not served.server.open_calls


def test_an_idle_connection_is_ended_where_that_is_asked_for(serve: Serve, connect: Connect) -> None:
    client = connect(serve(echo, idle_timeout_s=0.1))
    client.until(lambda client: client.ended)
    goaway = next(event for event in client.seen if isinstance(event, GoAwayReceived))
    assert goaway.error_code == ErrorCode.NO_ERROR


@pytest.mark.parametrize("padding", [0, 200])
def test_what_was_not_read_of_calls_that_were_given_up_leaves_its_connection_usable(
    serve: Serve, connect: Connect, padding: int
) -> None:
    def accept(call: RpcCall) -> None:
        if call.method == ECHO:
            echo(call)  # the others are not read

    client = connect(served := serve(accept, max_message_bytes=1 << 30))
    frame = bytes([padding]) * bool(padding) + bytes(16_000) + bytes(padding)
    for _ in range(30):
        stream_id = client.begin(path=b"/test.Service/Unread")
        client.until(partial(_has_room, stream_id))
        head = len(frame).to_bytes(3, "big") + bytes([0, 8 * bool(padding)]) + stream_id.to_bytes(4, "big")
        for _ in range((3 << 20) // len(frame)):
            client.socket.sendall(head + frame)
        client.http2.reset_stream(stream_id, ErrorCode.CANCEL)
        client.send()
    stream_id = client.begin()
    client.http2.send_data(stream_id, prefix(1) + b"x", end_stream=True)
    assert client.status(stream_id)[b"grpc-status"] == b"0"
    assert served.bounds.in_flight_bytes == 0


def test_connections_are_bounded(serve: Serve, connect: Connect) -> None:
    served = serve(_hold, max_connections=3)
    clients = [connect(served) for _ in range(3)]
    for client in clients:
        _begun(client)
    eventually(lambda: served.server.open_calls == 3, "three calls")
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as refused:
        assert refused.recv(100) == b""
    assert served.bounds.ended["grpc", "max_connections"] == 1


def test_an_idle_connection_makes_room(serve: Serve, connect: Connect) -> None:
    served = serve(echo, max_connections=2)
    idle, other = connect(served), connect(served)
    for client in (idle, other):
        assert client.status(client.begin(end_stream=True))[b"grpc-status"] == b"0"
    _others_are_served(served)
    assert idle.until(lambda client: client.ended).ended
    assert served.bounds.ended["grpc", "max_connections"] == 1


def test_a_flood_ends_no_neighbors_connection(serve: Serve, connect: Connect) -> None:
    served = serve(echo, max_connections=10)
    neighbor = connect(served)
    assert neighbor.status(neighbor.begin(end_stream=True))[b"grpc-status"] == b"0"
    address, flood = ("127.0.0.1", served.port), []
    try:
        for _ in range(30):
            flood.append(socket.create_connection(address, timeout=30, source_address=("127.0.0.2", 0)))
            flood[-1].recv(1)
        assert neighbor.status(neighbor.begin(end_stream=True))[b"grpc-status"] == b"0"
    finally:
        for connection in flood:
            connection.close()


def test_pings_without_calls_are_bounded(serve: Serve, connect: Connect) -> None:
    client = connect(served := serve(echo))
    with suppress(ConnectionError):
        for _ in range(5):
            client.http2.ping(b"too many")
            client.send()
        client.until(lambda client: client.ended)
    assert served.bounds.ended["grpc", "min_ping_interval_s"] == 1


def test_an_old_connection_ends_gently(serve: Serve, connect: Connect) -> None:
    client = connect(serve(echo, max_connection_age_s=1.0))
    client.until(lambda client: client.ended)
    goaway = next(event for event in client.seen if isinstance(event, GoAwayReceived))
    assert goaway.error_code == ErrorCode.NO_ERROR


def test_calls_on_a_connection_are_bounded(serve: Serve, connect: Connect) -> None:
    client = connect(serve(_hold, max_concurrent_streams=10))
    client.send()
    client.until(lambda client: bool(client.http2.remote_settings.get(3) == 10))
    assert client.http2.remote_settings[3] == 10


def test_rapid_resets_end_the_connection(serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RESET_LIMITS", (50, 1))
    client = connect(served := serve(_hold))
    with suppress(ConnectionError):  # it is cut off while it still writes
        for _ in range(200):
            client.http2.reset_stream(_begun(client), ErrorCode.CANCEL)
            client.send()
        client.until(lambda client: client.ended)
    assert served.bounds.ended["grpc", "floods"] == 1
    eventually(lambda: served.bounds.connections["grpc"] == 0, "the end of the connection")


def test_clients_that_leave_at_their_deadlines_are_no_flood(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "RESET_LIMITS", (10, 1))
    client = connect(served := serve(_hold))
    for _ in range(100):
        stream_id = _begun(client, [(b"grpc-timeout", b"1m")])
        assert client.status(stream_id)[b"grpc-status"] == b"4"
        client.http2.reset_stream(stream_id, ErrorCode.CANCEL)
        client.send()
    assert not served.bounds.ended


_BEGIN = b"\x83\x86\x44\x01/\x41\x01x\x5f\x10application/grpc"
"""Headers of a call, in HPACK: POST, http, /, x."""


def _frame(kind: int, flags: int = 0, stream_id: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big") + payload


FLOODS = {
    "settings": _frame(4) * 20_000,
    "settings of many entries": _frame(4, payload=b"\0\3\0\0\0\1" * 1000),
    "pings": _frame(6, payload=b"tidegate") * 20_000,
    "empty data": _frame(1, 4, 1, _BEGIN) + _frame(0, stream_id=1) * 20_000,
    "padding": _frame(1, 4, 1, _BEGIN) + _frame(0, 8, 1, b"\0") * 20_000,
    "continuations": _frame(1, 0, 1, _BEGIN) + _frame(9, stream_id=1) * 100,
    "priorities": _frame(2, 0, 1, b"\0\0\0\0\1") * 20_000,
    "unknown frames": _frame(0xFA) * 20_000,
    "many headers": _frame(1, 4, 1, _BEGIN + b"\0\1a\1b" * 2000),
    "long headers": _frame(1, 0, 1, _BEGIN)
    + b"".join(_frame(9, stream_id=1, payload=b"\0\1a\x7f\x81\x7c" + b"b" * 16_000) for _ in range(7)),
    "headers that refer to long ones": _frame(1, 4, 1, _BEGIN + b"\x40\1a\x7f\xa1\x1e" + b"b" * 4000 + b"\xbe" * 900),
    "resets": b"".join(_frame(1, 4, 2 * n + 1, _BEGIN) + _frame(3, 0, 2 * n + 1, b"\0\0\0\x08") for n in range(5000)),
}


def test_floods_end_their_connections_alone(serve: Serve, connect: Connect) -> None:
    served, clients = serve(_hold), []
    for number, (name, flood) in enumerate(FLOODS.items(), 1):
        clients.append(connect(served))
        clients[-1].until(lambda client: bool(client.seen))
        with suppress(ConnectionError):  # it is cut off while it still writes
            clients[-1].socket.sendall(flood)
        eventually(lambda number=number: served.bounds.ended["grpc", "floods"] == number, f"the end of {name}")
    for client in clients:
        with suppress(ConnectionError):
            client.until(lambda client: client.ended)
    eventually(lambda: served.bounds.connections["grpc"] == 0, "the end of the connections")
    assert served.bounds.in_flight_bytes == 0
    _others_of_holding_are_served(served)


def test_calls_that_come_in_one_piece_are_begun_over_several_turns_of_the_loop(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What other connections sent has its turn in between."""
    begun, of_turn = 0, []
    requested, handle_some = ServerConnection._requested, Http2Connection._handle_some

    def count_call(connection: ServerConnection, event: Any) -> None:
        nonlocal begun
        begun += 1
        requested(connection, event)

    def count_turn(connection: Http2Connection) -> None:
        before = begun
        handle_some(connection)
        of_turn.append(begun - before)

    monkeypatch.setattr(ServerConnection, "_requested", count_call)
    monkeypatch.setattr(Http2Connection, "_handle_some", count_turn)
    client = connect(serve(_hold))
    client.until(lambda client: bool(client.seen))
    client.socket.sendall(b"".join(_frame(1, 5, 2 * number + 1, _BEGIN) for number in range(200)))
    eventually(lambda: begun == 200, "all calls to be begun")
    assert max(of_turn) == CALLS_PER_TURN


def test_what_is_no_http2_ends_its_connection_alone(serve: Serve, connect: Connect) -> None:
    client = connect(served := serve(_hold))
    client.until(lambda client: bool(client.seen))
    with suppress(ConnectionError):
        client.socket.sendall(bytes(range(256)) * 10)
        client.until(lambda client: client.ended)
    eventually(lambda: served.bounds.connections["grpc"] == 0, "the end of the connection")
    _others_of_holding_are_served(served)


def test_a_client_that_took_its_answer_may_be_silent(serve: Serve, connect: Connect) -> None:
    client = connect(served := serve(echo, write_timeout_s=0.1))
    assert client.status(_begun(client))[b"grpc-status"] == b"0"
    eventually(lambda: served.bounds.unread_bytes == 0, "the answer to count as taken")
    assert client.status(_begun(client))[b"grpc-status"] == b"0"
    assert not served.bounds.ended


def test_a_client_that_takes_nothing_is_given_up(serve: Serve, connect: Connect) -> None:
    served = serve(lambda call: call.receive(lambda _: call.answer(bytes(1 << 20))), write_timeout_s=0.1)
    client = connect(served)
    _begun(client)
    eventually(lambda: served.bounds.ended["grpc", "write_timeout_s"] == 1, "the end of its connection")
    eventually(lambda: served.bounds.unread_bytes == 0, "its answer to be forgotten")


def test_a_flood_of_a_client_that_takes_nothing_ends_its_connection(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "RESET_LIMITS", (50, 1))
    served = serve(lambda call: call.receive(lambda _: call.answer(bytes(16 << 20))), write_timeout_s=2.0)
    client = connect(served)
    client.send()
    client.socket.sendall(_frame(4, payload=b"\0\4\x7f\0\0\0") + _frame(8, payload=b"\x7f\0\0\0"))  # windows
    _begun(client)
    eventually(lambda: served.bounds.unread_bytes > 0, "an answer that is not taken")
    for _ in range(60):
        stream_id = client.begin()
        client.send()
        client.http2.reset_stream(stream_id, ErrorCode.CANCEL)
        client.send()
    eventually(lambda: served.bounds.ended["grpc", "floods"] == 1, "the flood to be seen")
    eventually(lambda: served.bounds.connections["grpc"] == 0, "the end of the connection")
    assert served.bounds.unread_bytes == 0


def test_answers_that_a_client_does_not_read_are_bounded(serve: Serve, connect: Connect) -> None:
    served = serve(lambda call: call.receive(lambda _: call.answer(bytes(1 << 20))))
    client = connect(served)
    for _ in range(64):
        client.begin(end_stream=True)
    client.send()  # and it reads nothing
    eventually(lambda: served.bounds.unread_bytes >= 48 << 20, "answers to wait")
    assert not served.bounds.ended
    served.in_force.settings = replace(served.in_force.settings, max_response_buffer_bytes_per_connection=8 << 20)
    client.begin(end_stream=True)
    client.send()  # a limit that is another by now holds from the next answer on
    eventually(
        lambda: served.bounds.ended["grpc", "max_response_buffer_bytes_per_connection"] == 1,
        "the end of a connection that is not read",
    )
    eventually(lambda: served.bounds.connections["grpc"] == 0, "the end of it")


def test_answers_that_clients_do_not_read_are_bounded_in_all(serve: Serve, connect: Connect) -> None:
    served = serve(lambda call: call.receive(lambda _: call.answer(bytes(4 << 20))))
    served.in_force.settings = replace(served.in_force.settings, max_response_buffer_bytes=10 << 20)
    for _ in range(8):
        client = connect(served)
        client.begin(end_stream=True)
        client.send()
    eventually(lambda: served.bounds.ended["grpc", "max_response_buffer_bytes"] >= 5, "those beyond to be cut off")
    eventually(lambda: served.bounds.unread_bytes <= 10 << 20, "their answers to be forgotten")


def _has_room(stream_id: int, client: RawClient) -> bool:
    return client.http2.stream_remote_window_size(stream_id) > 3 << 20


def _begun(client: RawClient, headers: list[tuple[bytes, bytes]] | None = None) -> int:
    stream_id = client.begin(headers or [])
    client.http2.send_data(stream_id, prefix(1) + b"x", end_stream=True)
    client.send()
    return stream_id


def _others_of_holding_are_served(served: Served) -> None:
    with grpc.insecure_channel(served.address) as channel, pytest.raises(grpc.RpcError) as failed:
        channel.unary_unary(ECHO)(b"x", timeout=0.5)
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # it was taken, as the server takes all calls here
