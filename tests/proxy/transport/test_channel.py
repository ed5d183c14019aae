"""The channel against grpcio's server, and against servers that break."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import grpc
import pytest

from tests.conftest import eventually, unused_port
from tests.proxy.transport.conftest import ECHO, LoopThread, Serve, echo
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.transport import Channel, PendingCall, RpcCall
from tidegate_proxy.transport.http2 import client
from tidegate_proxy.transport.http2.client import PendingUnary
from tidegate_proxy.transport.http2.server_call import Http2Call

Outcome = tuple[bytes | None, grpc.StatusCode, str]


class Caller:
    """Calls from outside of the loop."""

    def __init__(self, loop: LoopThread, port: int) -> None:
        self._loop = loop
        self.channel = loop.call(lambda: Channel(f"127.0.0.1:{port}"))

    def begin(
        self, message: bytes, metadata: list[tuple[str, str | bytes]] | None = None, timeout_s: float | None = None
    ) -> tuple[PendingCall, Future[Outcome]]:
        ended: Future[Outcome] = Future()
        pending = self._loop.call(
            lambda: self.channel.unary(
                ECHO, message, lambda *outcome: ended.set_result(outcome), metadata or (), timeout_s
            )
        )
        return pending, ended

    def ask(self, message: bytes, metadata: list[tuple[str, str | bytes]] | None = None) -> Outcome:
        return self.begin(message, metadata)[1].result(30)

    def close(self) -> None:
        self._loop.run(self.channel.close())


@pytest.fixture
def caller(loop: LoopThread) -> Iterator[Callable[[int], Caller]]:
    """`caller(port)`: a channel."""
    callers: list[Caller] = []

    def made(port: int) -> Caller:
        callers.append(Caller(loop, port))
        return callers[-1]

    yield made
    for one in callers:
        one.close()


@pytest.fixture
def grpcio() -> Iterator[Callable[[Callable[[bytes, grpc.ServicerContext], bytes]], int]]:
    """`grpcio(handler)`: grpcio's own server; its port."""
    servers: list[grpc.Server] = []

    def made(handler: Callable[[bytes, grpc.ServicerContext], bytes]) -> int:
        server = grpc.server(
            ThreadPoolExecutor(4),
            options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)],
        )
        handlers = {"Echo": grpc.unary_unary_rpc_method_handler(handler)}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Service", handlers)])
        servers.append(server)
        port: int = server.add_insecure_port("127.0.0.1:0")
        server.start()
        return port

    yield made
    for server in servers:
        server.stop(None).wait()


GrpcIo = Callable[[Callable[[bytes, grpc.ServicerContext], bytes]], int]


@pytest.mark.parametrize("size", [0, 1, 70_000, 5 << 20])
def test_a_message_comes_back_whole(grpcio: GrpcIo, caller: Callable[[int], Caller], size: int) -> None:
    message = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    assert caller(grpcio(lambda request, _context: request)).ask(message) == (message, grpc.StatusCode.OK, "")


def test_metadata_and_statuses_go_along(grpcio: GrpcIo, caller: Callable[[int], Caller]) -> None:
    seen: dict[str, object] = {}

    def handler(_request: bytes, context: grpc.ServicerContext) -> bytes:
        seen.update(context.invocation_metadata())
        context.abort(grpc.StatusCode.NOT_FOUND, "größer\n100 %")
        raise AssertionError

    outcome = caller(grpcio(handler)).ask(b"", [("token", "abc"), ("trace-bin", b"\0\xff")])
    assert outcome == (None, grpc.StatusCode.NOT_FOUND, "größer\n100 %")
    assert (seen["token"], seen["trace-bin"]) == ("abc", b"\0\xff")


@pytest.mark.parametrize("details", ["unexpected shape, got [1,3]. ", " told", "\ttold\t"])
def test_blanks_at_the_ends_of_what_a_server_says_are_kept(
    grpcio: GrpcIo, caller: Callable[[int], Caller], details: str
) -> None:
    def handler(_request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, details)
        raise AssertionError

    assert caller(grpcio(handler)).ask(b"") == (None, grpc.StatusCode.INVALID_ARGUMENT, details)


def test_a_fault_at_the_end_of_a_call_is_reported_and_spares_the_others(
    grpcio: GrpcIo, caller: Callable[[int], Caller]
) -> None:
    one = caller(grpcio(lambda request, _context: request))
    before = faults.counts().get("the end of a call", 0)

    def break_down(*_outcome: object) -> None:
        raise RuntimeError("as told")

    one._loop.call(lambda: one.channel.unary(ECHO, b"x", break_down))
    assert one.ask(b"y") == (b"y", grpc.StatusCode.OK, "")
    give_up = time.monotonic() + 30
    while faults.counts().get("the end of a call", 0) == before:
        assert time.monotonic() < give_up
        time.sleep(0.005)


def test_giving_up_a_call_reaches_the_server(grpcio: GrpcIo, caller: Callable[[int], Caller]) -> None:
    left, arrived = threading.Event(), threading.Event()

    def handler(_request: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(left.set)
        arrived.set()
        assert left.wait(30)
        return b""

    one = caller(grpcio(handler))
    pending, ended = one.begin(b"")
    assert arrived.wait(30)
    one._loop.call(pending.cancel)
    assert ended.result(30)[1] is grpc.StatusCode.CANCELLED
    assert left.wait(30)


def test_time_limits_are_kept(grpcio: GrpcIo, caller: Callable[[int], Caller]) -> None:
    remaining: list[float | None] = []
    release = threading.Event()

    def handler(_request: bytes, context: grpc.ServicerContext) -> bytes:
        remaining.append(context.time_remaining())
        release.wait(30)
        return b""

    outcome = caller(grpcio(handler)).begin(b"", timeout_s=0.3)[1].result(30)
    release.set()
    assert outcome[1] is grpc.StatusCode.DEADLINE_EXCEEDED
    assert remaining[0] is not None
    assert remaining[0] < 0.4


def test_a_server_that_is_away_is_unavailable_and_found_when_there(
    serve: Serve, caller: Callable[[int], Caller], loop: LoopThread
) -> None:
    one = caller(port := unused_port())
    answer, code, details = one.ask(b"")
    assert (answer, code) == (None, grpc.StatusCode.UNAVAILABLE)
    assert str(port) in details
    server = grpc.server(ThreadPoolExecutor(1))
    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(lambda request, _context: request)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Service", handlers)])
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        eventually(lambda: one.ask(b"x")[0] == b"x", "the server that has come")
    finally:
        server.stop(None).wait()


def test_a_connection_that_breaks_ends_its_calls_and_is_made_again(
    serve: Serve, caller: Callable[[int], Caller], loop: LoopThread
) -> None:
    calls: Future[RpcCall] = Future()

    def accept(call: RpcCall) -> None:
        call.receive(lambda message: calls.set_result(call) if message == b"hold" else call.answer(message or b""))

    one = caller(serve(accept).port)
    _, held = one.begin(b"hold")
    call = calls.result(30)
    if not isinstance(call, Http2Call):
        pytest.skip("a connection of gRPC's core cannot be broken from here")
    loop.call(lambda: call._connection.abort("test"))
    assert held.result(30)[1] is grpc.StatusCode.UNAVAILABLE
    assert one.ask(b"again") == (b"again", grpc.StatusCode.OK, "")


def test_goaway_loses_no_call(serve: Serve, caller: Callable[[int], Caller], loop: LoopThread) -> None:
    held: list[RpcCall] = []

    def accept(call: RpcCall) -> None:
        call.receive(lambda message: held.append(call) if message == b"hold" else call.answer(message or b""))

    one = caller(serve(accept).port)
    _, first = one.begin(b"hold")
    eventually(lambda: held, "the call that is held")
    call = held[0]
    if not isinstance(call, Http2Call):
        pytest.skip("gRPC's core sends no GOAWAY while it serves")
    loop.call(call._connection.shut_down)
    messages = [str(number).encode() for number in range(20)]
    assert [one.ask(message)[0] for message in messages] == messages
    loop.call(lambda: call.answer(b"at last"))
    assert first.result(30) == (b"at last", grpc.StatusCode.OK, "")


def test_a_connection_whose_streams_come_to_an_end_is_replaced(
    serve: Serve, caller: Callable[[int], Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "STREAMS_PER_CONNECTION", 10)
    peers: list[str] = []

    def accept(call: RpcCall) -> None:
        peers.append(call.peer())
        echo(call)

    one = caller(serve(accept).port)
    pending = [one.begin(str(number).encode())[1] for number in range(100)]
    assert [ended.result(30)[0] for ended in pending] == [str(number).encode() for number in range(100)]
    assert len(set(peers)) == 10


def test_a_server_that_falls_silent_is_given_up(loop: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "KEEPALIVE_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        channel = loop.call(lambda: Channel(address, keepalive_s=0.1))
        ended: Future[Outcome] = Future()
        loop.call(lambda: channel.unary(ECHO, b"", lambda *outcome: ended.set_result(outcome)))
        connection, _ = listener.accept()
        with connection:
            _, code, details = ended.result(30)
    assert (code, details) == (grpc.StatusCode.UNAVAILABLE, "keepalive ping was not answered")
    loop.run(channel.close())


def test_calls_beyond_the_servers_limit_wait(serve: Serve, caller: Callable[[int], Caller]) -> None:
    one = caller(serve(echo, max_concurrent_streams=4).port)
    assert one.ask(b"first")[0] == b"first"  # the limit is known by now
    pending = [one.begin(str(number).encode())[1] for number in range(100)]
    assert [ended.result(30)[0] for ended in pending] == [str(number).encode() for number in range(100)]


def test_closing_a_channel_ends_its_calls(serve: Serve, loop: LoopThread) -> None:
    arrived = threading.Event()
    one = Caller(loop, serve(lambda call: call.receive(lambda _: arrived.set())).port)
    _, ended = one.begin(b"")
    assert arrived.wait(30)
    one.close()
    assert ended.result(30)[1] is grpc.StatusCode.CANCELLED


def test_a_server_that_speaks_no_http2_is_unavailable(caller: Callable[[int], Caller]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = caller(listener.getsockname()[1])
        _, ended = one.begin(b"")
        connection, _ = listener.accept()
        listener.close()  # a call that was not sent yet is tried on another connection, where nobody is now
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        assert ended.result(30)[1] is grpc.StatusCode.UNAVAILABLE
        connection.close()


def test_a_status_that_meets_a_fault_ends_its_call_alone(
    serve: Serve, caller: Callable[[int], Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = caller(serve(echo).port)
    assert one.ask(b"x")[1] is grpc.StatusCode.OK
    original = PendingUnary.status_came
    raised: list[PendingUnary] = []

    def faulty(call: PendingUnary, code: grpc.StatusCode, details: str) -> None:
        if not raised:
            raised.append(call)
            raise RuntimeError("injected")
        original(call, code, details)

    monkeypatch.setattr(PendingUnary, "status_came", faulty)
    codes = [call.result(30)[1] for _, call in [one.begin(b"first"), one.begin(b"second")]]
    assert codes == [grpc.StatusCode.INTERNAL, grpc.StatusCode.OK]
