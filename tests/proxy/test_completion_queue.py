"""The completion-queue server and channel against grpcio's own client and server."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import grpc
import pytest

from tidegate_proxy.backend import CHANNEL_OPTIONS
from tidegate_proxy.completion_queue import Call, Channel, Server

ECHO = "/test.Service/Echo"
Serve = Callable[[Callable[[Call], None]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`serve(accept)`: a server, as HOST:PORT."""
    servers: list[Server] = []

    def start(accept: Callable[[Call], None]) -> str:
        server = Server(accept, [*CHANNEL_OPTIONS, ("grpc.so_reuseport", 0)])
        port = server.listen("127.0.0.1:0")
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield start
    for server in servers:
        server.stop(0)


def _echo(call: Call) -> None:
    call.receive(lambda message: call.answer(message or b""))


def _ask(address: str, message: bytes) -> tuple[bytes | None, grpc.StatusCode, str]:
    answered: Future[tuple[bytes | None, grpc.StatusCode, str]] = Future()
    channel = Channel(address, CHANNEL_OPTIONS)
    try:
        channel.unary(ECHO, message, lambda *outcome: answered.set_result(outcome))
        return answered.result(120)
    finally:
        channel.close()


@pytest.mark.parametrize("size", [0, 1, 5 << 20])
def test_a_message_comes_back_whole(serve: Serve, size: int) -> None:
    message = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    assert _ask(serve(_echo), message) == (message, grpc.StatusCode.OK, "")


def test_grpcio_understands_the_server(serve: Serve) -> None:
    seen: dict[str, object] = {}

    def accept(call: Call) -> None:
        seen.update(dict(call.metadata), method=call.method, remaining_s=call.remaining_s(), peer=call.peer())
        _echo(call)

    with grpc.insecure_channel(serve(accept)) as channel:
        assert channel.unary_unary(ECHO)(b"hello", metadata=[("token", "abc")], timeout=60) == b"hello"
    assert seen["method"] == ECHO
    assert seen["token"] == "abc"
    assert isinstance(seen["remaining_s"], float)
    assert 59 < seen["remaining_s"] < 61  # grpcio rounds
    assert "127.0.0.1" in str(seen["peer"])


def test_no_deadline_is_none(serve: Serve) -> None:
    seen: list[float | None] = []

    def accept(call: Call) -> None:
        seen.append(call.remaining_s())
        _echo(call)

    _ask(serve(accept), b"")
    assert seen == [None]


def test_only_the_first_end_of_a_call_counts(serve: Serve) -> None:
    def accept(call: Call) -> None:
        def received(_message: bytes | None) -> None:
            call.end(grpc.StatusCode.NOT_FOUND, "größer")
            call.end(grpc.StatusCode.INTERNAL, "later")
            call.answer(b"too late")

        call.receive(received)

    assert _ask(serve(accept), b"") == (None, grpc.StatusCode.NOT_FOUND, "größer")


def test_a_stream_keeps_its_order(serve: Serve) -> None:
    def accept(call: Call) -> None:
        def received(message: bytes | None) -> None:
            if message is None:
                call.end()
            else:
                call.send(message * 2, lambda _: call.receive(received))

        call.receive(received)

    messages = [str(number).encode() for number in range(100)]
    with grpc.insecure_channel(serve(accept)) as channel:
        assert list(channel.stream_stream(ECHO)(iter(messages))) == [message * 2 for message in messages]


def test_a_client_that_leaves_is_noticed(serve: Serve) -> None:
    left = threading.Event()
    arrived = threading.Event()

    def accept(call: Call) -> None:
        call.on_gone = left.set
        call.receive(lambda _: arrived.set())

    with grpc.insecure_channel(serve(accept)) as channel:
        pending = channel.unary_unary(ECHO).future(b"")
        assert arrived.wait(120)
        assert not left.is_set()
        pending.cancel()
        assert left.wait(120)


def test_giving_up_a_call_reaches_the_server() -> None:
    left, arrived = threading.Event(), threading.Event()

    def handler(_request: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(left.set)
        arrived.set()
        assert left.wait(120)
        return b""

    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("test.Service", {"Echo": grpc.unary_unary_rpc_method_handler(handler)})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    channel = Channel(f"127.0.0.1:{port}", CHANNEL_OPTIONS)
    ended: Future[grpc.StatusCode] = Future()
    try:
        pending = channel.unary(ECHO, b"", lambda _answer, code, _details: ended.set_result(code))
        assert arrived.wait(120)
        pending.cancel()
        assert ended.result(120) is grpc.StatusCode.CANCELLED
        assert left.wait(120)
    finally:
        channel.close()
        server.stop(None).wait()


def test_nobody_there_is_unavailable() -> None:
    answer, code, details = _ask("127.0.0.1:1", b"")
    assert (answer, code) == (None, grpc.StatusCode.UNAVAILABLE)
    assert details


def test_closing_a_channel_ends_its_calls(serve: Serve) -> None:
    arrived = threading.Event()
    address = serve(lambda call: call.receive(lambda _: arrived.set()))
    channel = Channel(address, CHANNEL_OPTIONS)
    ended: Future[grpc.StatusCode] = Future()
    channel.unary(ECHO, b"", lambda _answer, code, _details: ended.set_result(code))
    assert arrived.wait(120)
    channel.close()
    assert ended.result(120) is grpc.StatusCode.CANCELLED


def test_a_taken_port_is_an_error(serve: Serve) -> None:
    taken = serve(_echo)
    with pytest.raises(OSError, match="is the port taken"):
        Server(_echo, [("grpc.so_reuseport", 0)]).listen(taken)


def test_stopping_lets_calls_end(serve: Serve) -> None:
    held: Future[Call] = Future()
    server = Server(lambda call: call.receive(lambda _: held.set_result(call)), CHANNEL_OPTIONS)
    port = server.listen("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, ThreadPoolExecutor(1) as pool:
        pending = channel.unary_unary(ECHO).future(b"")
        call = held.result(120)
        stopped = pool.submit(server.stop, 10.0)
        assert server.open_calls == 1
        call.answer(b"at last")
        assert pending.result(120) == b"at last"
        assert stopped.result(120)
    assert server.open_calls == 0


def test_stopping_cuts_off_what_does_not_end() -> None:
    arrived = threading.Event()
    server = Server(lambda call: call.receive(lambda _: arrived.set()), CHANNEL_OPTIONS)
    port = server.listen("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        pending = channel.unary_unary(ECHO).future(b"")
        assert arrived.wait(120)
        assert not server.stop(0.01)
        assert pending.exception(10) is not None


def test_a_callback_that_fails_spares_the_others(
    serve: Serve, caplog: pytest.LogCaptureFixture, eventually: Callable[..., None]
) -> None:
    def accept(call: Call) -> None:
        def received(message: bytes | None) -> None:
            if message == b"bad":
                raise ValueError("broken")
            call.answer(message or b"")

        call.receive(received)

    address = serve(accept)
    with grpc.insecure_channel(address) as channel:
        bad = channel.unary_unary(ECHO).future(b"bad")
        assert channel.unary_unary(ECHO)(b"good") == b"good"
        eventually(lambda: "broken" in caplog.text, "the complaint")
        bad.cancel()
