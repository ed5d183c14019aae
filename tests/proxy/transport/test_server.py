"""The server against grpcio's client."""

import contextlib
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import grpc
import pytest

from tests.conftest import eventually
from tests.proxy.transport.conftest import ECHO, LoopThread, RawClient, Serve, Served, config_of, echo, new_server
from tidegate_proxy.transport import RpcCall
from tidegate_proxy.transport.client_bounds import ClientBounds

UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


@pytest.fixture(params=[False, True], ids=["http2", "frontend"])
def has_frontend(request: pytest.FixtureRequest) -> bool:
    """Whether clients are connected to a frontend."""
    return bool(request.param)


@pytest.mark.parametrize("size", [0, 1, 70_000, 5 << 20])
@pytest.mark.parametrize("compression", list(grpc.Compression))
def test_a_message_comes_back_whole(serve: Serve, size: int, compression: grpc.Compression) -> None:
    message = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    with grpc.insecure_channel(serve(echo).address, UNLIMITED) as channel:
        assert channel.unary_unary(ECHO)(message, compression=compression, timeout=60) == message


def test_a_call_knows_its_client(serve: Serve) -> None:
    seen: dict[str, object] = {}

    def accept(call: RpcCall) -> None:
        seen.update(dict(call.metadata), method=call.method, remaining_s=call.remaining_s(), peer=call.peer())
        echo(call)

    with grpc.insecure_channel(serve(accept).address) as channel:
        metadata = [("token", "abc"), ("trace-bin", b"\0\xff"), ("tenant", "me")]
        assert channel.unary_unary(ECHO)(b"hello", metadata=metadata, timeout=60) == b"hello"
        channel.unary_unary(ECHO)(b"")
    assert (seen["method"], seen["token"], seen["trace-bin"], seen["tenant"]) == (ECHO, "abc", b"\0\xff", "me")
    assert str(seen["peer"]).startswith("ipv4:127.0.0.1:")
    assert seen["remaining_s"] is None


def test_blanks_at_the_ends_of_metadata_and_details_are_kept(serve: Serve) -> None:
    def accept(call: RpcCall) -> None:
        value = dict(call.metadata)["padded"]
        call.receive(lambda _message: call.end(grpc.StatusCode.NOT_FOUND, f"  {value!r}  "))

    with grpc.insecure_channel(serve(accept).address) as channel, pytest.raises(grpc.RpcError) as failed:
        channel.unary_unary(ECHO)(b"", metadata=[("padded", "in the middle  ")], timeout=60)
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND
    assert failed.value.details() == "  'in the middle  '  "


def test_statuses_reach_the_client(serve: Serve) -> None:
    def accept(call: RpcCall) -> None:
        def received(_message: bytes | None) -> None:
            call.end(grpc.StatusCode.NOT_FOUND, "größer\n100 %")
            call.end(grpc.StatusCode.INTERNAL, "later")
            call.answer(b"too late")

        call.receive(received)

    with grpc.insecure_channel(serve(accept).address) as channel, pytest.raises(grpc.RpcError) as failed:
        channel.unary_unary(ECHO)(b"", timeout=60)
    assert (failed.value.code(), failed.value.details()) == (grpc.StatusCode.NOT_FOUND, "größer\n100 %")


@pytest.mark.parametrize("size", [16_000, 1_000_000])
def test_details_that_no_client_takes_are_cut_off(serve: Serve, size: int) -> None:
    served = serve(lambda call: call.receive(lambda _: call.end(grpc.StatusCode.NOT_FOUND, "größer " * size)))
    with grpc.insecure_channel(served.address) as channel, pytest.raises(grpc.RpcError) as failed:
        channel.unary_unary(ECHO)(b"", timeout=60)
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND
    assert str(failed.value.details()).startswith("größer größer")
    assert str(failed.value.details()).endswith(" ...")


def test_a_stream_keeps_its_order(serve: Serve) -> None:
    def accept(call: RpcCall) -> None:
        def received(message: bytes | None) -> None:
            if message is None:
                call.end()
            else:
                call.send(message * 2, lambda _: call.receive(received))

        call.receive(received)

    messages = [str(number).encode() * number for number in range(500)]
    with grpc.insecure_channel(serve(accept).address) as channel:
        assert list(channel.stream_stream(ECHO)(iter(messages), timeout=60)) == [message * 2 for message in messages]


def test_very_many_small_messages_that_came_before_they_were_asked_for(serve: Serve, loop: LoopThread) -> None:
    begun: Future[RpcCall] = Future()
    sent = threading.Event()

    def accept(call: RpcCall) -> None:
        call.receive(lambda _message: begun.set_result(call))

    def messages() -> Iterator[bytes]:
        for number in range(5001):
            if number == 4000:
                sent.set()
            yield b"x"

    got: list[bytes] = []

    def received(message: bytes | None) -> None:
        if message is None:
            call.end()
        else:
            got.append(message)
            call.receive(received)

    with grpc.insecure_channel(serve(accept).address) as channel:
        answers = channel.stream_stream(ECHO)(messages(), timeout=60)
        call = begun.result(30)
        assert sent.wait(30)
        loop.call(lambda: call.receive(received))
        assert list(answers) == []
    assert got == [b"x"] * 5000


def test_a_stream_to_a_slow_reader_is_held_back(serve: Serve, loop: LoopThread) -> None:
    sent = 0

    def accept(call: RpcCall) -> None:
        def go_on(_: object) -> None:
            nonlocal sent
            sent += 1
            if sent <= 100:
                call.send(bytes(1 << 20), go_on)
            else:
                call.end()

        call.receive(go_on)

    served = serve(accept)
    with grpc.insecure_channel(served.address, UNLIMITED) as channel:
        answers = channel.stream_stream(ECHO)(iter([b""]), timeout=60)
        eventually(lambda: sent > 1 and _stands_still(lambda: sent), "a server that waits for its reader")
        assert sent < 50
        assert served.bounds.unread_bytes < 16 << 20
        assert [len(answer) for answer in answers] == [1 << 20] * 100


def test_servers_in_several_event_loops_do_not_mix_what_they_read() -> None:
    """Each has a loop and a thread of its own."""
    threads = [LoopThread() for _ in range(2)]
    with contextlib.ExitStack() as stack:
        addresses = []
        for thread in threads:
            server = thread.call(lambda: new_server(config_of(), echo, ClientBounds()))
            addresses.append(f"127.0.0.1:{thread.run(server.listen('127.0.0.1:0'))}")
            stack.callback(thread.close)
            stack.callback(thread.run, server.stop(0))

        def ask(address: str) -> None:
            with grpc.insecure_channel(address) as channel:
                for number in range(300):
                    message = f"{address} {number}".encode() * 50
                    assert channel.unary_unary(ECHO)(message, timeout=60) == message

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(ask, addresses * 2))


def test_many_messages_that_have_come_at_once_are_received_one_by_one(
    serve: Serve, connect: Callable[[Served], RawClient]
) -> None:
    received: list[bytes] = []

    def accept(call: RpcCall) -> None:
        def more(message: bytes | None) -> None:
            if message is None:
                call.answer(b"all")
                return
            received.append(message)
            returned = False

            def then(message: bytes | None) -> None:
                assert returned, "called before `receive` has returned"
                more(message)

            call.receive(then)
            returned = True

        call.receive(more)

    client = connect(serve(accept))
    stream = client.begin()
    messages = [b"%d" % number for number in range(5000)]
    framed = b"".join(struct.pack("!BI", 0, len(one)) + one for one in messages)
    client.http2.send_data(stream, framed, end_stream=True)
    assert client.status(stream)[b"grpc-status"] == b"0"
    assert received == messages


def test_a_stream_that_its_client_does_not_read_is_held_back(serve: Serve) -> None:
    calls: list[RpcCall] = []

    def accept(call: RpcCall) -> None:
        calls.append(call)
        call.receive(lambda _message: None)  # and no more

    sent = 0

    def messages() -> object:
        nonlocal sent
        for _ in range(100):
            sent += 1
            yield bytes(1 << 20)

    with grpc.insecure_channel(serve(accept).address, UNLIMITED) as channel:
        answers = channel.stream_stream(ECHO)(messages())
        eventually(lambda: calls and sent > 1, "messages that wait")
        eventually(lambda: _stands_still(lambda: sent), "a client that is held back")
        assert sent < 100
        answers.cancel()


def _stands_still(count: Callable[[], int]) -> bool:
    before = count()
    time.sleep(0.1)
    return count() == before


def test_a_client_that_leaves_is_noticed(serve: Serve) -> None:
    left, arrived = threading.Event(), threading.Event()

    def accept(call: RpcCall) -> None:
        call.add_disconnect_callback(left.set)
        call.receive(lambda _: arrived.set())

    with grpc.insecure_channel(serve(accept).address) as channel:
        pending = channel.unary_unary(ECHO).future(b"")
        assert arrived.wait(30)
        assert not left.is_set()
        pending.cancel()
        assert left.wait(30)


def test_a_deadline_is_kept_by_the_server_too(serve: Serve) -> None:
    left: Future[bool] = Future()

    def accept(call: RpcCall) -> None:
        call.add_disconnect_callback(lambda: left.set_result(call.gone))
        call.receive(lambda _: None)

    with grpc.insecure_channel(serve(accept).address) as channel, pytest.raises(grpc.RpcError) as failed:
        channel.unary_unary(ECHO)(b"", timeout=0.05)
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert left.result(30)


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_large_messages_are_refused(serve: Serve, compression: grpc.Compression) -> None:
    served = serve(echo, max_message_bytes=1 << 20)
    with grpc.insecure_channel(served.address, UNLIMITED) as channel:
        with pytest.raises(grpc.RpcError) as failed:
            channel.unary_unary(ECHO)(bytes(100 << 20), compression=compression, timeout=60)
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in str(failed.value.details())
        assert channel.unary_unary(ECHO)(bytes(1 << 20), timeout=60) == bytes(1 << 20)


def test_retiring_sends_clients_elsewhere_and_serves_those_who_stay(serve: Serve, loop: LoopThread) -> None:
    held: list[RpcCall] = []

    def accept(call: RpcCall) -> None:
        call.receive(lambda message: held.append(call) if message == b"hold" else call.answer(message or b""))

    served = serve(accept)
    with grpc.insecure_channel(served.address) as channel, ThreadPoolExecutor(1) as pool:
        pending = channel.unary_unary(ECHO).future(b"hold")
        eventually(lambda: held, "the call that is held")
        retiring = pool.submit(loop.run, served.server.retire(30.0))
        messages = [str(number).encode() for number in range(100)]
        assert [channel.unary_unary(ECHO)(message, timeout=60) for message in messages] == messages
        retiring.result(30)
        eventually(lambda: served.bounds.connections["grpc"] == 2, "another connection of the client")
        loop.call(lambda: held[0].answer(b"at last"))
        assert pending.result(30) == b"at last"
        eventually(lambda: served.bounds.connections["grpc"] == 1, "the end of the first one")
    assert not served.server.open_calls


def test_stopping_lets_calls_end(serve: Serve, loop: LoopThread) -> None:
    held: Future[RpcCall] = Future()
    served = serve(lambda call: call.receive(lambda _: held.set_result(call)))
    server = served.server
    with grpc.insecure_channel(served.address) as channel, ThreadPoolExecutor(1) as pool:
        pending = channel.unary_unary(ECHO).future(b"")
        call = held.result(30)
        stopped = pool.submit(loop.run, server.stop(30.0))
        assert server.open_calls == 1
        loop.call(lambda: call.answer(b"at last"))
        assert pending.result(30) == b"at last"
        assert stopped.result(30)
    assert server.open_calls == 0


def test_stopping_cuts_off_what_does_not_end(serve: Serve, loop: LoopThread) -> None:
    arrived = threading.Event()
    served = serve(lambda call: call.receive(lambda _: arrived.set()))
    with grpc.insecure_channel(served.address) as channel:
        pending = channel.unary_unary(ECHO).future(b"")
        assert arrived.wait(30)
        assert not loop.run(served.server.stop(0.01))
        assert isinstance(pending.exception(30), grpc.RpcError)


def test_a_callback_that_fails_fails_its_call_alone(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    class BrokenError(Exception):
        """Of another type each time: the same one is not logged twice in a row."""

    def accept(call: RpcCall) -> None:
        def received(message: bytes | None) -> None:
            if message == b"bad":
                raise BrokenError
            call.answer(message or b"")

        call.receive(received)

    with grpc.insecure_channel(serve(accept).address) as channel:
        with pytest.raises(grpc.RpcError) as failed:
            channel.unary_unary(ECHO)(b"bad", timeout=60)
        assert failed.value.code() is grpc.StatusCode.INTERNAL
        assert channel.unary_unary(ECHO)(b"good", timeout=60) == b"good"
    assert caplog.text.count("BrokenError") == 2  # in the code that raises it, and as what was raised


def test_a_taken_port_is_an_error(serve: Serve, loop: LoopThread) -> None:
    taken = serve(echo).address
    other = loop.call(lambda: new_server(config_of(), echo, ClientBounds()))
    with pytest.raises(OSError, match=r"in use|is the port taken"):
        loop.run(other.listen(taken))
